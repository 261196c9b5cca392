/* SPDX-License-Identifier: MIT
 *
 * run.c: one variant on one problem, in this process (run.h), and what a variant is by its rung
 * (variant.h).
 */
#include "harness/bench/run.h"
#include "harness/rung.h"

#include "alloc.h"
#include "alloc_wanted.h"
#include "attn_config.h"
#include "harness/device/device.h"

#include <stdio.h>
#include <string.h>

void variant_of_rung(Variant *v)
{
    const Rung *rung = v->rung;
    if (!rung)
        return;
    v->name = rung->name;
    v->idea = v->idea ? v->idea : rung->idea;
    v->dtypes = v->device == ON_CPU ? DTYPES_ALL : rung->dtypes;
    v->traits = rung->flags & FULL ? VARIANT_FULL : VARIANT_PLAIN;
    v->traits |= rung->flags & (SM80 | SM90A | TENSOR_CORES) ? VARIANT_TENSOR_CORES : 0;
    v->traits |= rung->flags & STEPS ? VARIANT_ONLINE_STEPS : 0;
}

int variant_has(const Variant *v, int backward)
{
    return backward ? v->backward || (v->rung && v->rung->backward)
                    : v->forward || (v->rung && v->rung->forward);
}

int result_make(RunResult *out, const Inputs *p, const CliCase *c)
{
    const AttnShape *s = &p->args.shape;
    Storage *const storage[] = {&out->dQ, &out->dK, &out->dV};
    Tensor *const view[] = {&out->args.dQ, &out->args.dK, &out->args.dV};
    int failed;
    memset(out, 0, sizeof *out);
    out->args = p->args;
    out->args.threads = c->threads;
    failed = tensor_new(&out->O, c->dtype, c->layout, s->B, s->Nq, s->H, s->d) != 0 ||
             tensor_new(&out->lse, ATTN_F32, LAYOUT_BSHD, 1, s->B, s->H, s->Nq) != 0;
    if (!failed && c->backward)
        failed = tensors_new(storage, view, c, s) != 0;
    if (!failed && c->backward && c->norm_group)
        failed = tensor_new(&out->dwq, ATTN_F32, LAYOUT_BSHD, 1, 1, s->H, s->d) != 0 ||
                 tensor_new(&out->dwk, ATTN_F32, LAYOUT_BSHD, 1, 1, s->Hkv, s->d) != 0;
    if (failed) {
        result_free(out);
        snprintf(out->failure, sizeof out->failure, "out of memory for the outputs");
        return EXIT_RUNTIME;
    }
    out->args.O = out->O.view;
    out->args.lse = out->lse.view.data;
    out->options = p->options;
    out->options.dwq = out->dwq.view.data;
    out->options.dwk = out->dwk.view.data;
    if (p->args.options)
        out->args.options = &out->options;
    out->inputs_intact = out->storage_intact = 1;
    return EXIT_OK;
}

void run_outputs(RunResult *out, Storage *all[RUN_OUTPUTS])
{
    all[0] = &out->O;
    all[1] = &out->lse;
    all[2] = &out->dQ;
    all[3] = &out->dK;
    all[4] = &out->dV;
    all[5] = &out->dwq;
    all[6] = &out->dwk;
}

void result_free(RunResult *out)
{
    Storage *all[RUN_OUTPUTS];
    run_outputs(out, all);
    for (int i = 0; i < RUN_OUTPUTS; i++)
        tensor_free(all[i]);
}

void run_poison(RunResult *out)
{
    Storage *all[RUN_OUTPUTS];
    run_outputs(out, all);
    for (int i = 0; i < RUN_OUTPUTS; i++)
        if (all[i]->mapping)
            tensor_poison(all[i]);
}

int run_is_timed(const CliCase *c, int round, double start_ms)
{
    return !c->bench || round >= c->warmup ||
           (round > 0 && bench_now_ms() - start_ms > RUN_BUDGET_MS);
}

int run_keep_going(const CliCase *c, int round, int timed, double start_ms)
{
    if (timed == 0 || round == 0)
        return 1;
    return c->bench && timed < c->iters && bench_now_ms() - start_ms < RUN_BUDGET_MS;
}

void run_note_peak(RunResult *out, int backward, size_t live)
{
    const size_t bytes = workspace_peak() - live;
    out->peak_bytes = bytes > out->peak_bytes ? bytes : out->peak_bytes;
    if (backward && bytes > out->peak_backward)
        out->peak_backward = bytes;
    workspace_lower_peak();
}

/* Where a variant has no function of its own for the pass, its rung computes it. The backward pass
 * reads this run's own O and lse. */
static AttnStatus run_pass(RunResult *out, const Variant *v, RungRun *rung, const AttnArgs *args,
                           int backward, size_t live, DeviceTimer *timer, double *ms)
{
    const AttnFn pass = backward ? v->backward : v->forward;
    AttnStatus status = pass ? ATTN_OK : rung_load(rung, backward), stored = ATTN_OK;
    double start;
    if (timer) {
        workspace_settle(); /* or the pass would pay for it */
        out->l2_flushed = device_flush_l2() == 0;
        if (status == ATTN_OK && device_timer_start(timer) != 0)
            status = ATTN_CUDA_ERROR;
    }
    start = bench_now_ms();
    if (status == ATTN_OK) {
        status = pass ? pass(args) : rung_pass(rung, backward);
        *ms = timer ? device_timer_stop_ms(timer) : bench_now_ms() - start;
        if (status == ATTN_OK && !(*ms >= 0.0))
            status = ATTN_CUDA_ERROR;
    }
    run_note_peak(out, backward, live);
    if (!pass)
        stored = rung_store(rung, backward);
    return status == ATTN_OK ? stored : status;
}

