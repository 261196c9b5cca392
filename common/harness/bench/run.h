/* SPDX-License-Identifier: MIT
 *
 * run.h: run one variant on one problem as strictly as a grader would.
 *
 * Outputs and workspace are poisoned with NaN before every run, lie before a guard page (host) or
 * between canaries (device), inputs are fingerprinted, and the output that is checked is the output
 * of the last *timed* run.
 *
 * Interface:
 * - run_variant: poison, run (warm-up, timed repetitions), bring the outputs to the host.
 * - run_variant_so: the same for a user's shared object, isolated (foreign.h). Whatever that
 *   code does, this process lives and reports.
 * - run_saved: --judge, outputs from files. run_device: on the GPU; outputs come to the host.
 * - result_make, result_free, run_outputs, run_poison: outputs of a result, with host views of the
 *   inputs. run_keep_going, run_is_timed, run_note_peak, run_finished: steps of a run.
 * - run_repetitions: all repetitions of a variant that is a function or a rung, on a CPU or a GPU.
 */
#ifndef ATTN_RUN_H
#define ATTN_RUN_H

#include "harness/bench/bench.h"
#include "harness/io/inputs.h"

/* Stage 06: what the ranks of a run told. Sizes in bytes, arrays by rank. */
typedef struct RingResult {
    int ranks, nodes;
    int64_t sent[CLI_MAX_RANKS], sent_backward[CLI_MAX_RANKS]; /* payload, counted, of one run */
    int64_t outer_bytes;                                       /* of all these: between nodes */
    double link_bytes;           /* the model's sum for all ranks and passes */
    int64_t peak[CLI_MAX_RANKS]; /* most of a rank's tensors and buffers at once */
    int64_t peak_model[CLI_MAX_RANKS];
    int64_t workspace_bytes; /* of the block kernels, beside these: the largest rank */
    /* Share of the time of messages that the same rank computes in; NaN = unknown. */
    double hidden, hidden_backward;
    /* Benchmarks on GPUs: one call of the own kernel on each rank alone, no mask, no messages, all
     * at once; ms of the slowest, after each round. count 0: not measured. */
    Samples baseline, baseline_backward;
    /* Useful work a second against that; `both`: forward and backward together. NaN = unknown. */
    double efficiency, efficiency_both;
    double balance; /* what the layout allows of it: 1 = no rank waits for another's mask */
} RingResult;

typedef struct RunResult {
    AttnStatus status;
    AttnArgs args;         /* host views of inputs and outputs: what check_outputs takes */
    AttnOptions options;   /* args.options, if there are any: those of the problem with outputs */
    Storage O, dQ, dK, dV; /* --pack: see tensors_new; the views are in args */
    Storage lse;           /* float32 [B][H][Nq], contiguous, at args.lse */
    Storage dwq, dwk;      /* float32 [H*d], [Hkv*d]: with --backward and --qk-norm */
    Samples forward, backward;
    size_t peak_bytes;    /* workspace of the variant, most at once in any pass */
    size_t peak_backward; /* in a backward pass */
    size_t leaked_bytes;
    int ran;      /* 1: the outputs are those of a whole run and worth a look */
    int answered; /* 1: status is the variant's own word; 0: the harness refused before */
    int l2_flushed;
    int inputs_intact, storage_intact;
    const RingResult *ring; /* NULL in other stages and for a --variant-so */
    char failure[512];      /* "" or what went wrong (crash, time limit, missing symbol) */
} RunResult;

/* A row costs at most this long in all its repetitions, but gives one sample at least. */
#define RUN_BUDGET_MS 2000.0

/* EXIT_OK (also for ATTN_SKIP: see result->status) or EXIT_RUNTIME, with failure set and printed.
 * result_free is right after all of them. */
int run_variant(RunResult *out, const Variant *v, const Inputs *p, const CliCase *c);
/* EXIT_OK (also for ATTN_SKIP), EXIT_WRONG with out->failure set and printed, or EXIT_RUNTIME when
 * this process itself could not start it. The shared object exports
 *     AttnStatus <stage>_variant(const AttnArgs *);
 * and, for --backward, <stage>_variant_backward. (STAGE_ALWAYS_BACKWARD: <stage>_variant is the
 * backward pass.) If it exports int <stage>_abi_version, that must be the stage's.
 * setup (or NULL): for one that calls functions of this program (stage 06). It runs in this program
 * started anew, whose main() hands itself over to run_serve and gets these bytes. */
int run_variant_so(RunResult *out, const Stage *stage, const Inputs *p, const CliCase *c,
                   const Cli *cli, const void *setup, size_t setup_bytes);
/* Does not return in such a process; name: argv[0] of main(). */
void run_serve(const char *name, void (*take_setup)(const void *setup, size_t bytes));
void result_free(RunResult *out);

/* --- steps of a run ----------------------------------------------------------------------------*/

struct DeviceTimer; /* device.h */
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
/* Warm-up and timed repetitions of both passes: poison(out, of) before each, the samples into out.
 * args: as the passes get them. timer: of a GPU, or NULL: the wall clock. */
typedef AttnStatus RunPoison(RunResult *out, const void *of);
AttnStatus run_repetitions(RunResult *out, const Variant *v, const CliCase *c, const AttnArgs *args,
                           struct DeviceTimer *timer, RunPoison *poison, const void *of);
/* Marks the outputs as worth judging; says so when workspace was not freed. */
void run_finished(RunResult *out);
/* EXIT_OK, EXIT_USAGE or EXIT_RUNTIME (sentence printed). */
int run_saved(RunResult *out, const Inputs *p, const CliCase *c);
AttnStatus run_device(RunResult *out, const Variant *v, const Inputs *p, const CliCase *c);
#endif
