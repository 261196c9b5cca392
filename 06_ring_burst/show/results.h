/* SPDX-License-Identifier: MIT
 *
 * results.h: one method on one case, run over ranks as strictly as a grader would: outputs guarded
 * and poisoned, inputs fingerprinted, bytes compared with the model.
 *
 * Interface:
 * - RingRun, ring_run, ring_run_free: the run, and a RunResult as other stages have it.
 * - ring_setup_of: the choices of a case for one method.
 * - ring_baseline_calls, ring_measure_efficiency, ring_show_efficiency (efficiency.c): benchmarks
 *   on GPUs against the own kernel without company.
 */
#ifndef RING_RESULTS_H
#define RING_RESULTS_H

#include "report/report.h"
#include "runtime/ring_world.h"

typedef struct RingRun {
    RunResult out;
    RingResult told; /* out.ring points here: a RingRun must not move */
    RingReport report;
    RingPlan plan;
    const RingBackend *backend;
} RingRun;

/* EXIT_OK (also for a case that the method cannot compute: out.status is ATTN_SKIP), EXIT_RUNTIME
 * with the sentence of the rank that failed printed, or EXIT_WRONG when bytes were sent that the
 * model does not know. trace: keep events. */
int ring_run(RingRun *run, const Variant *v, const Problem *p, const CliCase *c, int trace);
void ring_run_free(RingRun *run);

RingSetup ring_setup_of(const CliCase *c, RingMethod method);

/* Of the local baseline, after each round; 0: it is not asked for. */
int ring_baseline_calls(const RingRun *run, const CliCase *c);
void ring_measure_efficiency(RingRun *run);    /* into run->told */
void ring_show_efficiency(const RingRun *run); /* one line, if there is something to show */

#endif
