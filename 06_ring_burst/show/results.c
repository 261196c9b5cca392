/* SPDX-License-Identifier: MIT
 *
 * results.c: from a case to the RunResult that judge_result and report_row know from the other
 * stages. A method's result is one thing; what it sent is another, and is asked for to the byte.
 *
 * A run is looked at from four sides, and is right only if all of them say so:
 *
 *     arrays    O, lse, dQ, dK, dV against the float64 oracle       (judge.c, as in all stages)
 *     bytes     what each rank sent, of each tensor, in each pass   against the formulas, exactly
 *     memory    the most that each rank held                        against the formulas, to 5 %
 *     around    guards behind the outputs, inputs as they were, no block of memory left over
 *
 * The last three are asked here. Why are right arrays not enough? A ring that makes one hop too
 * many has right arrays. So has one that sends everything twice, or keeps a buffer that it
 * should have given back; and the reason for a ring was how little it sends and holds.
 *
 * What is a benchmark on GPUs compared with? "600 TFLOP/s" says little: is it the kernel that is
 * slow, or the ring around it? So each round is followed by one of the same kernels without a ring:
 * on every GPU the own queries over the own keys, no mask, no messages, all GPUs at once (they
 * share power and cooling). That is called as often as makes the work of a pass. Useful work a
 * second of the one over that of the other is the efficiency; what is missing to 1 are messages
 * that nothing hid, the work between the blocks, tiles that a mask cuts, and waiting:
 *
 *     causal, contiguous    in every step some rank sees all of its keys, so all steps but the
 *                           first take as long as without a mask: 53 % at 8 ranks, whatever is done
 *     causal, zigzag        each rank sees half of every remote block: nobody waits
 *
 * Interface: see show.h.
 */
#include "show/show.h"

#include "alloc.h"
#include "alloc_wanted.h"
#include "attention/backward/backward_library.h" /* --deterministic */
#include "harness/bench/run.h"
#include "harness/models/model.h"
#include "planner/cost.h"
#include "transports/mpi/processes.h"

#if defined HAVE_CUDA && !defined HAVE_SIMT
#define RANKS_ON_GPUS
#include "runtime/cuda/backend_cuda.h"
#endif

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(CLI_MAX_RANKS == RING_MAX_RANKS, "a case holds as many ranks as a plan");
_Static_assert((int)CLI_EXIT == (int)RING_EXIT, "faults are numbered alike");

RingSetup ring_setup_of(const CliCase *c, RingMethod method)
{
    const CliRing *r = &c->ring;
    const int doubled = method == RING_METHOD_RING_DOUBLE || method == RING_METHOD_BURST_DOUBLE;
    RingSetup s = {.method = method,
                   .layout = r->layout,
                   .ranks = (int)r->ranks,
                   .nodes = (int)r->nodes,
                   .partials = r->partials,
                   .deterministic = c->deterministic,
                   .timeout_s = r->timeout_s,
                   .verify_hops = r->verify_hops,
                   .adversarial = r->adversarial,
                   .schedule_seed = r->schedule_seed,
                   .threads = c->threads};
    s.fault = (RingFault){(RingFaultKind)r->inject, (int)r->inject_rank, (int)r->inject_step};
    if (!s.nodes)
        s.nodes = doubled && s.ranks % 2 == 0 ? 2 : 1;
    return s;
}

/* --- on which devices --------------------------------------------------------------------------*/

/* Whose memory and arithmetic the ranks of a row have:
 *
 *     row     --transport          ranks
 *     cpu     sim, mpi             threads or processes
 *     cuda    sim                  streams of one GPU
 *     cuda    nccl                 one GPU each, messages by NCCL; threads, or under mpirun
 *                                  processes, also of many machines
 *     cuda    nccl --link copy     one GPU each, messages by the GPUs' copy engines; threads, or
 *                                  under mpirun processes, of one machine
 */
