/* SPDX-License-Identifier: MIT
 *
 * efficiency.c: what a benchmark on GPUs is compared with.
 *
 * "600 TFLOP/s" says little: is it the kernel that is slow, or the ring around it? So each round is
 * followed by one of the same kernels without a ring: on every GPU the own queries over the own
 * keys, no mask, no messages, all GPUs at once (they share power and cooling). That is called as
 * often as makes the work of a pass. Useful work a second of the one over that of the other is the
 * efficiency; what is missing to 1 are messages that nothing hid, the work between the blocks,
 * tiles that a mask cuts, and waiting:
 *
 *     causal, contiguous    in every step some rank sees all of its keys, so all steps but the
 *                           first take as long as without a mask: 53 % at 8 ranks, whatever is done
 *     causal, zigzag        each rank sees half of every remote block: nobody waits
 *
 * Interface: ring_baseline_calls, ring_measure_efficiency, ring_show_efficiency (show.h).
 */
#include <stdio.h>

#include "harness/models/model.h"
#include "planner/cost.h"
#include "show/show.h"

enum { MOST_CALLS = 1000 };

/* Pairs of own tokens: what one call of the local baseline computes. */
static double baseline_pairs(const RingPlan *plan)
{
    double pairs = 0.0;
    for (int g = 0; g < plan->setup.ranks; g++)
        pairs += (double)plan->q[g].tokens * (double)plan->k[g].tokens;
    return pairs;
}

int ring_baseline_calls(const RingRun *run, const CliCase *c)
{
    const double pairs = baseline_pairs(&run->plan);
    if (!c->bench || !run->backend->baseline || pairs == 0.0)
        return 0;
    const double calls = ring_all_pairs(&run->plan) / pairs;
    return calls < 1.0 ? 1 : calls > MOST_CALLS ? MOST_CALLS : (int)(calls + 0.5);
}

void ring_measure_efficiency(RingRun *run)
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
