/* SPDX-License-Identifier: MIT
 *
 * ratio.h: how fast is a piece of code against OpenBLAS, on a machine that is never quite quiet?
 *
 * Absolute rates wander: other programs, the clock, the neighbours on a shared host. What stands
 * still is the quotient of two rates measured one right after the other. A round is therefore
 *
 *     FMA loop,  sgemm n^3,  the piece,  sgemm n^3
 *
 * and its ratio is the rate of the piece over the mean of the two sgemms. Every round counts. How
 * far the rounds lie apart says what their median is worth: where the middle half of them spreads
 * over more than RATIO_SPREAD of the median, nothing is compared with it. The FMA loop shows what
 * sgemm itself makes of the machine. With one thread the time is CPU time of that thread, so that
 * other processes' time slices drop out; with more it is wall time. How well the piece scales is
 * asked the same way: a round is then done with one thread and with all of them, and the speed-up
 * of the piece is divided by that of sgemm.
 *
 * Interface:
 * - RatioPiece, ratio_measure: any function with a known number of operations.
 * - RatioStage, ratio_main: the whole program of a stage (its bench_ratio.c is a table of targets).
 */
#ifndef ATTN_RATIO_H
#define ATTN_RATIO_H

#include "harness/bench/bench.h"
#include "harness/bench/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RATIO_SPREAD 0.1 /* of the median: beyond it no comparison means anything */

typedef struct RatioPiece {
    void (*prepare)(void *context);          /* before each timing, not timed; may be NULL */
    void (*run)(void *context, int threads); /* what is timed */
    void *context;
    double flops; /* of one run */
} RatioPiece;

typedef struct RatioResult { /* a sample for each round */
    Samples ms;              /* of one run of the piece, with all threads */
    Samples ratio;           /* piece / sgemm */
    Samples scaling;    /* (piece, all threads / one) / (sgemm, all / one); empty with one thread */
    Samples sgemm, fma; /* GFLOP/s, all threads */
    Samples sgemm_of_fma;
} RatioResult;

/* Speed-up of the piece by more threads, as a share of sgemm's speed-up; rates in GFLOP/s. */
double ratio_scaling(double piece_all, double piece_one, double sgemm_all, double sgemm_one);

/* n: of sgemm. 0, or -1: this build has no OpenBLAS, or memory is short. */
int ratio_measure(RatioResult *result, const RatioPiece *piece, int n, int rounds, int threads);

/* The instruction set of OpenBLAS's sgemm, and of the FMA loop: avx512, avx2 or portable. */
const char *ratio_isa(void);
/* The best that this processor has. OpenBLAS chooses by the processor's name, and takes its slowest
 * sgemm for one that is younger than itself; *core is then what to call it by
 * (OPENBLAS_CORETYPE). */
const char *ratio_best_isa(const char **core);
double ratio_fma_gflops(int threads);

/* --- a stage -----------------------------------------------------------------------------------*/

/* What is asked of head dimension d from this length on; of several that fit the last one holds. */
typedef struct RatioTarget {
    int64_t d;
    int causal;
    int64_t from_N;
    double floor, aim;
} RatioTarget;

typedef struct RatioStage {
    const Stage *stage; /* of the JSON rows; its first variant is the one that is timed */
    int backward;       /* time the backward pass, after a forward pass that is not timed */
    size_t (*workspace_bytes)(const AttnShape *shape, int threads);
    AttnStatus (*run)(const AttnArgs *args, void *workspace);
    const RatioTarget *targets;
    int target_count;
    int64_t window; /* 0 = none, else keys i-window .. i */
} RatioStage;

/* The cases of a target list: B=1, H=8, f32, N = 1024, 2048, 4096, d = 64, 128, full and causal;
 * with several threads H=1 as well. With a window N = 8192 and 65536, causal only, and the ratio at
 * the last N over that at the first: 1 if the time is linear in N. Returns the program's exit
 * status: a ratio below its floor is printed as such and is no failure, a wrong result is one. */
int ratio_main(const RatioStage *stage, int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