static const RingBackend *backend_of(const CliCase *c, const Variant *v)
{
    if (v->device == ON_CPU)
        return &ring_backend_cpu;
#ifdef RANKS_ON_GPUS
    if (c->ring.transport != CLI_NCCL)
        return &ring_backend_cuda;
#ifdef HAVE_MPI
    if (c->ring.link == CLI_LINK_COPY && ring_mpi_is_over(c))
        return &ring_backend_shared;
#endif
    if (c->ring.link == CLI_LINK_COPY)
        return &ring_backend_gpus;
#endif
#ifdef HAVE_NCCL
    return &ring_backend_nccl;
#else
    (void)c;
    return NULL; /* cli_parse has refused it */
#endif
}

/* 1, with half a sentence: what ranks on GPUs do not do, or more than is here (*absent). */
static int backend_refuses(const CliCase *c, const Variant *v, int64_t d, char why[256],
                           int *absent)
{
    const CliRing *r = &c->ring;
    *absent = 0;
    if (v->device == ON_CPU)
        return 0;
    if (d > CLI_MAX_D_CUDA) {
        snprintf(why, 256, "a head may have %d channels on a GPU", CLI_MAX_D_CUDA);
        return 1;
    }
    if (r->adversarial || r->inject || r->verify_hops) {
        snprintf(why, 256, "schedules, faults and checksums are for ranks on the CPU");
        return 1;
    }
#ifdef HAVE_SIMT
    snprintf(why, 256, "simt has no model of ranks on GPUs");
    *absent = 1;
    return 1;
#endif
#ifdef RANKS_ON_GPUS
    /* NCCL under mpirun finds ways to GPUs of other machines; copy engines do not */
    if (r->transport == CLI_NCCL && (!ring_mpi_is_over(c) || r->link == CLI_LINK_COPY) &&
        !ring_gpus_reach_each_other((int)r->ranks, why)) {
        *absent = 1;
        return 1;
    }
#endif
    return 0;
}

/* --- the kernel alone --------------------------------------------------------------------------*/

enum { MOST_CALLS = 1000 };

/* Pairs of own tokens: what one call of the local baseline computes. */
static double baseline_pairs(const RingPlan *plan)
{
    double pairs = 0.0;
    for (int g = 0; g < plan->setup.ranks; g++)
        pairs += (double)plan->q[g].tokens * (double)plan->k[g].tokens;
    return pairs;
}

static int baseline_calls(const RingRun *run, const CliCase *c)
{
    const double pairs = baseline_pairs(&run->plan);
    if (!c->bench || !run->backend->baseline || pairs == 0.0)
        return 0;
    const double calls = ring_all_pairs(&run->plan) / pairs;
    return calls < 1.0 ? 1 : calls > MOST_CALLS ? MOST_CALLS : (int)(calls + 0.5);
}

static void measure_efficiency(RingRun *run)
{
    RingResult *told = &run->told;
    const Samples *f = &run->out.forward, *b = &run->out.backward;
    static Samples both, alone; /* round by round; too large for a stack */
    told->balance = ring_plan_efficiency(&run->plan);
    if (told->baseline.count == 0)
        return;
    const double share = ring_all_pairs(&run->plan) / baseline_pairs(&run->plan);
    told->efficiency = share * samples_median(&told->baseline) / samples_median(f);
    both.count = alone.count = told->baseline_backward.count;
    for (int i = 0; i < both.count; i++) {
        both.ms[i] = f->ms[i] + b->ms[i];
        alone.ms[i] = told->baseline.ms[i] + told->baseline_backward.ms[i];
    }
    if (both.count > 0)
        told->efficiency_both = share * samples_median(&alone) / samples_median(&both);
}

/* TFLOP/s of one rank. */
static double rate(const RingRun *run, double ms)
{
    const AttnArgs *a = &run->out.args;
    return model_flops(a, 0) / (double)run->plan.setup.ranks / ms * 1e-9;
}

void ring_show_efficiency(const RingRun *run)
{
    const RingResult *told = &run->told;
    if (told->baseline.count == 0)
        return;
    const double ms = samples_median(&run->out.forward);
    printf("# %s: forward %.1f TFLOP/s a rank, %.3f of the kernel alone",
           ring_method_name(run->plan.setup.method), rate(run, ms), told->efficiency);
    if (told->baseline_backward.count > 0)
        printf("; with the backward pass %.3f", told->efficiency_both);
    printf("; this layout and mask allow a ring %.3f\n", told->balance);
}

/* --- what the ranks told -----------------------------------------------------------------------*/

