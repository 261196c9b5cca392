/* SPDX-License-Identifier: MIT
 *
 * run_so.c: a user's own implementation, in a child process. See run.h.
 *
 * The child has the problem by copy-on-write, so nothing it does to memory reaches this process.
 * Its inputs are read-only pages and its outputs end at guard pages: a stray access is a SIGSEGV
 * at an address that tells what went wrong. When it is done it copies its outputs into memory
 * shared with the parent and sets `finished`; a child that dies or exits before has not finished,
 * whatever its exit status says. The parent judges the copies like any other output.
 */
#define _GNU_SOURCE /* sigabbrev_np */
#include "run_internal.h"

#include "alloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OUTPUTS = 5, INPUTS = 5 };

/* Shared by parent and child; the outputs' bytes follow. */
typedef struct Record {
    volatile int finished; /* the child's last word */
    AttnStatus status;
    Samples forward, backward;
    size_t peak_bytes, leaked_bytes;
    int storage_intact;
    char failure[512];
    void *volatile fault; /* address of a SIGSEGV or SIGBUS */
} Record;

typedef struct Child {
    const char *path, *stage;
    int abi_version;
    const CliCase *c;
    Outcome *out;
    Record *record;
} Child;

static Record *fault_record; /* for the signal handler, in the child only */

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    fault_record->fault = info->si_addr;
    signal(number, SIG_DFL);
    raise(number);
}

static void outputs_of(Outcome *out, Storage *all[OUTPUTS])
{
    all[0] = &out->O;
    all[1] = &out->lse;
    all[2] = &out->dQ;
    all[3] = &out->dK;
    all[4] = &out->dV;
}

static void inputs_of(const Problem *p, const Storage *all[INPUTS])
{
    all[0] = &p->Q;
    all[1] = &p->K;
    all[2] = &p->V;
    all[3] = &p->dO;
    all[4] = &p->mask;
}

/* dlsym gives a void *, which ISO C does not let us cast to a function. */
static AttnFn find_function(void *library, const char *stage, const char *suffix)
{
    char name[128];
    void *symbol;
    AttnFn f = NULL;
    snprintf(name, sizeof name, "%s_%s", stage, suffix);
    symbol = dlsym(library, name);
    if (symbol)
        memcpy(&f, &symbol, sizeof f);
    return f;
}

/* Runs in a thread of its own: OpenMP keeps its workers by the thread that started them, and those
 * that the parent's main thread started do not exist in a forked child. */
static void *child_work(void *argument)
{
    Child *k = argument;
    Record *r = k->record;
    char path[4096], name[128];
    void *library;
    const int *version;
    AttnFn forward, backward = NULL;
    snprintf(path, sizeof path, "%s%s", strchr(k->path, '/') ? "" : "./", k->path);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(r->failure, sizeof r->failure, "it cannot be loaded: %s", dlerror());
        return NULL;
    }
    snprintf(name, sizeof name, "%s_abi_version", k->stage);
    version = dlsym(library, name);
    if (!version || *version != k->abi_version) {
        if (version)
            snprintf(r->failure, sizeof r->failure, "%s is %d, accepted is %d", name, *version,
                     k->abi_version);
        else
            snprintf(r->failure, sizeof r->failure, "it exports no int %s, accepted is %d", name,
                     k->abi_version);
        return NULL;
    }
    forward = find_function(library, k->stage, "variant");
    if (k->c->backward)
        backward = find_function(library, k->stage, "variant_backward");
    if (!forward || (k->c->backward && !backward)) {
        snprintf(r->failure, sizeof r->failure, "it exports no function %s_variant%s", k->stage,
                 forward ? "_backward, which --backward needs" : "");
        return NULL;
    }
    r->status = run_host(k->out, k->c, forward, backward);
    return k;
}

static void limit(int what, rlim_t value)
{
    struct rlimit both = {value, value};
    setrlimit(what, &both);
}

