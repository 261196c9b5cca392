/* SPDX-License-Identifier: MIT
 *
 * attacks.c: submissions that do not want to be judged. test_attacks.py runs each and says what
 * must come of it.
 *
 * One shared object has nearly all of them: the number of queries chooses, so a submission knows
 * nothing but its case. -DCONSTRUCTOR=<number> makes one that attacks while it is loaded.
 * -DBORROWS calls a function of the judge. Where an attack gets on, it says so on stdout
 * ("GOT ..."), and then hands in what is right, so that nothing else can be to blame for its
 * failure.
 *
 * Interface: naive_variant.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "attn.h"
#include "course/runner.h"
#include "tensor.h"

#ifndef FOLDER
#define FOLDER "/nowhere"
#endif

/* test_attacks.py reads these names. */
enum {
    RIGHT = 1,
    READ_JUDGE,
    WRITE_JUDGE,
    READ_JUDGE_BY_CALL,
    TRACE_JUDGE,
    KILL_JUDGE,
    READ_KEY,
    LOAD_SOLUTION,
    READ_ITSELF,
    FORK,
    FORK_BOMB_OF_VFORKS,
    OWN_SESSION,
    EXECUTE,
    SHELL,
    SOCKET,
    IO_URING,
    NAMESPACE,
    HUNDRED_GIGABYTES,
    TOUCH_MEMORY,
    RAISE_LIMITS,
    WRITE_INPUT,
    UNLOCK_INPUT,
    REPLACE_INPUT,
    UNMAP_OUTPUT,
    JUMP_OVER_THE_CANARY,
    WRITE_BEFORE_OUTPUT,
    EXIT,
    HIDE_A_CRASH,
    HIDE_A_DENIAL,
    JUMP_OUT_OF_A_CRASH,
    LEAVE_THREADS,
    BOMB_OF_THREADS,
    CLOSE_EVERYTHING,
    OPEN_EVERYTHING,
    WRITE_EVERYWHERE,
    WRITE_A_FILE,
    SHOW_WHAT_IT_HAS,
    FLOOD,
    FORGE_A_BROKEN_JUDGE,
    FORGE_AN_END,
    FLOOD_THE_JUDGE,
    SEND_TO_NOBODY,
    OLD_CALL,
    TRUNCATE,
    STOP_ITSELF,
    HANG,
    SLEEP,
    GUESS_THE_SEED,
    SHARE_MEMORY,
    SEND_TO_SWAP,
    HUGE_PAGES,
    FILL_PIPES,
    COPY_OF_INPUT,
    END_FIRST_THREAD,
    WORK_BETWEEN_CALLS,
    NEVER_STAND_STILL,
    BOMB_OF_CLONES,
    FLOOD_AND_CLONE,
    CALL_OF_X32,
    USER_FAULTS,
    SECRET_MEMORY,
    INPUTS_AT_LOAD
};

static void got(const char *what)
{
    printf("GOT %s\n", what);
}

static void failed(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
}

/* An attack that is one call: what it got, or why not. */
#define TRY(name, succeeds, what)                                                                  \
    case name:                                                                                     \
        if (succeeds)                                                                              \
            got(what);                                                                             \
        break
#define TRY_ALOUD(name, succeeds, what, otherwise)                                                 \
    case name:                                                                                     \
        (succeeds) ? got(what) : failed(otherwise);                                                \
        break

static void compute(const AttnArgs *a)
{
    const AttnShape *s = &a->shape;
    float q[64], k[64], o[64];
    for (int64_t h = 0; h < s->H; h++)
        for (int64_t i = 0; i < s->Nq; i++) {
            float m = -INFINITY, l = 0.0f;
            for (int64_t x = 0; x < s->d; x++)
                o[x] = 0.0f;
            tensor_read_row(&a->Q, 0, i, h, q);
            for (int64_t j = 0; j < s->Nk; j++) {
                float dot = 0.0f, m_new, alpha, p;
                tensor_read_row(&a->K, 0, j, h / (s->H / s->Hkv), k);
                for (int64_t x = 0; x < s->d; x++)
                    dot += q[x] * k[x];
                dot *= a->scale;
                m_new = dot > m ? dot : m;
                alpha = expf(m - m_new);
                p = expf(dot - m_new);
                tensor_read_row(&a->V, 0, j, h / (s->H / s->Hkv), k);
                for (int64_t x = 0; x < s->d; x++)
                    o[x] = o[x] * alpha + p * k[x];
                l = l * alpha + p;
                m = m_new;
            }
            for (int64_t x = 0; x < s->d; x++)
                o[x] /= l;
            tensor_write_row(&a->O, 0, i, h, o);
            a->lse[h * s->Nq + i] = m + logf(l);
        }
}

