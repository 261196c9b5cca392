/* SPDX-License-Identifier: MIT
 *
 * run_internal.h: what run.c, run_device.c and run_so.c share; nobody else includes it.
 *
 * Interface:
 * - run_outputs: the storages of a result.
 * - result_make: outputs of a result, poisoned, with host views of the inputs.
 * - run_poison: NaN into all outputs.
 * - run_saved: --judge, outputs from files.
 * - run_device: the same on the GPU; outputs are brought to the host.
 * - run_note_peak: workspace, pass by pass.
 * - run_open_rung: rung_open of a variant's rung; without one an empty RungRun.
 * - run_keep_going: the number of repetitions and the time they may take.
 */
#ifndef ATTN_RUN_INTERNAL_H
#define ATTN_RUN_INTERNAL_H

#include "harness/bench/run.h"
#include "harness/rung.h"

enum { RUN_OUTPUTS = 7 };
/* All storages of a result: O lse dQ dK dV dwq dwk. Those that are not needed are empty. */
void run_outputs(RunResult *out, Storage *all[RUN_OUTPUTS]);
/* EXIT_OK or EXIT_RUNTIME. */
int result_make(RunResult *out, const Inputs *p, const CliCase *c);
void run_poison(RunResult *out);
/* Before repetition `round` (0, 1, ...; the first warmup ones are not timed). start_ms: when the
 * row began. */
int run_keep_going(const CliCase *c, int round, int timed, double start_ms);
/* Is the coming round a timed one? Warm-up ends early when it alone spends the budget. */
int run_is_timed(const CliCase *c, int round, double start_ms);
/* After each pass: what it took at most beside the `live` bytes of before the run. */
void run_note_peak(RunResult *out, int backward, size_t live);
/* args: as the passes get them. rung_close is right after it in any case. */
AttnStatus run_open_rung(RungRun *rung, const Variant *v, const CliCase *c, const AttnArgs *args);
/* Marks the outputs as worth judging; says so when workspace was not freed. */
void run_finished(RunResult *out);
/* EXIT_OK, EXIT_USAGE or EXIT_RUNTIME (sentence printed). */
int run_saved(RunResult *out, const Inputs *p, const CliCase *c);
AttnStatus run_device(RunResult *out, const Variant *v, const Inputs *p, const CliCase *c);

#endif
