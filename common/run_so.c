/* SPDX-License-Identifier: MIT
 *
 * run_so.c: a user's own implementation, in a child process: the parent's side. See run.h.
 *
 * The child has the problem by copy-on-write, so nothing it does to memory reaches this process.
 * Its inputs are read-only pages and its outputs end at guard pages: a stray access is a SIGSEGV
 * at an address that tells what went wrong. When it is done it copies its outputs into memory
 * shared with the parent and sets `finished`; a child that dies or exits before has not finished,
 * whatever its exit status says. The parent judges the copies like any other output, and the rest
 * of that memory must make sense before it is used.
 */
#define _GNU_SOURCE /* sigabbrev_np */
#include "run_so_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* What stands at an address where the child faulted. */
static void explain_fault(const SoRecord *r, const Problem *p, const Outcome *out, char *text,
                          size_t size)
{
    static const char *const in_names[RUN_INPUTS] = {"Q", "K", "V", "dO", "the mask", "wq", "wk"};
    static const char *const out_names[RUN_OUTPUTS] = {"O", "lse", "dQ", "dK", "dV", "dwq", "dwk"};
    const Storage *in[RUN_INPUTS];
    Storage *outputs[RUN_OUTPUTS];
    const char *fault = r->fault;
    int i;
    run_inputs(p, in);
    run_outputs((Outcome *)out, outputs);
    for (i = 0; i < RUN_INPUTS + RUN_OUTPUTS; i++) {
        const Storage *s = i < RUN_INPUTS ? in[i] : outputs[i - RUN_INPUTS];
        const char *name = i < RUN_INPUTS ? in_names[i] : out_names[i - RUN_INPUTS];
        const char *first = s->mapping;
        if (!first || fault < first || fault >= first + s->mapping_bytes)
            continue;
        if (fault >= (const char *)s->base + s->bytes)
            snprintf(text, size, ": an access behind the end of %s", name);
        else if (fault < (const char *)s->base && i >= RUN_INPUTS)
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
static int wait_for(pid_t pid, double seconds, SoLeash *leash, int *how)
{
    const double end = bench_now_ms() + seconds * 1e3;
    double pause_ms = 0.2;
    int ended;
    while ((ended = waitpid(pid, how, WNOHANG) == pid) == 0 && bench_now_ms() < end) {
        so_leash_relay(leash, pause_ms);
        if (pause_ms < 5.0)
            pause_ms *= 2.0;
    }
    kill(-pid, SIGKILL); /* and whatever it started */
    if (!ended)
        while (waitpid(pid, how, 0) < 0 && errno == EINTR)
            ;
    so_leash_end(leash); /* from here on nobody else writes to the shared record */
    return ended;
}

static int samples_sane(const Samples *s)
{
    int i;
    if (s->count < 0 || s->count > BENCH_MAX_SAMPLES)
        return 0;
    for (i = 0; i < s->count; i++)
        if (!isfinite(s->ms[i]) || s->ms[i] < 0.0)
            return 0;
    return 1;
}

/* Can this be what so_child_main wrote? Code that runs in the child can write anything here, and
 * counts index arrays, texts are printed. */
static int record_sane(const SoRecord *r)
{
    if (!memchr(r->failure, 0, sizeof r->failure))
        return 0;
    if (r->finished == 0) /* the rest is not read */
        return 1;
    return r->finished == SO_FINISHED && samples_sane(&r->forward) && samples_sane(&r->backward) &&
           (r->status != ATTN_OK || r->forward.count > 0) && r->leaked_bytes <= r->peak_bytes &&
           r->peak_backward <= r->peak_bytes &&
           r->peak_bytes < (size_t)1 << 47 && /* what a process can address */
           (r->storage_intact == 0 || r->storage_intact == 1);
}

static void explain_death(const SoRecord *r, const Problem *p, Outcome *out, int ended, int how,
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
static int take_outcome(const SoRecord *r, Outcome *out, int64_t mebibytes)
{
    const unsigned char *from = (const unsigned char *)(r + 1);
    Storage *all[RUN_OUTPUTS];
    int i;
    run_outputs(out, all);
    for (i = 0; i < RUN_OUTPUTS; i++) {
        memcpy(all[i]->base, from, all[i]->bytes);
        from += all[i]->bytes;
    }
    out->status = r->status;
    out->forward = r->forward;
    out->backward = r->backward;
    out->peak_bytes = r->peak_bytes;
    out->peak_backward = r->peak_backward;
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
    if (out->status == ATTN_NO_MEMORY)
        snprintf(out->failure, sizeof out->failure,
                 "it returned status %d (out of memory: --so-memory allows %" PRId64 " MiB), "
                 "accepted is ATTN_OK",
                 (int)out->status, mebibytes);
    else
        snprintf(out->failure, sizeof out->failure, "it returned status %d%s, accepted is ATTN_OK",
                 (int)out->status, out->status == ATTN_CUDA_ERROR ? " (it has said why)" : "");
    return EXIT_WRONG;
}

int run_variant_so(Outcome *out, const Stage *stage, const Problem *p, const CliCase *c,
                   double seconds, int64_t mebibytes)
{
    Storage *all[RUN_OUTPUTS];
    size_t bytes = sizeof(SoRecord);
    const int alone = (stage->features & STAGE_ALWAYS_BACKWARD) != 0;
    SoChild k = {c->variant_so,
                 stage->name,
                 stage->abi_version,
                 alone ? stage->variants[0].forward : NULL,
                 c,
                 out,
                 NULL,
                 -1};
    SoLeash leash;
    int i, how = 0, ended, status = outcome_make(out, p, c);
    pid_t pid = -1;
    if (status == EXIT_OK) {
        run_outputs(out, all);
        for (i = 0; i < RUN_OUTPUTS; i++)
            bytes += all[i]->bytes;
        k.record = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        fflush(NULL);
        if (k.record != MAP_FAILED && so_leash_make(&leash) == 0) {
            k.output = leash.write_end;
            pid = fork();
            if (pid != 0)
                so_leash_take(&leash, pid);
            if (pid < 0)
                so_leash_end(&leash);
        }
    }
    if (pid == 0) {
        setpgid(0, 0);
        so_child_main(&k, p, seconds, mebibytes);
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
    ended = wait_for(pid, seconds, &leash, &how);
    if (ended && WIFEXITED(how) && !record_sane(k.record)) {
        snprintf(out->failure, sizeof out->failure, "it overwrote its own report");
        status = EXIT_WRONG;
    } else if (ended && WIFEXITED(how) && k.record->finished)
        status = take_outcome(k.record, out, mebibytes);
    else {
        explain_death(k.record, p, out, ended, how, seconds);
        status = EXIT_WRONG;
    }
    if (status == EXIT_WRONG)
        cli_refuse("%s: %s", c->variant_so, out->failure);
    munmap(k.record, bytes);
    return status;
}