static void zeros(const AttnArgs *a)
{
    memset(a->O.data, 0, (size_t)tensor_count(&a->O) * sizeof(float));
    memset(a->lse, 0, (size_t)(a->shape.H * a->shape.Nq) * sizeof(float));
}

static void open_judge(int how)
{
    char path[64];
    int file;
    snprintf(path, sizeof path, "/proc/%d/mem", (int)getppid());
    file = open(path, how);
    if (file >= 0)
        got("the judge's memory");
    else
        failed("judge");
}

static void open_one(const char *what, const char *path)
{
    if (open(path, O_RDONLY) >= 0)
        got(what);
    else
        failed(what);
}

static void *spin(void *nothing)
{
    for (volatile unsigned n = 0;; n++)
        ;
    return nothing;
}

static void end_quietly(int number)
{
    (void)number;
    _exit(0);
}

static void go_on(int number)
{
    (void)number;
}

static sigjmp_buf back;
static void jump(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static void touch_memory(void)
{
    for (;;) {
        const size_t bytes = (size_t)64 << 20;
        memset(malloc(bytes), 1, bytes); /* NULL, one day */
    }
}

static void load_solution(const AttnArgs *a)
{
    void *library = dlopen(FOLDER "/solution.so", RTLD_NOW), *symbol;
    AttnFn solution;
    if (!library) {
        puts(dlerror());
        zeros(a);
        return;
    }
    symbol = dlsym(library, "naive_variant");
    memcpy(&solution, &symbol, sizeof solution);
    got("a library");
    solution(a);
}

static void threads(int many)
{
    pthread_t thread;
    int count = 0;
    while (count < many && pthread_create(&thread, NULL, spin, NULL) == 0)
        count++;
    printf("%s threads\n", count == many ? "all" : "not all");
}

/* Does a thread go on while the judge looks at the outputs? Longer than any pause of its own. */
static volatile double longest_pause_ms;
static volatile long looks;

static void *look_at_the_clock(void *nothing)
{
    double before = 0.0;
    for (;;) {
        struct timespec t;
        double now;
        clock_gettime(CLOCK_MONOTONIC, &t);
        now = 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
        if (before > 0.0 && now - before > longest_pause_ms)
            longest_pause_ms = now - before;
        before = now;
        looks++;
    }
    return nothing;
}

/* On a busy machine the other thread may get its processor late. */
static void wait_for_a_look(void)
{
    for (const long before = looks; looks < before + 2;)
        sched_yield();
}

static void work_between_calls(const AttnArgs *a)
{
    static int called;
    pthread_t thread;
    if (!called++)
        pthread_create(&thread, NULL, look_at_the_clock, NULL);
    wait_for_a_look();
    if (called > 1 && longest_pause_ms < 0.2) /* the judge takes 1 or more, two looks 0.0001 */
        got("time between two calls");
    zeros(a);
    longest_pause_ms = 0.0;
}

static void *wake(void *nothing)
{
    for (;;)
        kill(getpid(), SIGCONT);
    return nothing;
}

/* What the runner may say to the judge. */
static void forge(RunnerSays says, int number)
{
    const RunnerReply r = {
        .says = says, .number = number, .text = "all is well", .address = 1 << 30};
    if (write(RUNNER_CONTROL, &r, sizeof r) != sizeof r)
        failed("forge");
}

/* With the first thread the kernel forgets what it shows of a process: its memory. */
static void *answer(void *args)
{
    const struct timespec pause = {0, 5000000};
    nanosleep(&pause, NULL);
    compute(args);
    forge(RUNNER_DONE, 0);
    return spin(NULL);
}

static void end_first_thread(const AttnArgs *a)
{
    static AttnArgs copy;
    pthread_t thread;
    copy = *a;
    pthread_create(&thread, NULL, answer, &copy);
    syscall(SYS_exit, 0);
}

/* Threads without a stack: no limit of memory ends this. */
static void clones(int shout)
{
#ifdef __x86_64__
    for (int n = 0; n < 50000; n++) {
        const unsigned long flags =
            CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
        static char stack[4096];
        register long nothing __asm__("r10") = 0;
        register long nor __asm__("r8") = 0;
        long number = SYS_clone;
        if (shout)
            puts("clone");
        __asm__ volatile("syscall; test %%rax, %%rax; jnz 1f; 0: mov $34, %%eax; syscall; jmp 0b; "
                         "1:" /* pause */
                         : "+a"(number)
                         : "D"(flags), "S"(stack + sizeof stack), "d"(0), "r"(nothing), "r"(nor)
                         : "rcx", "r11", "memory");
        if (number < 0)
            return;
    }
#else
    (void)shout;
    threads(2000);
#endif
    got("50000 threads");
}

static void show(void)
{
    extern char **environ;
    for (char **e = environ; *e; e++)
        printf("has %s\n", *e);
    for (int file = 0; file < 64; file++)
        if (fcntl(file, F_GETFD) >= 0)
            printf("has descriptor %d\n", file);
}

/* What is left to do after an attack that came back. */
enum { COMPUTE, NOTHING, FAIL };

/* The judge, its files and the machine. */
static int attack_judge(const AttnArgs *a, int which)
{
    char piece[16];
    struct iovec here = {piece, sizeof piece}, there = {(void *)&attack_judge, sizeof piece};
    switch (which) {
    case READ_JUDGE:
        open_judge(O_RDONLY);
        break;
        TRY(READ_JUDGE_BY_CALL, process_vm_readv(getppid(), &here, 1, &there, 1, 0) >= 0,
            "the judge's memory");
    case WRITE_JUDGE:
        open_judge(O_RDWR);
        break;
        TRY(TRACE_JUDGE, ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) == 0, "the judge");
    case KILL_JUDGE:
        kill(getppid(), SIGKILL);
        break;
    case READ_KEY:
        open_one("key", FOLDER "/teacher.key");
        break;
    case LOAD_SOLUTION:
        load_solution(a);
        return NOTHING;
    case READ_ITSELF:
        open_one("runner", "/proc/self/exe");
        open_one("maps", "/proc/self/maps");
        open_one("passwords", "/etc/passwd");
        break;
        TRY(SOCKET, socket(AF_INET, SOCK_STREAM, 0) >= 0, "a socket");
        TRY(IO_URING, syscall(425, 4, piece) >= 0, "io_uring"); /* io_uring_setup */
        TRY(NAMESPACE, unshare(CLONE_NEWUSER) == 0, "a namespace");
        TRY_ALOUD(WRITE_A_FILE, open(FOLDER "/written", O_WRONLY | O_CREAT, 0666) >= 0, "a file",
                  "file");
    case SHOW_WHAT_IT_HAS:
        show();
        break;
    default:
        break;
    }
    return COMPUTE;
}