AttnStatus run_repetitions(RunResult *out, const Variant *v, const CliCase *c, const AttnArgs *args,
                           DeviceTimer *timer, RunPoison *poison, const void *of)
{
    const size_t live = workspace_live();
    const double start = bench_now_ms();
    RungRun rung;
    AttnStatus status = ATTN_OK;
    memset(&rung, 0, sizeof rung);
    if (v->rung)
        status = rung_open(&rung, v->rung, v->device, args);
    rung.p.sram = c->sram;
    for (int round = 0; status == ATTN_OK && run_keep_going(c, round, out->forward.count, start);
         round++) {
        const int timed = run_is_timed(c, round, start);
        double ms[2] = {0.0, 0.0};
        status = poison(out, of);
        for (int pass = 0; status == ATTN_OK && pass <= c->backward; pass++)
            status = run_pass(out, v, &rung, args, pass, live, timer, &ms[pass]);
        if (timed && status == ATTN_OK) {
            out->forward.ms[out->forward.count++] = ms[0];
            if (c->backward)
                out->backward.ms[out->backward.count++] = ms[1];
        }
    }
    rung_close(&rung);
    return status;
}

static AttnStatus poison_host(RunResult *out, const void *unused)
{
    (void)unused;
    run_poison(out);
    return ATTN_OK;
}

/* What the variants answered; fills samples, peak_bytes, leaked_bytes, storage_intact. */
static AttnStatus run_host(RunResult *out, const Variant *v, const CliCase *c)
{
    const size_t live = workspace_live();
    Storage *all[RUN_OUTPUTS];
    AttnStatus status;
    workspace_reset_peak();
    run_outputs(out, all);
    bench_set_threads(c->threads);
    status = run_repetitions(out, v, c, &out->args, NULL, poison_host, NULL);
    out->leaked_bytes = workspace_live() > live ? workspace_live() - live : 0;
    out->storage_intact = workspace_intact();
    for (int i = 0; status == ATTN_OK && i < RUN_OUTPUTS; i++)
        if (all[i]->mapping && !tensor_intact(all[i]))
            out->storage_intact = 0;
    return status;
}

void run_finished(RunResult *out)
{
    out->ran = 1;
    if (out->leaked_bytes > 0)
        snprintf(out->failure, sizeof out->failure, "%zu bytes of workspace were not freed",
                 out->leaked_bytes);
}

/* NULL, or why v does not compute this case. args: host views. */
static const char *why_skipped(const Variant *v, const AttnArgs *args, const CliCase *c)
{
    if (!(v->dtypes >> c->dtype & 1u))
        return "it does not take this dtype";
    if (!variant_has(v, 0))
        return "this build does not have it";
    if (c->backward && !variant_has(v, 1))
        return "it has no backward pass";
    if (v->device == ON_CUDA && args->shape.d > CLI_MAX_D_CUDA)
        return "a head may have 256 channels on a GPU";
    if (c->deterministic && v->rung && v->rung->flags & ATOMICS)
        return "it adds to dQ by atomics, in another order on every run";
    return v->rung ? rung_skips(v->rung, v->device, args) : NULL;
}

int run_variant(RunResult *out, const Variant *v, const Inputs *p, const CliCase *c)
{
    static const char *const words[] = {"", "this case is not one that it computes",
                                        "out of memory", "a CUDA call failed"};
    const uint64_t before = inputs_fingerprint(p);
    const char *refused;
    char wanted[64];
    workspace_reset_peak();
    if (result_make(out, p, c) != EXIT_OK) {
        cli_refuse("%s: %s%s", v->name, out->failure, workspace_wanted(wanted));
        out->status = ATTN_NO_MEMORY;
        return EXIT_RUNTIME;
    }
    refused = why_skipped(v, &out->args, c);
    if (refused) {
        out->status = ATTN_SKIP;
        snprintf(out->failure, sizeof out->failure, "%s", refused);
        return EXIT_OK;
    }
    bench_progress("%s", v->name);
    out->answered = 1;
    out->status = v->device == ON_CUDA ? run_device(out, v, p, c) : run_host(out, v, c);
    bench_progress_clear();
    if (inputs_fingerprint(p) != before)
        out->inputs_intact = 0;
    if (out->status == ATTN_OK) {
        run_finished(out);
        return EXIT_OK;
    }
    snprintf(out->failure, sizeof out->failure, "%s",
             (unsigned)out->status < 4 ? words[out->status] : "an unknown status");
    if (out->status == ATTN_SKIP)
        return EXIT_OK;
    cli_refuse("%s: %s%s", v->name, out->failure,
               out->status == ATTN_NO_MEMORY ? workspace_wanted(wanted) : "");
    return EXIT_RUNTIME;
}