/* Fills run->told; EXIT_OK, or EXIT_WRONG with a sentence in out.failure. All numbers are told even
 * when one of them is wrong: whoever looks for the mistake will want the others. The sentence is
 * that of the first. */
static int record_result(RingRun *run)
{
    const RingPlan *plan = &run->plan;
    const RingPass last = plan->backward ? RING_BACKWARD : RING_FORWARD;
    RingResult *told = &run->told;
    RunResult *out = &run->out;
    const RingModelCase m = ring_model_case(plan);
    int status = EXIT_OK;
    if (run->report.events[0]) {
        told->hidden = ring_hidden_mean(&run->report, RING_FORWARD);
        told->hidden_backward =
            plan->backward ? ring_hidden_mean(&run->report, RING_BACKWARD) : NAN;
    }
    measure_efficiency(run);
    for (int g = 0; g < plan->setup.ranks; g++) {
        const RingRankReport *r = &run->report.rank[g];
        const RingModelMemory memory = model_ring_memory(&m, g);
        const size_t peak =
            r->peak_bytes > r->peak_backward_bytes ? r->peak_bytes : r->peak_backward_bytes;
        int64_t *const sent[RING_PASSES] = {NULL, &told->sent[g], &told->sent_backward[g]};
        for (int pass = RING_FORWARD; pass <= (int)last; pass++) {
            const RingModelBytes model = model_ring_sent(&m, (RingPass)pass, g);
            *sent[pass] = r->traffic.sent_inner[pass] + r->traffic.sent_outer[pass];
            told->outer_bytes += r->traffic.sent_outer[pass];
            told->link_bytes += (double)model_ring_total(&model);
        }
        told->peak[g] = (int64_t)peak;
        told->peak_model[g] = plan->backward ? memory.backward : memory.forward;
        if ((int64_t)r->workspace_bytes > told->workspace_bytes)
            told->workspace_bytes = (int64_t)r->workspace_bytes;
        if (peak + r->workspace_bytes > out->peak_bytes)
            out->peak_bytes = peak + r->workspace_bytes;
        if (status == EXIT_OK && !ring_memory_agrees(told->peak[g], told->peak_model[g], g,
                                                     out->failure, sizeof out->failure))
            status = EXIT_WRONG;
    }
    /* with --inject as well: a message is counted before a fault can strike it */
    if (status == EXIT_OK &&
        !ring_bytes_agree(&m, &run->report, plan->backward, out->failure, sizeof out->failure))
        status = EXIT_WRONG;
    return status;
}

/* --- the run -----------------------------------------------------------------------------------*/

/* One world from its start to its end. Outputs are NaN before each world: what a rank forgets to
 * write is seen. */
static int run_world(RingRun *run, const CliCase *c, int warmup, int rounds, int trace)
{
    RunResult *out = &run->out;
    const RingTask task = {.plan = &run->plan,
                           .args = &out->args,
                           .warmup = warmup,
                           .rounds = rounds,
                           .trace = trace,
                           .forward_ms = out->forward.ms,
                           .backward_ms = c->backward ? out->backward.ms : NULL,
                           .baseline_calls = baseline_calls(run, c),
                           .baseline_ms = run->told.baseline.ms,
                           .baseline_backward_ms = run->told.baseline_backward.ms};
    run_poison(out);
    ring_report_free(&run->report);
    if (ring_mpi_is_over(c) ? ring_world_mpi(&task, run->backend, &run->report)
                            : ring_world_sim(&task, run->backend, &run->report))
        return -1;
    out->forward.count = rounds;
    out->backward.count = c->backward ? rounds : 0;
    run->told.baseline.count = task.baseline_calls ? rounds : 0;
    run->told.baseline_backward.count = task.baseline_calls ? out->backward.count : 0;
    return 0;
}

/* How often fits into the time that a row may take, from one round that has been measured: less
 * than once, also by many rounds to warm up, is never. */
static int affordable_rounds(const CliCase *c, double ms)
{
    const double room = (RUN_BUDGET_MS - ms) / ms - (double)c->warmup;
    return room < (double)c->iters ? (int)room : c->iters;
}

/* Without --bench one round; else as many as --iters wants and the budget allows. Processes have no
 * common clock to agree on a budget, so they make all rounds; GPUs too, whose rounds are short
 * beside what surrounds them. */
