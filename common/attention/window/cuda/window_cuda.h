/* SPDX-License-Identifier: MIT
 *
 * window_cuda.h: what the CUDA files of stage 05's library share with each other, with the rungs,
 * with the module and with tests. All data pointers are device pointers; work is queued and nothing
 * waits.
 *
 * Interface:
 * - window_normalise_cuda, window_normalise_backward_cuda: the CPU's functions on the GPU.
 * - window_plain_run_cuda, window_plain_backward_cuda: normalisation and temperature around a
 *   variant that knows neither. window_make_plain_cuda: what comes before it calls the variant.
 * - window_contiguous: a tensor's shape without gaps.
 * - window_tiles_run_cuda, window_tiles_add_cuda: visible tiles in float32, with every option.
 *   window_mma_add_cuda: on tensor cores, weights that are P.
 * - window_copy_cuda: a tensor into another one, of any dtype and strides.
 * - window_clear_empty_cuda: rows of a float32 tensor where lse is -inf become zeros.
 */
#ifndef WINDOW_CUDA_H
#define WINDOW_CUDA_H

#include "attention/window/window_library.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Xn as the caller describes it: X's dtype, any strides. w [heads*d]. ATTN_SKIP for d > 256. */
AttnStatus window_normalise_cuda(const Tensor *X, const float *w, int64_t group, float eps,
                                 void *stream, const Tensor *Xn);
/* dXn [B][N][heads][d] float32 -> dX and dw [heads*d]: a sum over all tokens in a fixed order. dw
 * NULL: nobody wants it. */
AttnStatus window_normalise_backward_cuda(const Tensor *X, const float *w, int64_t group, float eps,
                                          const float *dXn, void *stream, const Tensor *dX,
                                          float *dw);

struct FlashSums; /* library/backward_library.h */

/* window_plain_run and window_plain_backward (library/window_library.h) on the GPU. */
AttnStatus window_plain_run_cuda(const AttnArgs *args, AttnFn run);
AttnStatus window_plain_backward_cuda(const AttnArgs *args,
                                      AttnStatus (*add_gradients)(const AttnArgs *plain,
                                                                  struct FlashSums sums));

/* plain = args with normalised copies of Q and K in `memory` (the caller's to free, NULL: none were
 * needed), without norm and temperature in its options, which lie in `options`. */
AttnStatus window_make_plain_cuda(const AttnArgs *args, AttnArgs *plain,
                                  struct AttnOptions *options, void **memory);

/* Like `like`, contiguous. */
Tensor window_contiguous(const Tensor *like, AttnDtype dtype, void *data);
AttnStatus window_copy_cuda(const Tensor *to, const Tensor *from, void *stream);
/* lse_dev [B][heads][N] */
AttnStatus window_clear_empty_cuda(const float *lse_dev, const Tensor *t, void *stream);

/* Without norm and temperature; those that add: gradients to float32 sums. */
AttnStatus window_tiles_run_cuda(const AttnArgs *plain);
AttnStatus window_tiles_add_cuda(const AttnArgs *plain, struct FlashSums sums_dev);
AttnStatus window_mma_add_cuda(const AttnArgs *plain, struct FlashSums sums_dev);

#ifdef __cplusplus
}
#endif
#endif