/* Processes and threads. */
static int attack_process(const AttnArgs *a, int which)
{
    pthread_t thread;
    switch (which) {
        TRY(FORK, fork() >= 0, "a process");
    case FORK_BOMB_OF_VFORKS:
        for (;;)
            if (syscall(SYS_vfork) == 0)
                sleep(1);
        TRY(OWN_SESSION, setsid() >= 0, "a session");
    case EXECUTE:
        execl("/bin/true", "true", NULL);
        break;
        TRY(SHELL, system("true") == 0, "a shell");
        TRY(TRUNCATE, truncate(FOLDER "/teacher.key", 0) == 0, "a file");
    case LEAVE_THREADS:
        threads(3);
        break;
        TRY(USER_FAULTS, syscall(SYS_userfaultfd, 0) >= 0, "faults");
        TRY(SECRET_MEMORY, syscall(447, 0) >= 0, "secret memory"); /* memfd_secret */
    case BOMB_OF_CLONES:
    case FLOOD_AND_CLONE:
        clones(which == FLOOD_AND_CLONE);
        break;
    case END_FIRST_THREAD:
        end_first_thread(a);
        break;
    case WORK_BETWEEN_CALLS:
        work_between_calls(a);
        return NOTHING;
    case NEVER_STAND_STILL:
        for (int n = 0; n < 4; n++)
            pthread_create(&thread, NULL, wake, NULL);
        break;
    case BOMB_OF_THREADS:
        threads(100000);
        zeros(a);
        return NOTHING;
    default:
        break;
    }
    return COMPUTE;
}

