/* SPDX-License-Identifier: MIT
 *
 * library.cu: whole calls of stage 05 on a GPU, forward and backward, with every option. There is
 * no kernel in this file, and that is the point: stages 03 and 04 planned their walks over tiles
 * from positions, and a window is two more numbers in the same arithmetic.
 *
 * One launch, whose blocks walk over the tiles that the window leaves, and nothing else. Of N^2
 * pairs N (left + right + 1) are visible; a block of rows finds the first and the last tile of keys
 * that any of its rows sees by arithmetic on positions, and starts at one end:
 *
 *     keys     0 ............................................ Nk
 *     row i0   .   .   .   .  [masked|full|full|masked]  .   .     window
 *     row i1   .   .   .   .   .   .  [masked|full|full|masked]
 *
 * Tiles outside cost nothing, not even a question. Tiles inside of which every pair is visible
 * (full tiles) skip the mask. Only the two ends have to ask who sees whom: about two tiles a block,
 * whatever the window. So time grows with N times the window, plus the ends.
 *
 * Tensors of 16 bits go to the tensor cores, float32 to the multiply-adds of the other kernels.
 * Weights that are not P (clipping, dropout) have kernels of their own in float32
 * (weighted_window.cu). What a narrow window changes on tensor cores is where the time goes:
 *
 *   - A block of 192 rows (Hopper, d = 128) sees 192 + w keys. With w = 256 that are 6 tiles of 80,
 *     and most of them are cut by an edge of the window: masked tiles, rare in causal attention,
 *     are most of the work.
 *   - A row tile begins with a product and a softmax that nothing overlaps, and ends with a product
 *     and with O on its way to memory. What a row of 200 tiles (N = 16384) hides, a row of 6 shows.
 *   - Rows that stand together see nearly the same keys. On Hopper each warpgroup of 64 rows leaves
 *     out the tiles that only its neighbours see: 320 keys a row in place of 448, where 257 are
 *     visible. Stage 04 switches to smaller tiles below a width that was found by measurement
 *     (NARROW_WINDOW in gradient_launch.cuh).
 *
 * Prediction (H200, bf16, N = 16384, d = 128): forward, w = 256: 260 TFLOP/s; w = 1024: the rate of
 * the causal kernel times the visible share of the visited tiles, 1025 / 1152 = 0.89; backward
 * 1025 / 1216 = 0.84 of it. Measured: docs/lab/05_rungs.md.
 *
 * Interface: sliding_window_library_cuda, sliding_window_library_cuda_backward (window_library.h).
 */
#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attention/window/cuda/window_cuda.h"
#include "attention/window/window_library.h"
#include "attn_options.h"

static bool changes_weights(const AttnArgs *args)
{
    return attn_clips(args) || attn_drops(args);
}

AttnStatus sliding_window_library_cuda(const AttnArgs *args)
{
    if (args->shape.d > 256)
        return ATTN_SKIP;
    return window_plain_run_cuda(args, args->Q.dtype == ATTN_F32 || changes_weights(args)
                                           ? window_tiles_run_cuda
                                           : flash_forward_library_cuda);
}

/* Without a norm and with weights that are P, the gradients of stage 04's kernels are those of the
 * tensors, and they round them. */
AttnStatus sliding_window_library_cuda_backward(const AttnArgs *args)
{
    const bool norm = args->options && args->options->norm_group > 0;
    if (args->shape.d > 256)
        return ATTN_SKIP;
    if (!norm && !changes_weights(args))
        return window_plain_run_cuda(args, flash_backward_library_cuda);
    return window_plain_backward_cuda(args, args->Q.dtype == ATTN_F32 || changes_weights(args)
                                                ? window_tiles_add_cuda
                                                : window_mma_add_cuda);
}
