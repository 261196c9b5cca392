/* SPDX-License-Identifier: MIT
 *
 * runner.c: the process in which a submission runs. See isolate.h for what surrounds it.
 *
 * Everything that protects is in place before the submission's first instruction, which is a
 * constructor inside dlopen: limits, sandbox, read-only inputs. From then on the submission shares
 * this process and may do to it what it likes; the judge believes only what it can see itself.
 *
 * Interface: runner.h.
 */
#define _GNU_SOURCE /* close_range */
#include "course/runner.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc.h"
#include "course/runner_trace.h"
#include "course/sandbox.h"

static RunnerOpen opened;
static void *arrays[RUNNER_ARRAYS];
static void *library;

/* --- what it says ------------------------------------------------------------------------------*/

static void reply(const RunnerReply *r)
{
    if (write(RUNNER_CONTROL, r, sizeof *r) != sizeof *r)
        _exit(RUNNER_UNHEARD);
}

static _Noreturn void give_up(RunnerSays says, const char *before, const char *text)
{
    RunnerReply r = {.says = says};
    snprintf(r.text, sizeof r.text, "%s%s", before, text);
    reply(&r);
    _exit(EXIT_FAILURE);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const unsigned char *address = info->si_addr;
    RunnerReply r = {.says = RUNNER_FAULT,
                     .number = number,
                     .no_memory = errno == ENOMEM,
                     .address = (uintptr_t)address,
                     .array = -1};
    (void)context;
    for (int i = 0; i < opened.array_count; i++) {
        const unsigned char *end = (unsigned char *)arrays[i] + opened.arrays[i].bytes;
        const unsigned char *first = end - opened.arrays[i].span;
        if (address >= first - page && address < end + page) {
            r.array = i;
            r.place = address >= end ? 1 : address < first ? 2 : 0;
        }
    }
    if (number == SIGSYS) {
        r.says = RUNNER_DENIED;
        sandbox_call_name(info->si_syscall, r.text, sizeof r.text);
    }
    reply(&r);
    signal(number, SIG_DFL);
    raise(number);
}

static void name_faults(void)
{
    static unsigned char room[1 << 16]; /* a stack that ran over cannot hold the handler's frame */
    const stack_t stack = {room, 0, sizeof room};
    const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
    struct sigaction action;
    sigaltstack(&stack, NULL);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}

/* --- before it is loaded -----------------------------------------------------------------------*/

static void *map_array(const RunnerArray *a)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const int file = a->written ? RUNNER_OUTPUTS : RUNNER_INPUTS;
    const int rights = a->written ? PROT_READ | PROT_WRITE : PROT_READ;
    unsigned char *room =
        mmap(NULL, a->span + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED ||
        mmap(room + page, a->span, rights, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file,
             (off_t)a->offset) == MAP_FAILED)
        give_up(RUNNER_BROKEN, "no memory for the arrays: ", strerror(errno));
    return room + page + a->span - a->bytes;
}

static void prepare(void)
{
    RunnerReply ready = {.says = RUNNER_READY};
    char why[256];
    int i;
    for (i = 0; i < opened.array_count; i++)
        arrays[i] = map_array(&opened.arrays[i]);
    close(RUNNER_INPUTS);
    close(RUNNER_OUTPUTS);
    name_faults();
    sandbox_die_first();
    sandbox_limits(opened.seconds, opened.threads, opened.mebibytes, opened.strict);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (opened.strict && !sandbox_enter(opened.no_blas, why, sizeof why))
        give_up(RUNNER_BROKEN, "", why);
    ready.number = (int)getpid();
    reply(&ready);
}

/* --- the submission ----------------------------------------------------------------------------*/

/* dlopen by descriptor: the file that the judge opened, whatever the path leads to now. */
static void load(void)
{
    static const char by_descriptor[] = "/proc/self/fd/6", in_chroot[] = "/6";
    const char *found = access(by_descriptor, R_OK) == 0 ? by_descriptor : in_chroot;
    const char *path = opened.library[0] ? opened.library : found, *said;
    const size_t known = strlen(path);
    const RunnerReply loaded = {.says = RUNNER_LOADED};
    const int *version;
    char text[256];
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        said = dlerror();
        if (strncmp(said, path, known) == 0 && said[known] == ':')
            said += known + 2;
        give_up(RUNNER_REFUSES, "it cannot be loaded: ", said);
    }
    close(RUNNER_LIBRARY);
    version = opened.abi_symbol[0] ? dlsym(library, opened.abi_symbol) : NULL;
    if (version && *version != opened.abi_version) {
        snprintf(text, sizeof text, "%s is %d, accepted is %d", opened.abi_symbol, *version,
                 opened.abi_version);
        give_up(RUNNER_REFUSES, "", text);
    }
    reply(&loaded);
}

void *runner_pointer(const RunnerCall *call, RunnerPointer p)
{
    const int array = (int)(p >> 48) - 1;
    return p == 0 || array >= call->array_count
               ? NULL
               : (unsigned char *)call->arrays[array] + (p & ((UINT64_C(1) << 48) - 1));
}

static void serve_call(const RunnerRequest *request)
{
    const RunnerContract *contract = runner_contract(request->contract);
    RunnerCall call = {NULL, request->numbers, (size_t)request->bytes, arrays, opened.array_count};
    RunnerReply done = {.says = RUNNER_DONE};
    size_t live;
    if (!contract)
        give_up(RUNNER_BROKEN, "the runner has no contract ", request->contract);
    call.function = dlsym(library, request->symbol);
    if (!call.function)
        give_up(RUNNER_REFUSES, "it exports no function ", request->symbol);
    runner_trace_open(opened.trace ? arrays[opened.trace - 1] : NULL,
                      opened.trace ? opened.arrays[opened.trace - 1].bytes : 0);
    workspace_reset_peak();
    live = workspace_live();
    errno = 0;
    done.number = contract->call(&call);
    done.no_memory = errno == ENOMEM;
    done.used.peak = workspace_peak() - live;
    done.used.leaked = workspace_live() > live ? workspace_live() - live : 0;
    done.used.intact = workspace_intact();
    done.used.traced = runner_traced();
    fflush(NULL); /* what it printed is its judge's to show */
    reply(&done);
}

static _Noreturn void serve(void)
{
    RunnerRequest request;
    ssize_t got;
    while ((got = read(RUNNER_CONTROL, &request, sizeof request)) == (ssize_t)sizeof request ||
           (got < 0 && errno == EINTR))
        if (got < 0)
            continue;
        else if (request.bytes < 0)
            load();
        else
            serve_call(&request);
    _exit(EXIT_SUCCESS); /* no handlers, no destructors of the submission's */
}

int runner_wanted(const char *name)
{
    int type;
    socklen_t size = sizeof type;
    return name && strcmp(name, RUNNER_NAME) == 0 &&
           getsockopt(RUNNER_CONTROL, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

void runner_serve(void (*take_setup)(const void *setup, size_t bytes))
{
#ifdef SYS_close_range
    syscall(SYS_close_range, (unsigned)RUNNER_FILES, ~0u, 0u);
#endif
    if (read(RUNNER_CONTROL, &opened, sizeof opened) != (ssize_t)sizeof opened)
        _exit(EXIT_FAILURE);
    if (!opened.strict)
        runner_supervise();
    prepare();
    if (take_setup)
        take_setup(opened.setup, opened.setup_bytes);
    serve();
}