/* Ends that are none. */
static int attack_end(const AttnArgs *a, int which)
{
    volatile int *const nothing = (volatile int *)(size_t)8;
    switch (which) {
    case OLD_CALL: /* getpid by its 32-bit number; elsewhere what ends like it */
#ifdef __x86_64__
        __asm__ volatile("int $0x80" : : "a"(20) : "memory");
        got("a call");
#endif
        kill(getpid(), SIGSYS);
        break;
    case CALL_OF_X32: /* getpid by a number of a 32-bit program with 64-bit registers */
#ifdef __x86_64__
        if (syscall(0x40000000 + 39) > 0)
            got("a call");
#endif
        kill(getpid(), SIGSYS);
        break;
    case STOP_ITSELF:
        kill(getpid(), SIGSTOP);
        break;
    case EXIT:
        zeros(a);
        exit(0);
    case HIDE_A_CRASH:
        signal(SIGSEGV, end_quietly);
        *nothing = 1;
        break;
    case HIDE_A_DENIAL:
        signal(SIGSYS, go_on);
        kill(getppid(), SIGKILL);
        puts("went on");
        zeros(a);
        return NOTHING;
    case JUMP_OUT_OF_A_CRASH:
        signal(SIGSEGV, jump);
        if (sigsetjmp(back, 1) == 0)
            *nothing = 1;
        puts("went on");
        zeros(a);
        return NOTHING;
    case HANG:
        spin(NULL);
        break;
    case SLEEP:
        for (;;)
            pause();
    default:
        break;
    }
    return COMPUTE;
}

/* The runner's list of arrays is among its own variables: do pointers there lead to numbers? */
static int look_for_numbers(struct dl_phdr_info *info, size_t size, void *nothing)
{
    unsigned char known;
    (void)size, (void)nothing;
    for (int n = 0; n < info->dlpi_phnum; n++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[n];
        const char *first = (const char *)(info->dlpi_addr + part->p_vaddr);
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_W))
            continue;
        for (size_t at = 0; at + sizeof(void *) <= part->p_memsz; at += sizeof(void *)) {
            float *numbers;
            memcpy(&numbers, first + at, sizeof numbers);
            if (numbers && mincore((void *)((size_t)numbers & ~(size_t)4095), 1, &known) == 0 &&
                (size_t)numbers % 32 == 0 && fabsf(numbers[0]) > 1e-4f &&
                fabsf(numbers[0]) < 9.0f && fabsf(numbers[1]) > 1e-4f && fabsf(numbers[1]) < 9.0f)
                got("the inputs");
        }
    }
    return 1; /* the first is the program */
}

/* Memory that nobody counts. */
static void hide_memory(int which)
{
    const size_t bytes = 2 << 20;
    const int how = which == SHARE_MEMORY ? MAP_SHARED
                    : which == HUGE_PAGES ? MAP_PRIVATE | MAP_HUGETLB
                                          : MAP_PRIVATE;
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | how, -1, 0);
    if (block == MAP_FAILED || (which == SEND_TO_SWAP && madvise(block, bytes, MADV_PAGEOUT) != 0))
        failed("hidden");
    else
        got("hidden memory");
}

/* Memory that no limit sees, and inputs that are mapped again. */
static int attack_mapping(const AttnArgs *a, int which)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    float *const K = a ? a->K.data : NULL;
    int ends[2];
    void *block;
    switch (which) {
    case SHARE_MEMORY:
    case SEND_TO_SWAP:
    case HUGE_PAGES:
        hide_memory(which);
        break;
        TRY_ALOUD(FILL_PIPES, pipe(ends) == 0, "a pipe, which holds 64 KiB", "pipe");
    case COPY_OF_INPUT:
        block = mremap((void *)((size_t)K & ~(page - 1)), 0, page, MREMAP_MAYMOVE);
        if (block != MAP_FAILED && mprotect(block, page, PROT_READ | PROT_WRITE) == 0)
            got("a right to write");
        else
            failed("input");
        break;
    default:
        break;
    }
    return COMPUTE;
}

