/* SPDX-License-Identifier: MIT
 *
 * window_library.h: what surrounds a variant of stage 05: normalisation and temperature.
 *
 * Interface:
 * - window_plain_run, window_plain_backward (host): normalisation and temperature around a variant
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

struct FlashSums; /* library/backward_library.h */

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

/* --- passes over visible tiles for clipping and dropout, on the CPU ----------------------------*/

/* O is written: the sum of clipped and dropped weights times V. lse is left alone. */
AttnStatus window_weigh_tiles(const AttnArgs *args);

/* Adds dQ, dK and dV to `sums`. Reads Q, K, V, O, lse and dO of args. */
AttnStatus window_weigh_tiles_backward(const AttnArgs *args, struct FlashSums sums);

#ifdef __cplusplus
}
#endif
#endif
