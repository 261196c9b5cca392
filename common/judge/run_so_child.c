/* SPDX-License-Identifier: MIT
 *
 * run_so_child.c: the child process of --variant-so: limits, read-only inputs, the user's code, and
 * the copy of its outputs into shared memory. See run_so.c.
 */
#define _GNU_SOURCE /* syscall */
#include "judge/run_so_internal.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static SoRecord *fault_record; /* for the signal handler, in the child only */

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    fault_record->fault = info->si_addr;
    signal(number, SIG_DFL);
    raise(number);
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
    SoChild *k = argument;
    SoRecord *r = k->record;
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
    if (k->given_forward) { /* STAGE_ALWAYS_BACKWARD: what it exports is the backward pass */
        backward = forward;
        forward = forward ? k->given_forward : NULL;
    } else if (k->c->backward)
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

/* stdin is empty, stdout and stderr are the parent's pipe, and no other file of the parent's is
 * open: the rows of --json, say, or the table. */
static void child_files(int output)
{
    const int empty = open("/dev/null", O_RDONLY);
    long i, most = sysconf(_SC_OPEN_MAX);
    dup2(output, STDERR_FILENO);
    dup2(output, STDOUT_FILENO);
    if (empty >= 0)
        dup2(empty, STDIN_FILENO);
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0)
        return;
#endif
    for (i = 3; i < (most > 0 ? most : 65536); i++) /* a kernel before 5.9 */
        close((int)i);
}

static void child_limits(const Problem *p, const CliCase *c, double seconds, int64_t mebibytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const Storage *in[RUN_INPUTS];
    struct sigaction action;
    int i;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_inputs(p, in);
    for (i = 0; i < RUN_INPUTS; i++)
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

void so_child_main(SoChild *k, const Problem *p, double seconds, int64_t mebibytes)
{
    SoRecord *r = k->record;
    unsigned char *to = (unsigned char *)(r + 1);
    Storage *all[RUN_OUTPUTS];
    pthread_t thread;
    void *done = NULL;
    int i;
    fault_record = r;
    child_files(k->output);
    child_limits(p, k->c, seconds, mebibytes);
    if (pthread_create(&thread, NULL, child_work, k) != 0 || pthread_join(thread, &done) != 0)
        snprintf(r->failure, sizeof r->failure, "its thread cannot be started");
    if (done) {
        run_outputs(k->out, all);
        for (i = 0; i < RUN_OUTPUTS; i++) {
            memcpy(to, all[i]->base, all[i]->bytes);
            to += all[i]->bytes;
        }
        r->forward = k->out->forward;
        r->backward = k->out->backward;
        r->peak_bytes = k->out->peak_bytes;
        r->peak_backward = k->out->peak_backward;
        r->leaked_bytes = k->out->leaked_bytes;
        r->storage_intact = k->out->storage_intact;
        r->finished = SO_FINISHED;
    }
    _exit(0); /* no atexit handlers, no flush of buffers that are the parent's */
}
