/* SPDX-License-Identifier: MIT
 *
 * isolate.c: the judge's side of a run. See isolate.h.
 *
 * The arrays travel in two memory files, inputs and outputs, each array at the end of its pages:
 *
 *     | margin: a page and the rest of one, 0xFF | bytes of array 0 | margin | bytes of array 1 |
 *
 * The runner maps each piece between two pages without access. Inputs are written when the library
 * is there, so that its constructors cannot compute in time that nobody measures, and then sealed:
 * no write reaches them, whatever rights their pages get. The judge has its own inputs; nobody asks
 * the runner's.
 *
 * While a runner works the judge sleeps in poll: on the control socket, on the pipe with the
 * submission's output, and on the process itself.
 *
 * Interface: isolate.h.
 */
#define _GNU_SOURCE /* memfd_create, sigabbrev_np */
#include "course/isolate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc.h"
#include "attn_config.h"
#include "course/sandbox.h"
#include "harness/bench/bench.h"

/* Pieces of output or replies at a time: who floods us is late all the same. */
enum { MANY = 64, NEAR_NULL = 1 << 20 };
#define SWEEP_MS 6000.0 /* runner_supervise kills what is left; longer than it takes at most */
#define STOP_MS  1000.0 /* a process that takes longer to stop is prevented from it */
#define WATCH_MS 20.0   /* between looks at the number of threads */
enum { MOST_THREADS = 1024 };
#define MOST_WAITED 9.0 /* times a submission's limit of time, for a processor that others have */

struct Isolate {
    const IsolateTask *task;
    IsolateResult *result;
    RunnerOpen opened;
    int inputs, outputs, library; /* files */
    int inputs_to_read;           /* the runner's */
    unsigned char *written;       /* the outputs' file, mapped */
    size_t written_bytes;
    int control, output, process; /* ends that are the judge's; -1: closed. process: a pidfd */
    pid_t pid, worker;            /* the process that was started; the one with the submission */
    int ended, how, how_is_told;  /* how: as waitpid has it; a supervisor tells it */
    int stopped;                  /* by SIGSTOP: nothing of it runs */
    RunnerReply last;             /* REFUSES, BROKEN, FAULT or DENIED: why it ended */
    double deadline, watched_ms;
    double waited_ms;   /* for a processor that others had; the deadline does not count it */
    int loads;          /* the submission's code may run */
    int late;           /* it was killed because the time was over */
    size_t base_bytes;  /* memory before the library was loaded */
    double base_cpu_ms; /* processor time when it was there */
    size_t shown;       /* characters of its output that are kept */
};

/* --- small things ------------------------------------------------------------------------------*/

static int finish(Isolate *s, IsolateEnd end, const char *sentence)
{
    s->result->end = end;
    if (sentence != s->result->sentence)
        snprintf(s->result->sentence, sizeof s->result->sentence, "%s", sentence);
    return 0;
}

int isolate_strict_here(char *why, size_t size)
{
    return sandbox_here(why, size);
}

/* The least limit of a cgroup and those above it, in bytes. */
static int64_t least_limit(const char *root, char *group, const char *file)
{
    int64_t least = INT64_MAX;
    char path[PATH_MAX], *slash;
    for (;;) {
        int64_t bytes;
        FILE *f;
        snprintf(path, sizeof path, "%s%s/%s", root, group, file);
        if ((f = fopen(path, "r")) != NULL) {
            if (fscanf(f, "%" SCNd64, &bytes) == 1 && bytes < least) /* "max" is no number */
                least = bytes;
            fclose(f);
        }
        if (!(slash = strrchr(group, '/')))
            return least;
        *slash = 0;
    }
}

/* Half of what the cgroups of this process allow, in MiB. */
static int64_t half_of_cgroup(void)
{
    int64_t least = INT64_MAX;
    char line[PATH_MAX];
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof line, f)) { /* "0::/group", or "4:memory:/group" */
        char *kind = strchr(line, ':'), *group = kind ? strchr(kind + 1, ':') : NULL;
        int64_t found = INT64_MAX;
        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (kind[1] == 0)
            found = least_limit("/sys/fs/cgroup", group, "memory.max");
        else if (strcmp(kind + 1, "memory") == 0)
            found = least_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
        least = found < least ? found : least;
    }
    if (f)
        fclose(f);
    return least / 2 >> 20 > 0 ? least / 2 >> 20 : 1;
}

