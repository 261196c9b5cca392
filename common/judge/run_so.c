/* SPDX-License-Identifier: MIT
 *
 * run_so.c: a user's own implementation, in a child process: the program's side. See run.h.
 *
 * The child has the problem by copy-on-write, so nothing it does to memory reaches this process.
 * Its inputs are read-only pages and its outputs end at guard pages: a stray access is a SIGSEGV
 * at an address that tells what went wrong. When it is done it copies its outputs into memory
 * shared with the parent and sets `finished`; a child that dies or exits before has not finished,
 * whatever its exit status says. The parent judges the copies like any other output, and the rest
 * of that memory must make sense before it is used.
 */
#define _GNU_SOURCE /* sigabbrev_np */
#include "judge/run_so_internal.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* What stands at an address where the child faulted. */
static void explain_fault(const SoRecord *r, const Problem *p, const RunResult *out, char *text,
                          size_t size)
{
    static const char *const in_names[RUN_INPUTS] = {"Q", "K", "V", "dO", "the mask", "wq", "wk"};
    static const char *const out_names[RUN_OUTPUTS] = {"O", "lse", "dQ", "dK", "dV", "dwq", "dwk"};
    const Storage *in[RUN_INPUTS];
    Storage *outputs[RUN_OUTPUTS];
    const char *fault = r->fault;
    int i;
    run_inputs(p, in);
    run_outputs((RunResult *)out, outputs);
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

static void explain_death(const SoRecord *r, const Problem *p, RunResult *out, SoEnd end,
                          double seconds)
{
    char fault[96] = "";
    if (!end.in_time || (WIFSIGNALED(end.how) && WTERMSIG(end.how) == SIGXCPU))
        snprintf(out->failure, sizeof out->failure,
                 "it did not finish within %g s (--so-time) and was killed", seconds);
    else if (WIFSIGNALED(end.how)) {
        const int number = WTERMSIG(end.how);
        if (r->fault)
            explain_fault(r, p, out, fault, sizeof fault);
        snprintf(out->failure, sizeof out->failure, "it crashed with SIG%s (%s)%s",
                 sigabbrev_np(number) ? sigabbrev_np(number) : "?", strsignal(number), fault);
    } else if (r->failure[0])
        memcpy(out->failure, r->failure, sizeof out->failure);
    else
        snprintf(out->failure, sizeof out->failure,
                 "it ended the process with exit(%d) instead of returning", WEXITSTATUS(end.how));
}

/* The child's word and its outputs into the parent's result. */
static int take_result(const SoRecord *r, RunResult *out, int64_t mebibytes)
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
        snprintf(out->failure, sizeof out->failure, "it answers ATTN_SKIP");
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

int run_variant_so(RunResult *out, const Stage *stage, const Problem *p, const CliCase *c,
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
    const SoLimits limits = {seconds, mebibytes};
    SoEnd end = {0, 0};
    int i, finished, status = result_make(out, p, c);
    if (status == EXIT_OK) {
        run_outputs(out, all);
        for (i = 0; i < RUN_OUTPUTS; i++)
            bytes += all[i]->bytes;
        k.record = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (k.record != MAP_FAILED && so_supervise(&limits, &k, p, &end) != 0) {
            munmap(k.record, bytes);
            k.record = MAP_FAILED;
        }
    }
    if (status != EXIT_OK || k.record == MAP_FAILED) {
        out->status = ATTN_NO_MEMORY;
        cli_refuse("--variant-so: found no memory or no process for %s, accepted are smaller sizes",
                   c->variant_so);
        return EXIT_RUNTIME;
    }
    finished = end.in_time && WIFEXITED(end.how);
    if (finished && !record_sane(k.record)) {
        snprintf(out->failure, sizeof out->failure, "it overwrote its own report");
        status = EXIT_WRONG;
    } else if (finished && k.record->finished)
        status = take_result(k.record, out, mebibytes);
    else {
        explain_death(k.record, p, out, end, seconds);
        status = EXIT_WRONG;
    }
    if (status == EXIT_WRONG)
        cli_refuse("%s: %s", c->variant_so, out->failure);
    munmap(k.record, bytes);
    return status;
}
