/* SPDX-License-Identifier: MIT
 *
 * show.h: one method on one case, run over ranks as strictly as a grader would: outputs guarded and
 * poisoned, inputs fingerprinted, bytes compared with the model. And what the program shows beside
 * its table: why a method was chosen, who holds what when.
 *
 * Interface:
 * - ring_show_case (case.c): all methods on a case, for stage_main. ring_show_serve: the process
 *   of a user's shared object.
 * - RingRun, ring_run, ring_run_free (results.c): the run, and a RunResult as other stages have it.
 * - ring_setup_of: the choices of a case for one method.
 * - ring_show_efficiency: benchmarks on GPUs against the own kernel without company.
 * - ring_show_choice: --method auto. ring_show_screen: --trace.
 * - ring_show_events, ring_show_probe: --trace-json, and whether its file can be written at all.
 */
#ifndef RING_SHOW_H
#define RING_SHOW_H

#include "harness/report/report.h"
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
int ring_run(RingRun *run, const Variant *v, const Inputs *p, const CliCase *c, int trace);
void ring_run_free(RingRun *run);

/* Runs the case by itself (StageMain). */
int ring_show_case(Report *report, const Cli *cli, CliCase *c, int *status);
void ring_show_serve(int argc, char **argv); /* returns where this is no such process */

RingSetup ring_setup_of(const CliCase *c, RingMethod method);

/* Against the own kernel without company: one line, if there is something to show. */
void ring_show_efficiency(const RingRun *run);

/* Names the method (and the layout, if the user did not) in the case and prints why, unless quiet.
 * EXIT_OK or EXIT_USAGE: nothing can compute this. */
int ring_show_choice(CliCase *c, const Inputs *p, int quiet);
/* One screen of the method. EXIT_OK, also for a case that it cannot compute, or EXIT_RUNTIME. */
int ring_show_screen(const CliCase *c, const Inputs *p, const Variant *v);
/* EXIT_OK or EXIT_USAGE; leaves nothing behind. */
int ring_show_probe(const char *path);
/* The measured events of a run and beside them those of the model. EXIT_OK, or EXIT_USAGE (the file
 * cannot be written) or EXIT_RUNTIME (memory). */
int ring_show_events(const CliCase *c, const RingRun *run);

#endif