/* A number from /proc/PID/status, 0: there is none. */
static size_t status_of(pid_t pid, const char *format)
{
    char path[64], line[256];
    size_t number = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    if (!(f = fopen(path, "r")))
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, format, &number) == 1)
            break;
    fclose(f);
    return number;
}

/* The most memory at once. 0: the process is gone, or its first thread is, with which the kernel
 * shows it. */
static size_t high_water(pid_t pid)
{
    return status_of(pid, "VmHWM: %zu") << 10;
}

/* Of all threads of a process, also of those that have ended; 0: it is gone. */
static double processor_ms(pid_t pid)
{
    struct timespec t = {0, 0};
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return 0.0;
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* How long a process could have run and others had the processor: the most of its threads. */
static double waited_ms(pid_t pid)
{
    char path[64];
    const struct dirent *entry;
    double most = 0.0;
    DIR *threads;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    if (!(threads = opendir(path)))
        return 0.0;
    while ((entry = readdir(threads)) != NULL) {
        char name[340];
        double ns = 0.0;
        FILE *f;
        snprintf(name, sizeof name, "%s/%s/schedstat", path, entry->d_name);
        if ((f = fopen(name, "r")) == NULL)
            continue;
        if (fscanf(f, "%*u %lf", &ns) == 1 && 1e-6 * ns > most)
            most = 1e-6 * ns;
        fclose(f);
    }
    closedir(threads);
    return most;
}

/* On a busy machine a limit of time is one of the submission's own: what others took of it is
 * added, up to ten times in all. What its own threads take from each other is not. */
static double time_left(Isolate *s)
{
    const double limit_ms = 1e3 * s->task->seconds, now = bench_now_ms();
    if (s->deadline + s->waited_ms <= now && !s->late) {
        const pid_t pid = s->worker > 0 ? s->worker : s->pid;
        const double own = processor_ms(pid) / s->task->threads;
        const double others = fmin(waited_ms(pid), now - s->deadline + limit_ms - own);
        s->waited_ms = fmax(0.0, fmin(others, MOST_WAITED * limit_ms));
    }
    return s->deadline + s->waited_ms - now;
}

/* Nobody of the same user may read this process's memory while a runner lives. Several threads may
 * judge at the same time. */
static void hide(int more)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int runners;
    struct sigaction children;
    pthread_mutex_lock(&lock);
    runners += more;
    prctl(PR_SET_DUMPABLE, runners == 0, 0, 0, 0);
    sigaction(SIGCHLD, NULL, &children);
    if (children.sa_handler == SIG_IGN) /* its starter's wish; runners could not be waited for */
        signal(SIGCHLD, SIG_DFL);
    pthread_mutex_unlock(&lock);
}

/* --- memory files ------------------------------------------------------------------------------*/

static void plan_arrays(Isolate *s)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t at[2] = {0, 0};
    for (int i = 0; i < s->task->array_count; i++) {
        const IsolateArray *from = &s->task->arrays[i];
        RunnerArray *to = &s->opened.arrays[i];
        to->written = from->written != 0;
        to->bytes = from->bytes;
        to->span = (from->bytes + page - 1) / page * page + page;
        to->offset = at[to->written];
        at[to->written] += to->span;
    }
    s->opened.array_count = s->task->array_count;
    s->written_bytes = at[1];
}

