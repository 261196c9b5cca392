/* SPDX-License-Identifier: MIT
 *
 * window_library.h: whole calls of stage 05 with every option, and what surrounds a kernel that
 * knows only some of them.
 *
 * Interface:
 * - sliding_window_library_cpu, sliding_window_library_cuda, ..._backward: whole calls.
 * - window_model_row: what a row of stage 05 moves.
 * - WindowTiles, window_count_tiles: what the walk over tiles of a kernel visits.
 * - window_plain_run, window_plain_backward (host): normalisation and temperature around a kernel
 *   that knows neither.
 * - window_normalise, window_normalise_backward: the normalisation itself.
 * - window_weigh_tiles: O. window_weigh_tiles_backward: gradients, added to sums.
 */
#ifndef WINDOW_LIBRARY_H
#define WINDOW_LIBRARY_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

struct FlashSums; /* attention/backward/backward_library.h */
struct ReportRow; /* harness/report/report.h */

AttnStatus sliding_window_library_cpu(const AttnArgs *args);
AttnStatus sliding_window_library_cpu_backward(const AttnArgs *args);
AttnStatus sliding_window_library_cuda(const AttnArgs *args);
AttnStatus sliding_window_library_cuda_backward(const AttnArgs *args);

/* Into model_bytes and tiles of the row, those of its last pass. */
void window_model_row(struct ReportRow *row);

/* Xn = round(w * X / sqrt(mean over the group of X^2 + eps)) to X's dtype, statistics in float32;
 * X [B][N][heads][d], w [heads*d]. Xn->data is memory of the caller; Xn becomes a contiguous BSHD
 * tensor of X's dtype in it. */
AttnStatus window_normalise(const Tensor *X, const float *w, int64_t group, float eps, int threads,
                            Tensor *Xn);
/* From dXn (float32, contiguous, like Xn): dX, rounded to its dtype, and dw [heads*d], a sum over
 * all tokens in a fixed order; dw = NULL: nobody wants it. */
AttnStatus window_normalise_backward(const Tensor *X, const float *w, int64_t group, float eps,
                                     const float *dXn, int threads, Tensor *dX, float *dw);

/* Calls `run` with normalised Q and K and without norm and temperature in its options: for what
 * needs nothing else. args may have no options at all. */
AttnStatus window_plain_run(const AttnArgs *args, AttnFn run);
/* The same for a backward pass that adds to float32 sums (zeroed here), from delta on. */
typedef AttnStatus (*WindowSumsFn)(const AttnArgs *plain, struct FlashSums sums);
AttnStatus window_plain_backward(const AttnArgs *args, WindowSumsFn add_gradients);

/* Tiles of Br x Bc of all heads and batches: never looked at, asked pair by pair, seen in full. */
typedef struct WindowTiles {
    int64_t Br, Bc;
    int64_t skipped, masked, clean;
} WindowTiles;

/* Counted in the walk that the CPU library uses: several sequences have tiles of their own, and a
 * full mask makes clean tiles masked ones. */
WindowTiles window_count_tiles(const AttnArgs *args, int64_t Br, int64_t Bc);

/* --- passes over visible tiles for clipping and dropout, on the CPU ----------------------------*/

/* O is written: the sum of clipped and dropped weights times V. lse is left alone. */
AttnStatus window_weigh_tiles(const AttnArgs *args);

/* Adds dQ, dK and dV to `sums`. Reads Q, K, V, O, lse and dO of args. */
AttnStatus window_weigh_tiles_backward(const AttnArgs *args, struct FlashSums sums);

#ifdef __cplusplus
}
#endif
#endif