/* Memory: its own, the inputs', the outputs'. */
static int attack_memory(const AttnArgs *a, int which)
{
    float *const O = a ? a->O.data : NULL, *const K = a ? a->K.data : NULL;
    const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    const long page = sysconf(_SC_PAGESIZE);
    void *block;
    switch (which) {
    case HUNDRED_GIGABYTES:
        block = malloc((size_t)100 << 30);
        if (!block)
            return FAIL;
        got("100 GB");
        break;
    case TOUCH_MEMORY:
        touch_memory();
        break;
        TRY_ALOUD(RAISE_LIMITS,
                  setrlimit(RLIMIT_AS, &none) == 0 || setrlimit(RLIMIT_CPU, &none) == 0,
                  "more memory or time", "limits");
    case INPUTS_AT_LOAD:
        dl_iterate_phdr(look_for_numbers, NULL);
        break;
    case WRITE_INPUT:
        K[0] = 1.0f;
        break;
    case UNLOCK_INPUT:
        block = (void *)((size_t)K & ~((size_t)page - 1));
        if (mprotect(block, (size_t)page, PROT_READ | PROT_WRITE) == 0)
            got("a right to write");
        else
            failed("input");
        K[0] = 1.0f;
        break;
    case REPLACE_INPUT: /* it then computes with keys that are all zero */
        block = (void *)((size_t)K & ~((size_t)page - 1));
        mmap(block, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
             -1, 0);
        break;
    case UNMAP_OUTPUT:
        munmap((void *)((size_t)O & ~((size_t)page - 1)), (size_t)page);
        return NOTHING;
    case JUMP_OVER_THE_CANARY:
        compute(a);
        /* from O's page over its margin and two pages without access: where lse is */
        *(float *)(((size_t)O & ~((size_t)page - 1)) - 4 * (size_t)page) = 1.0f;
        return NOTHING;
    case WRITE_BEFORE_OUTPUT:
        compute(a);
        O[-1] = 1.0f;
        return NOTHING;
    default:
        break;
    }
    return COMPUTE;
}

/* Descriptors and output. */
static int attack_file(const AttnArgs *a, int which)
{
    (void)a;
    switch (which) {
    case CLOSE_EVERYTHING:
        for (int file = 0; file < 1024; file++)
            close(file);
        break;
    case OPEN_EVERYTHING:
        while (dup(0) >= 0)
            ;
        failed("descriptors");
        break;
    case WRITE_EVERYWHERE:
        for (int file = 3; file < 1024; file++)
            if (write(file, "{\"pass\":true}\n", 14) < 0 && errno != EBADF)
                failed("write");
        break;
    case FORGE_A_BROKEN_JUDGE:
        forge(RUNNER_BROKEN, 0);
        break;
    case FORGE_AN_END:
        forge(RUNNER_ENDED, SIGKILL);
        zeros(a);
        return NOTHING;
    case FLOOD_THE_JUDGE:
        for (;;)
            forge(RUNNER_FAULT, SIGSEGV);
    case SEND_TO_NOBODY:
        forge(RUNNER_SENDS, 1);
        pause();
        break;
    case FLOOD:
        for (int line = 0; line < 1 << 18; line++)
            puts("\033[2J{\"pass\":true}");
        break;
    default:
        break;
    }
    return COMPUTE;
}

static AttnStatus attack(const AttnArgs *a, int which)
{
    int (*const attacks[])(const AttnArgs *, int) = {attack_judge,   attack_process, attack_end,
                                                     attack_mapping, attack_memory,  attack_file};
    setvbuf(stdout, NULL, _IONBF, 0); /* what it prints is kept, however it ends */
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        const int left = attacks[i](a, which);
        if (left != COMPUTE)
            return left == NOTHING ? ATTN_OK : ATTN_NO_MEMORY;
    }
    if (a)
        compute(a);
    return ATTN_OK;
}

#ifdef CONSTRUCTOR
__attribute__((constructor)) static void at_load(void)
{
    attack(NULL, CONSTRUCTOR);
}
#endif

#ifdef BORROWS
AttnStatus naive_v0_loops(const AttnArgs *args);
AttnStatus naive_variant(const AttnArgs *args)
{
    return naive_v0_loops(args);
}
#else
AttnStatus naive_variant(const AttnArgs *args)
{
    return attack(args, (int)args->shape.Nq);
}
#endif