static int write_all(int file, const void *data, size_t bytes, off_t at)
{
    const unsigned char *p = data;
    while (bytes > 0) {
        const ssize_t done = pwrite(file, p, bytes, at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        p += done;
        at += done;
        bytes -= (size_t)done;
    }
    return 0;
}

static int fill_inputs(const Isolate *s)
{
    unsigned char margin[1 << 16];
    memset(margin, 0xFF, sizeof margin);
    for (int i = 0; i < s->task->array_count; i++) {
        const RunnerArray *a = &s->opened.arrays[i];
        const size_t before = a->span - a->bytes;
        if (a->written)
            continue;
        for (size_t at = 0; at < before; at += sizeof margin)
            if (write_all(s->inputs, margin,
                          before - at < sizeof margin ? before - at : sizeof margin,
                          (off_t)(a->offset + at)) != 0)
                return -1;
        if (write_all(s->inputs, s->task->arrays[i].data, a->bytes, (off_t)(a->offset + before)) !=
            0)
            return -1;
    }
    return fcntl(s->inputs, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL);
}

/* The same file for reading only. Kernels before 6.7 map no descriptor for writing of a file that
 * is sealed against it, and seal no file that is mapped by one. */
static int open_to_read(int file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* A ring's mailbox is read and written where the runner has it (relay_message): what it holds goes
 * neither way. */
static size_t bytes_to_copy(const Isolate *s, int i)
{
    return s->task->relay && i == s->task->mailbox ? 0 : s->opened.arrays[i].bytes;
}

void isolate_put(Isolate *s)
{
    for (int i = 0; i < s->task->array_count; i++) {
        const RunnerArray *a = &s->opened.arrays[i];
        const size_t before = a->span - a->bytes;
        if (!a->written)
            continue;
        memset(s->written + a->offset, 0xFF, before);
        memcpy(s->written + a->offset + before, s->task->arrays[i].data, bytes_to_copy(s, i));
    }
}

int isolate_take(Isolate *s)
{
    int intact = 1;
    for (int i = 0; i < s->task->array_count; i++) {
        const RunnerArray *a = &s->opened.arrays[i];
        const size_t before = a->span - a->bytes;
        if (!a->written)
            continue;
        for (size_t at = 0; at < before; at++)
            intact &= s->written[a->offset + at] == 0xFF;
        memcpy(s->task->arrays[i].data, s->written + a->offset + before, bytes_to_copy(s, i));
    }
    return intact;
}

static int make_files(Isolate *s)
{
    size_t bytes = 0;
    for (int i = 0; i < s->task->array_count; i++)
        bytes += s->opened.arrays[i].span;
    if (!memory_enough_for(bytes)) /* or it would be killed when it writes to them */
        return -1;
    bytes -= s->written_bytes;
    s->inputs = memfd_create("inputs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    s->outputs = memfd_create("outputs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->inputs < 0 || s->outputs < 0 || ftruncate(s->inputs, (off_t)bytes) != 0 ||
        fcntl(s->inputs, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
        (s->inputs_to_read = open_to_read(s->inputs)) < 0 ||
        ftruncate(s->outputs, (off_t)s->written_bytes) != 0 ||
        fcntl(s->outputs, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return -1;
    if (s->written_bytes > 0) {
        s->written =
            mmap(NULL, s->written_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->outputs, 0);
        if (s->written == MAP_FAILED) {
            s->written = NULL;
            return -1;
        }
    }
    isolate_put(s);
    return 0;
}

/* A sealed copy of the library: what is loaded is what was opened here, and it lies in no folder.
 * -1 with errno. */
static int copy_library(const char *path)
{
    const int from = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat about;
    char piece[1 << 16];
    off_t at = 0;
    ssize_t got = -1;
    int copy = -1;
    if (from >= 0 && fstat(from, &about) == 0 && !S_ISREG(about.st_mode))
        errno = EINVAL;
    else if (from >= 0 && (copy = memfd_create("submission", MFD_CLOEXEC | MFD_ALLOW_SEALING)) >= 0)
        while ((got = read(from, piece, sizeof piece)) > 0 &&
               write_all(copy, piece, (size_t)got, at) == 0)
            at += got;
    if (from >= 0)
        close(from);
    if (copy >= 0 && got == 0 &&
        fcntl(copy, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return copy;
    if (copy >= 0)
        close(copy);
    return -1;
}

/* --- the process -------------------------------------------------------------------------------*/

/* Beside this program, or where the build has it beside this program's folder. */
static int find_runner(char path[PATH_MAX])
{
    static const char *const places[] = {"", "../common/course/", "../../common/course/"};
    char self[PATH_MAX];
    const ssize_t got = readlink("/proc/self/exe", self, sizeof self - 1);
    if (got > 0) {
        const char *folder;
        self[got] = 0;
        folder = dirname(self);
        for (size_t i = 0; i < sizeof places / sizeof *places; i++)
            if (snprintf(path, PATH_MAX, "%s/%sattn_runner", folder, places[i]) < PATH_MAX &&
                access(path, X_OK) == 0)
                return 0;
    }
    snprintf(path, PATH_MAX, "%s/common/course/attn_runner", ATTN_BUILD_DIR);
    return access(path, X_OK);
}

/* Those two and this program's: of a name that is there twice the first one counts. */
static char **with_environment(char *first[2])
{
    size_t count = 0, n = 2;
    char **all;
    while (environ[count])
        count++;
    if ((all = calloc(count + 3, sizeof *all)) != NULL) {
        memcpy(all, first, 2 * sizeof *all);
        for (size_t i = 0; i < count; i++)
            all[n++] = environ[i];
    }
    return all;
}

/* files: descriptors of the runner from 0 on, none of them below RUNNER_FILES. */
static int spawn_runner(Isolate *s, const int files[RUNNER_FILES])
{
    char path[PATH_MAX] = "/proc/self/exe", omp[64], blas[64], folders[PATH_MAX];
    char *const arguments[] = {RUNNER_NAME, (char *)s->task->library, NULL}; /* for ps */
    char *few[] = {omp, blas, NULL, NULL, NULL}, **environment = few;
    const char *wait = getenv("OMP_WAIT_POLICY");
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t how;
    sigset_t none, all;
    int error;
    if (!s->task->setup && find_runner(path) != 0)
        return ENOENT;
    snprintf(omp, sizeof omp, "OMP_NUM_THREADS=%d", s->task->threads);
    /* a program that is linked with it would start its threads before the sandbox is there */
    snprintf(blas, sizeof blas, "OPENBLAS_NUM_THREADS=%d", s->task->setup ? 1 : s->task->threads);
    if (wait && strcasecmp(wait, "passive") == 0) /* threads that wait sleep */
        few[2] = "OMP_WAIT_POLICY=passive";
    if (s->task->setup && getenv("LD_LIBRARY_PATH") &&
        snprintf(folders, sizeof folders, "LD_LIBRARY_PATH=%s", getenv("LD_LIBRARY_PATH")) <
            (int)sizeof folders)
        few[few[2] ? 3 : 2] = folders;
    if (s->task->mode == ISOLATE_OFF && !(environment = with_environment(few)))
        return ENOMEM;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&how);
    for (int i = 0; i < RUNNER_FILES; i++)
        posix_spawn_file_actions_adddup2(&actions, files[i], i);
    /* a session of its own: Linux divides processor time between sessions (autogroup) */
    posix_spawnattr_setflags(&how,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    error = posix_spawn(&s->pid, path, &actions, &how, arguments, environment);
    if (environment != few)
        free(environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&how);
    return error;
}

static int start(Isolate *s)
{
    int control[2] = {-1, -1}, output[2] = {-1, -1}, files[RUNNER_FILES], error = EMFILE, i, ready;
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ready = nothing >= 0 && pipe2(output, O_CLOEXEC) == 0 &&
            socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) == 0;
    const int mine[RUNNER_FILES] = {nothing,           output[1],  output[1], control[1],
                                    s->inputs_to_read, s->outputs, s->library};
    for (i = 0; ready && i < RUNNER_FILES; i++) /* above those that they become */
        ready = (files[i] = fcntl(mine[i], F_DUPFD_CLOEXEC, RUNNER_FILES)) >= 0;
    if (ready) {
        error = spawn_runner(s, files);
        s->process = error ? -1 : (int)syscall(SYS_pidfd_open, s->pid, 0u);
    }
    while (i-- > 0)
        if (files[i] >= 0)
            close(files[i]);
    s->control = control[0];
    s->output = output[0];
    close(nothing);
    close(output[1]);
    close(control[1]);
    if (error)
        s->pid = 0;
    else
        fcntl(s->output, F_SETFL, O_NONBLOCK);
    return error;
}

/* Its output: the first 4 kB are kept, without what would steer a terminal. 0: nothing more now. */
static int take_output(Isolate *s)
{
    char text[4096];
    IsolateResult *r = s->result;
    const ssize_t got = s->output < 0 ? -1 : read(s->output, text, sizeof text);
    for (ssize_t i = 0; i < got; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (s->shown + 1 < sizeof r->output)
            r->output[s->shown++] = (c < 32 && c != '\n' && c != '\t') || c == 127 ? '?' : text[i];
        else
            r->output_cut = 1;
    }
    if (got == 0) { /* nobody can write any more */
        close(s->output);
        s->output = -1;
    }
    return got > 0;
}

static void kill_runner(const Isolate *s)
{
    /* a supervisor kills what is below it, and then ends */
    if (s->pid > 0 && !s->ended)
        kill(s->pid, s->task->mode == ISOLATE_STRICT ? SIGKILL : SIGTERM);
}

/* All threads of the runner stop. Otherwise those that go on after its answer would get time and
 * memory that nobody counts, or write to the outputs while they are taken. 0: it has ended, or its
 * threads prevent it (SIGCONT) and it is killed. */
static int stop_runner(Isolate *s)
{
    const double end = bench_now_ms() + STOP_MS;
    if (!s->opened.strict)
        return 1;
    for (int tries = 0; bench_now_ms() < end; tries++) {
        const struct timespec pause = {0, 20000};
        siginfo_t now = {.si_pid = 0};
        kill(s->pid, SIGSTOP);
        if (waitid(P_PID, (id_t)s->pid, &now, WSTOPPED | WEXITED | WNOHANG | WNOWAIT) == 0 &&
            now.si_pid != 0)
            return s->stopped = now.si_code == CLD_STOPPED;
        if (tries < 100) /* it may share this processor */
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
    if (!s->last.says)
        s->last = (RunnerReply){.says = RUNNER_REFUSES,
                                .text = "its threads do not stop when it has answered"};
    kill_runner(s);
    return 0;
}

static void continue_runner(Isolate *s)
{
    if (s->stopped)
        kill(s->pid, SIGCONT);
    s->stopped = 0;
}

/* A thread takes the kernel's memory, which no limit counts, and one of the machine's numbers for
 * processes. Without them no other submission could be started. */
static void watch_threads(Isolate *s)
{
    const double now = bench_now_ms();
    if (!s->worker || !s->opened.strict || now < s->watched_ms + WATCH_MS)
        return;
    s->watched_ms = now;
    if (status_of(s->worker, "Threads: %zu") <= MOST_THREADS)
        return;
    if (!s->last.says) {
        s->last.says = RUNNER_REFUSES;
        snprintf(s->last.text, sizeof s->last.text, "it started more than %d threads",
                 MOST_THREADS);
    }
    kill_runner(s);
}

static void reap(Isolate *s)
{
    int how;
    if (s->ended || waitpid(s->pid, &how, WNOHANG) != s->pid)
        return;
    s->ended = 1;
    if (!s->how_is_told)
        s->how = how;
}

/* One datagram of the control socket: 1 there was one, 0 none. */
static int take_reply(Isolate *s, RunnerReply *r)
{
    const ssize_t got = s->control < 0 ? -1 : recv(s->control, r, sizeof *r, MSG_DONTWAIT);
    if (got == 0) { /* closed: by the runner's end or by the submission */
        close(s->control);
        s->control = -1;
    }
    if (got <= 0)
        return 0;
    if (got != (ssize_t)sizeof *r)
        *r = (RunnerReply){.says = RUNNER_REFUSES, .text = "it wrote to its judge's socket"};
    r->text[sizeof r->text - 1] = 0;
    for (char *c = r->text; *c; c++)
        *c = (unsigned char)*c < 32 || *c == 127 ? '?' : *c;
    return 1;
}

/* A message of a ring: the task's relay has it, and the runner goes on. 0: it does not. */
static int relay_message(Isolate *s, const RunnerReply *r)
{
    const IsolateTask *task = s->task;
    const RunnerArray *a = &s->opened.arrays[task->mailbox];
    const IsolateMessage message = {.is_send = r->says == RUNNER_SENDS,
                                    .peer = r->number,
                                    .data = s->written + a->offset + (a->span - a->bytes),
                                    .bytes = (size_t)r->address};
    const double begun = bench_now_ms();
    const char go_on = 1;
    if (!task->relay || r->address > a->bytes) {
        s->last = (RunnerReply){.says = RUNNER_REFUSES, .text = "its message is too large"};
        return 0;
    }
    if (!task->relay(task->context, &message)) {
        s->last = (RunnerReply){.says = RUNNER_REFUSES, .text = "its message was refused"};
        return 0;
    }
    s->deadline += bench_now_ms() - begun; /* another rank's time, which has a limit of its own */
    return send(s->control, &go_on, sizeof go_on, MSG_NOSIGNAL) == sizeof go_on;
}

/* What a reply means for this side: 1 it is one that somebody waits for. Once the library is there
 * anything may come from the submission, so then no reply is the machine's fault. */
static int handle_reply(Isolate *s, RunnerReply *r)
{
    switch (r->says) {
    case RUNNER_READY:
    case RUNNER_LOADED:
    case RUNNER_DONE: /* not after something that no runner writes: it is being ended */
        return s->last.says != RUNNER_REFUSES;
    case RUNNER_SENDS:
    case RUNNER_RECEIVES:
        if (!s->ended && !relay_message(s, r))
            kill_runner(s);
        return 0;
    case RUNNER_ENDED:
        if (s->opened.strict)
            return 0; /* nobody but the submission says so */
        s->how = r->number;
        s->how_is_told = 1;
        return 0;
    case RUNNER_FAULT:
    case RUNNER_DENIED:
        break;
    default:
        if (r->says == RUNNER_BROKEN &&
            s->loads) { /* forged: after the library no runner says it */
            r->says = RUNNER_REFUSES;
            snprintf(r->text, sizeof r->text, "it wrote to its judge's socket");
        }
        kill_runner(s);
    }
    if (!s->last.says)
        s->last = *r;
    return 0;
}

/* Waits for READY, LOADED or DONE: 1, or 0 when the runner has ended; then s->last may say why. */
static int next_reply(Isolate *s, RunnerReply *r)
{
    for (;;) {
        const int over = s->ended;
        struct pollfd watched[3] = {
            {s->control, POLLIN, 0}, {s->output, POLLIN, 0}, {s->process, POLLIN, 0}};
        double left = time_left(s);
        if (left <= 0.0 && !over) {
            kill_runner(s);
            if (s->late && left < -SWEEP_MS)
                kill(s->pid, SIGKILL);
            s->late = 1;
            left = 100.0;
        }
        if (s->process < 0 && left > 2.0)
            left = 2.0; /* a kernel before 5.3: look */
        if (!over)
            poll(watched, 3, (int)ceil(fmin(left, WATCH_MS)));
        watch_threads(s);
        for (int i = 0; i < MANY && take_output(s); i++)
            ;
        for (int i = 0; i < MANY && take_reply(s, r); i++)
            if (handle_reply(s, r))
                return 1;
        if (over)
            return 0;
        reap(s);
    }
}

/* --- why it ended ------------------------------------------------------------------------------*/

static void name_place(const Isolate *s, char *text, size_t size)
{
    const RunnerReply *r = &s->last;
    static const char *const places[] = {": it wrote to its input %s",
                                         ": an access behind the end of %s",
                                         ": an access before the start of %s"};
    if (r->array >= 0 && r->array < s->task->array_count && r->place >= 0 && r->place < 3)
        snprintf(text, size, places[r->place], s->task->arrays[r->array].name);
    else if (r->address < NEAR_NULL) /* others are not the same the next time */
        snprintf(text, size, ": an access to address 0x%" PRIx64, r->address);
    else
        snprintf(text, size, ": an access to memory that is not its own");
}

static int explain_signal(Isolate *s, int number)
{
    char place[128] = "", *text = s->result->sentence;
    const size_t size = sizeof s->result->sentence;
    const int told = s->last.says == RUNNER_FAULT && s->last.number == number;
    if (number == SIGXCPU)
        return finish(s, ISOLATE_TIME, "it used more processor time than its limit allows");
    if (number == SIGXFSZ)
        return finish(s, ISOLATE_REFUSED, "it tried to write to a file");
    if (number == SIGSYS) {
        if (s->last.says == RUNNER_DENIED)
            snprintf(text, size, "it tried the system call %.64s, which a submission may not make",
                     s->last.text);
        else
            snprintf(text, size,
                     "it tried a system call that a submission may not make (with its signals "
                     "blocked, as system() does, or by another processor's number)");
        return finish(s, ISOLATE_REFUSED, text);
    }
    if (told && s->last.no_memory && s->last.array < 0) {
        snprintf(text, size,
                 "it used more than %" PRId64
                 " MiB: an allocation was refused, and then it crashed",
                 s->opened.mebibytes);
        return finish(s, ISOLATE_MEMORY, text);
    }
    if (told && (number == SIGSEGV || number == SIGBUS))
        name_place(s, place, sizeof place);
    snprintf(text, size, "it crashed with SIG%s (%s)%s",
             sigabbrev_np(number) ? sigabbrev_np(number) : "?", strsignal(number), place);
    return finish(s, ISOLATE_CRASHED, text);
}

static int explain_end(Isolate *s)
{
    char *text = s->result->sentence;
    const size_t size = sizeof s->result->sentence;
    if (s->late) {
        /* what --total-time has left is no round number: two digits behind the point are enough */
        snprintf(text, size, "it did not finish within %g s and was killed",
                 round(s->task->seconds * 100.0) / 100.0);
        return finish(s, ISOLATE_TIME, text);
    }
    if (s->last.says == RUNNER_BROKEN)
        return finish(s, ISOLATE_BROKEN, s->last.text);
    if (s->last.says == RUNNER_REFUSES)
        return finish(s, ISOLATE_REFUSED, s->last.text);
    if (WIFSIGNALED(s->how))
        return explain_signal(s, WTERMSIG(s->how));
    if (WEXITSTATUS(s->how) == RUNNER_UNHEARD)
        return finish(s, ISOLATE_REFUSED, "it closed the descriptor of its judge's socket");
    snprintf(text, size, "it ended the process with exit(%d) instead of returning",
             WEXITSTATUS(s->how));
    return finish(s, ISOLATE_CRASHED, text);
}

/* --- the judge's calls -------------------------------------------------------------------------*/

static int send_to(const Isolate *s, const void *message, size_t bytes)
{
    return s->control >= 0 && send(s->control, message, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Its answer must be the one that is due: a submission may write to the socket, too. Once the
 * submission is loaded the runner stands still when this returns. */
static int ask(Isolate *s, const void *message, size_t bytes, RunnerSays due, RunnerReply *r)
{
    continue_runner(s);
    if (send_to(s, message, bytes) && next_reply(s, r)) {
        if (r->says == (int)due) {
            if (due == RUNNER_READY || stop_runner(s))
                return 1;
        } else {
            s->last =
                (RunnerReply){.says = RUNNER_REFUSES, .text = "it wrote to its judge's socket"};
            kill_runner(s);
        }
    }
    while (!s->ended && next_reply(s, r))
        ;
    return explain_end(s);
}

static int fill_opened(Isolate *s)
{
    const IsolateTask *task = s->task;
    const int64_t half = half_of_cgroup();
    RunnerOpen *o = &s->opened;
    plan_arrays(s);
    o->strict = task->mode == ISOLATE_STRICT;
    o->threads = task->threads;
    o->no_blas = task->no_blas;
    o->trace = task->trace;
    o->seconds = task->seconds;
    /* off: address space, of which a GPU's driver reserves more than there is memory */
    o->mebibytes = !o->strict || task->mebibytes < half ? task->mebibytes : half;
    o->abi_version = task->abi_version;
    if (task->setup && task->setup_bytes <= sizeof o->setup)
        memcpy(o->setup, task->setup, o->setup_bytes = task->setup_bytes);
    if (task->abi_symbol)
        snprintf(o->abi_symbol, sizeof o->abi_symbol, "%s", task->abi_symbol);
    if (!o->strict && !realpath(task->library, o->library))
        return errno;
    s->library = copy_library(task->library);
    return s->library < 0 ? errno : 0;
}

Isolate *isolate_open(const IsolateTask *task, IsolateResult *result)
{
    Isolate *s = calloc(1, sizeof *s);
    RunnerRequest load = {.bytes = -1};
    RunnerReply r;
    int error;
    memset(result, 0, sizeof *result);
    result->end = ISOLATE_BROKEN;
    snprintf(result->sentence, sizeof result->sentence, "there is no memory for it");
    if (!s)
        return NULL;
    s->task = task;
    s->result = result;
    for (int i = 0; i < task->array_count; i++)
        result->array_bytes += task->arrays[i].bytes;
    s->inputs = s->inputs_to_read = s->outputs = s->library = s->control = s->output = s->process =
        -1;
    s->deadline = bench_now_ms() + task->seconds * 1e3;
    hide(1);
    if (task->mode == ISOLATE_STRICT && !sandbox_here(result->sentence, sizeof result->sentence))
        goto failed;
    if ((error = fill_opened(s)) != 0) {
        snprintf(result->sentence, sizeof result->sentence, "it cannot be read (%s)",
                 strerror(error));
        result->end = ISOLATE_REFUSED;
        goto failed;
    }
    if (make_files(s) != 0)
        goto failed;
    if ((error = start(s)) != 0) {
        snprintf(result->sentence, sizeof result->sentence, "attn_runner cannot be started (%s)",
                 strerror(error));
        goto failed;
    }
    if (!ask(s, &s->opened, sizeof s->opened, RUNNER_READY, &r))
        goto failed;
    s->worker = s->opened.strict ? s->pid : (pid_t)r.number;
    s->base_bytes = high_water(s->worker);
    s->loads = 1;
    if (!ask(s, &load, sizeof load, RUNNER_LOADED, &r))
        goto failed;
    s->base_cpu_ms = processor_ms(s->worker);
    if (fill_inputs(s) != 0) {
        finish(s, ISOLATE_BROKEN, "there is no memory for its inputs");
        goto failed;
    }
    finish(s, ISOLATE_FINISHED, "");
    return s;
failed:
    isolate_close(s);
    return NULL;
}

static int used_is_sane(const RunnerUsed *u)
{
    return u->leaked <= u->peak && u->peak < (size_t)1 << 47 && (u->intact == 0 || u->intact == 1);
}

int isolate_call(Isolate *s, const char *contract, const char *symbol, const void *numbers,
                 size_t bytes)
{
    RunnerRequest request = {.bytes = (int64_t)bytes};
    IsolateResult *out = s->result;
    RunnerReply r;
    size_t now;
    double begun;
    snprintf(request.contract, sizeof request.contract, "%s", contract);
    snprintf(request.symbol, sizeof request.symbol, "%s", symbol);
    if (bytes > sizeof request.numbers)
        return finish(s, ISOLATE_BROKEN, "its case has more numbers than a message");
    memcpy(request.numbers, numbers, bytes);
    begun = bench_now_ms();
    if (!ask(s, &request, sizeof request, RUNNER_DONE, &r))
        return 0;
    out->ms = bench_now_ms() - begun;
    out->processor_ms = processor_ms(s->worker) - s->base_cpu_ms;
    out->waited_ms = s->waited_ms;
    now = high_water(s->worker);
    if (s->base_bytes > 0 && now == 0)
        return finish(s, ISOLATE_REFUSED,
                      "it ended its first thread, without which its memory cannot be measured");
    if (now > s->base_bytes && now - s->base_bytes > out->peak_bytes)
        out->peak_bytes = now - s->base_bytes;
    out->status = r.number;
    out->workspace = r.used;
    if (!used_is_sane(&r.used))
        return finish(s, ISOLATE_REFUSED, "it overwrote its own report");
    if ((r.number != 0 && r.no_memory) || out->peak_bytes >> 20 > (size_t)s->opened.mebibytes) {
        snprintf(
            out->sentence, sizeof out->sentence,
            out->peak_bytes >> 20 > (size_t)s->opened.mebibytes
                ? "it used more than %" PRId64 " MiB"
                : "it returned with errno = ENOMEM, as after an allocation that more than %" PRId64
                  " MiB would need",
            s->opened.mebibytes);
        return finish(s, ISOLATE_MEMORY, out->sentence);
    }
    return 1;
}

void isolate_close(Isolate *s)
{
    const double end = bench_now_ms() + SWEEP_MS;
    const int files[] = {s->inputs,  s->inputs_to_read, s->outputs,
                         s->library, s->control,        s->process};
    kill_runner(s);
    while (s->pid > 0 && !s->ended) {
        struct pollfd gone = {s->process, POLLIN, 0};
        poll(&gone, 1, s->process < 0 ? 1 : 100);
        take_output(s); /* a supervisor that writes does not wait for us */
        reap(s);
        if (bench_now_ms() > end)
            kill(s->pid, SIGKILL);
    }
    for (int i = 0; i < MANY && take_output(s); i++)
        ;
    if (s->output >= 0)
        close(s->output);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] >= 0)
            close(files[i]);
    if (s->written)
        munmap(s->written, s->written_bytes);
    hide(-1);
    free(s);
}

int isolate_run(const IsolateTask *task, const char *contract, const char *symbol,
                const void *numbers, size_t bytes, IsolateResult *result)
{
    Isolate *s = isolate_open(task, result);
    int done;
    if (!s)
        return 0;
    done = isolate_call(s, contract, symbol, numbers, bytes);
    if (done && !isolate_take(s))
        done = finish(s, ISOLATE_CRASHED, "memory outside the outputs was written to");
    isolate_close(s);
    return done;
}
