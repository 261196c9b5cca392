/* SPDX-License-Identifier: MIT
 *
 * v1_window_tiles: one launch whose blocks walk over the tiles that the window leaves, and nothing
 * else. Of N^2 pairs N (left + right + 1) are visible; a block of rows finds the first and the last
 * tile of keys that any of its rows sees by arithmetic on positions, and starts at one end:
 *
 *     keys     0 ............................................ Nk
 *     row i0   .   .   .   .  [masked|full|full|masked]  .   .     window
 *     row i1   .   .   .   .   .   .  [masked|full|full|masked]
 *
 * Tiles outside cost nothing, not even a question. Tiles inside of which every pair is visible
 * (full tiles) skip the mask. Only the two ends have to ask who sees whom: about two tiles a block,
 * whatever the window. So time grows with N times the window, plus the ends.
 *
 * That walk is what stage 03's library plans for any kernel (row_mask.cuh), so there is no kernel
 * in this file. The libraries' float32 kernels do the work; weights that are not P have one of
 * their own (attention/window/cuda/weighted_window.cu).
 *
 * Interface:
 * - sliding_window_v1_window_tiles, sliding_window_v1_window_tiles_backward: every dtype, option,
 *   mask and layout; d <= 256.
 */
#include "attention/backward/backward_library.h"
#include "attention/window/cuda/window_cuda.h"
#include "attn_options.h"

AttnStatus sliding_window_v1_window_tiles(const AttnArgs *args)
{
    return args->shape.d > 256 ? ATTN_SKIP : window_plain_run_cuda(args, window_tiles_run_cuda);
}

/* Plain float32 attention needs no sums: stage 04's kernels write the tensors. */
AttnStatus sliding_window_v1_window_tiles_backward(const AttnArgs *args)
{
    const bool norm = args->options && args->options->norm_group > 0;
    if (args->shape.d > 256)
        return ATTN_SKIP;
    if (args->Q.dtype == ATTN_F32 && !norm && !attn_clips(args) && !attn_drops(args))
        return window_plain_run_cuda(args, flash_backward_library_cuda);
    return window_plain_backward_cuda(args, window_tiles_add_cuda);
}