static rlim_t address_space_now(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%lu", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void child_limits(const Problem *p, const CliCase *c, double seconds, int64_t mebibytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const Storage *in[INPUTS];
    struct sigaction action;
    int i;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(STDERR_FILENO, STDOUT_FILENO); /* stdout is the table's */
    inputs_of(p, in);
    for (i = 0; i < INPUTS; i++)
        if (in[i]->mapping)
            mprotect((char *)in[i]->mapping + page, in[i]->mapping_bytes - 2 * page, PROT_READ);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, (rlim_t)64 << 20);
    limit(RLIMIT_CPU, (rlim_t)(seconds * c->threads) + 2);
    limit(RLIMIT_AS, address_space_now() + ((rlim_t)mebibytes << 20));
}

static void child_main(Child *k, const Problem *p, double seconds, int64_t mebibytes)
{
    Record *r = k->record;
    unsigned char *to = (unsigned char *)(r + 1);
    Storage *all[OUTPUTS];
    pthread_t thread;
    void *done = NULL;
    int i;
    fault_record = r;
    child_limits(p, k->c, seconds, mebibytes);
    if (pthread_create(&thread, NULL, child_work, k) != 0 || pthread_join(thread, &done) != 0)
        snprintf(r->failure, sizeof r->failure, "its thread cannot be started");
    if (done) {
        outputs_of(k->out, all);
        for (i = 0; i < OUTPUTS; i++) {
            memcpy(to, all[i]->base, all[i]->bytes);
            to += all[i]->bytes;
        }
        r->forward = k->out->forward;
        r->backward = k->out->backward;
        r->peak_bytes = k->out->peak_bytes;
        r->leaked_bytes = k->out->leaked_bytes;
        r->storage_intact = k->out->storage_intact;
        r->finished = 1;
    }
    _exit(0); /* no atexit handlers, no flush of buffers that are the parent's */
}

/* What stands at an address where the child faulted. */
static void explain_fault(const Record *r, const Problem *p, const Outcome *out, char *text,
                          size_t size)
{
    static const char *const in_names[INPUTS] = {"Q", "K", "V", "dO", "the mask"};
    static const char *const out_names[OUTPUTS] = {"O", "lse", "dQ", "dK", "dV"};
    const Storage *in[INPUTS];
    Storage *outputs[OUTPUTS];
    const char *fault = r->fault;
    int i;
    inputs_of(p, in);
    outputs_of((Outcome *)out, outputs);
    for (i = 0; i < INPUTS + OUTPUTS; i++) {
        const Storage *s = i < INPUTS ? in[i] : outputs[i - INPUTS];
        const char *name = i < INPUTS ? in_names[i] : out_names[i - INPUTS];
        const char *first = s->mapping;
        if (!first || fault < first || fault >= first + s->mapping_bytes)
            continue;
        if (fault >= (const char *)s->base + s->bytes)
            snprintf(text, size, ": an access behind the end of %s", name);
        else if (fault < (const char *)s->base && i >= INPUTS)
            snprintf(text, size, ": an access before the start of %s", name);
        else if (fault < first + sysconf(_SC_PAGESIZE))
            snprintf(text, size, ": an access before the start of %s", name);
        else
            snprintf(text, size, ": it wrote to its input %s", name);
        return;
    }
    snprintf(text, size, ": an access to address %p", (const void *)fault);
}

/* Waits until the child ends or the time is over: 1 ended, 0 killed. */
static int wait_for(pid_t pid, double seconds, int *how)
{
    const double end = bench_now_ms() + seconds * 1e3;
    struct timespec pause = {0, 200000};
    int ended;
    while ((ended = waitpid(pid, how, WNOHANG) == pid) == 0 && bench_now_ms() < end) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 5000000)
            pause.tv_nsec *= 2;
    }
    kill(-pid, SIGKILL); /* and whatever it started */
    if (!ended)
        while (waitpid(pid, how, 0) < 0 && errno == EINTR)
            ;
    return ended;
}