static int run_rounds(RingRun *run, const CliCase *c, int trace)
{
    const double start = bench_now_ms();
    int rounds;
    if (c->bench && (ring_mpi_is_over(c) || run->backend->baseline))
        return run_world(run, c, c->warmup, c->iters, trace);
    if (run_world(run, c, 0, 1, trace) != 0)
        return -1;
    rounds = c->bench ? affordable_rounds(c, bench_now_ms() - start) : 0;
    return rounds > 0 ? run_world(run, c, c->warmup, rounds, trace) : 0;
}

/* Guards of the outputs, fingerprints of the inputs, blocks that nobody freed. A fingerprint of all
 * inputs before the run and one after it: a method that writes into the caller's K is found out by
 * it (docs/lab/burst_pseudo_code.md, mistake 13). */
static void look_around(RunResult *out, const Inputs *p, uint64_t before, size_t live)
{
    Storage *all[RUN_OUTPUTS];
    run_outputs(out, all);
    out->storage_intact = workspace_intact();
    for (int i = 0; i < RUN_OUTPUTS; i++)
        if (all[i]->mapping && !tensor_intact(all[i]))
            out->storage_intact = 0;
    out->inputs_intact = inputs_fingerprint(p) == before;
    out->leaked_bytes = workspace_live() > live ? workspace_live() - live : 0;
}

/* A plan that cannot be made is no failure: the method says why it does not do this case, and is
 * skipped. What the ranks say once they run is one. */
int ring_run(RingRun *run, const Variant *v, const Inputs *p, const CliCase *c, int trace)
{
    RunResult *out = &run->out;
    const RingSetup setup = ring_setup_of(c, (RingMethod)ring_method_from_name(v->name));
    const uint64_t before = inputs_fingerprint(p);
    size_t live;
    int status, absent;
    char wanted[64];
    memset(run, 0, sizeof *run);
    workspace_reset_peak();
    run->backend = backend_of(c, v);
    run->told = (RingResult){.ranks = setup.ranks,
                             .nodes = setup.nodes,
                             .hidden = NAN,
                             .hidden_backward = NAN,
                             .efficiency = NAN,
                             .efficiency_both = NAN,
                             .balance = NAN};
    if (result_make(out, p, c) != EXIT_OK) {
        cli_refuse("%s: %s%s", v->name, out->failure, workspace_wanted(wanted));
        out->status = ATTN_NO_MEMORY;
        return EXIT_RUNTIME;
    }
    out->ring = &run->told;
    out->answered = 1;
    if (backend_refuses(c, v, p->args.shape.d, out->failure, &absent)) {
        out->status = ATTN_SKIP;
        if (absent)
            cli_refuse("--transport nccl: %s", out->failure);
        return absent ? EXIT_NO_DEVICE : EXIT_OK;
    }
    if (ring_plan_make(&run->plan, &p->args, &setup, out->failure) != 0) {
        const int no_memory = strncmp(out->failure, "memory", 6) == 0;
        out->status = no_memory ? ATTN_NO_MEMORY : ATTN_SKIP;
        if (no_memory)
            cli_refuse("%s: %s", v->name, out->failure);
        return no_memory ? EXIT_RUNTIME : EXIT_OK;
    }
    live = workspace_live();
    bench_progress("%s", v->name);
    bench_set_threads(1); /* of BLAS: the ranks have their own */
    flash_backward_set_deterministic(c->deterministic);
    status = run_rounds(run, c, trace);
    bench_progress_clear();
    bench_set_threads(c->threads);
    look_around(out, p, before, live);
    if (status != 0) {
        snprintf(out->failure, sizeof out->failure, "%s", run->report.failure);
        out->status = ATTN_NO_MEMORY;
        cli_refuse("%s: %s", v->name, out->failure);
        return EXIT_RUNTIME;
    }
    run_finished(out);
    status = record_result(run);
    if (status != EXIT_OK)
        cli_refuse("%s: %s", v->name, out->failure);
    return status;
}

void ring_run_free(RingRun *run)
{
    result_free(&run->out);
    ring_report_free(&run->report);
    ring_plan_free(&run->plan); /* zeros where there is none */
}