static void explain_death(const Record *r, const Problem *p, Outcome *out, int ended, int how,
                          double seconds)
{
    char fault[96] = "";
    if (!ended || (WIFSIGNALED(how) && WTERMSIG(how) == SIGXCPU))
        snprintf(out->failure, sizeof out->failure,
                 "it did not finish within %g s (--so-time) and was killed", seconds);
    else if (WIFSIGNALED(how)) {
        const int number = WTERMSIG(how);
        if (r->fault)
            explain_fault(r, p, out, fault, sizeof fault);
        snprintf(out->failure, sizeof out->failure, "it crashed with SIG%s (%s)%s",
                 sigabbrev_np(number) ? sigabbrev_np(number) : "?", strsignal(number), fault);
    } else if (r->failure[0])
        memcpy(out->failure, r->failure, sizeof out->failure);
    else
        snprintf(out->failure, sizeof out->failure,
                 "it ended the process with exit(%d) instead of returning", WEXITSTATUS(how));
}

/* The child's word and its outputs into the parent's outcome. */
static int take_outcome(const Record *r, Outcome *out)
{
    const unsigned char *from = (const unsigned char *)(r + 1);
    Storage *all[OUTPUTS];
    int i;
    outputs_of(out, all);
    for (i = 0; i < OUTPUTS; i++) {
        memcpy(all[i]->base, from, all[i]->bytes);
        from += all[i]->bytes;
    }
    out->status = r->status;
    out->forward = r->forward;
    out->backward = r->backward;
    out->peak_bytes = r->peak_bytes;
    out->leaked_bytes = r->leaked_bytes;
    out->storage_intact = r->storage_intact;
    if (out->status == ATTN_OK) {
        run_finished(out);
        return EXIT_OK;
    }
    if (out->status == ATTN_SKIP) {
        snprintf(out->failure, sizeof out->failure, "it answers that it cannot compute this case");
        return EXIT_OK;
    }
    snprintf(out->failure, sizeof out->failure, "it returned status %d, accepted is ATTN_OK",
             (int)out->status);
    return EXIT_WRONG;
}

int run_variant_so(Outcome *out, const Stage *stage, const Problem *p, const CliCase *c,
                   double seconds, int64_t mebibytes)
{
    Storage *all[OUTPUTS];
    size_t bytes = sizeof(Record);
    Child k = {c->variant_so, stage->name, stage->abi_version, c, out, NULL};
    int i, how = 0, ended, status = outcome_make(out, p, c);
    pid_t pid = -1;
    if (status == EXIT_OK) {
        outputs_of(out, all);
        for (i = 0; i < OUTPUTS; i++)
            bytes += all[i]->bytes;
        k.record = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        fflush(NULL);
        pid = k.record == MAP_FAILED ? -1 : fork();
    }
    if (pid == 0) {
        setpgid(0, 0);
        child_main(&k, p, seconds, mebibytes);
    }
    if (pid < 0) {
        if (status == EXIT_OK && k.record != MAP_FAILED)
            munmap(k.record, bytes);
        out->status = ATTN_NO_MEMORY;
        cli_refuse("--variant-so: found no memory or no process for %s, accepted are smaller sizes",
                   c->variant_so);
        return EXIT_RUNTIME;
    }
    setpgid(pid, pid); /* also here: whoever comes first, kill(-pid) is right */
    ended = wait_for(pid, seconds, &how);
    if (ended && k.record->finished && WIFEXITED(how))
        status = take_outcome(k.record, out);
    else {
        explain_death(k.record, p, out, ended, how, seconds);
        status = EXIT_WRONG;
    }
    if (status == EXIT_WRONG)
        cli_refuse("%s: %s", c->variant_so, out->failure);
    munmap(k.record, bytes);
    return status;
}
