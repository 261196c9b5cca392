/* SPDX-License-Identifier: MIT
 *
 * v2_mma_window: the window on tensor cores, forward and backward.
 *
 * There is no kernel in this file, and that is the point. Stages 03 and 04 planned their walks over
 * tiles from positions: a window is two more numbers in the same arithmetic. What a narrow window
 * changes is where the time goes. In the walk of stage 03:
 *
 *   - A block of 128 rows sees 128 + w keys. With w = 256 that are 6 tiles of 64, and 4 of them are
 *     cut by the edge of the window: masked tiles, rare in causal attention, are most of the work.
 *   - A block starts, works on 6 tiles and ends. To start takes as long as two tiles (positions,
 *     then K and V, then the first product), to end about as long: what a row of 256 tiles
 *     (N = 16384) hides, a window shows. More and smaller blocks on an SM help, since one works
 *     while another starts.
 *   - Of the pairs in visited tiles 257 / 384 are visible. Smaller tiles waste less and cost more
 *     shared-memory traffic for each product: stage 04 switches to them below a width that was
 *     found by measurement (NARROW_WINDOW in gradient_launch.cuh), stage 03 does not.
 *
 * So much of the time goes there that up to 256 keys the forward pass has a kernel of its own,
 * library/cuda/rolling_window.cu: no block starts or ends between two blocks of rows, and nearly
 * every tile is loaded once. What that kernel does not take (a cap, a full mask, d > 128, several
 * sequences, unaligned rows) goes to stage 03's as wide windows do.
 *
 * Prediction (H200, bf16, N = 16384, w = 1024): forward the rate of the causal kernel times the
 * visible share of the visited tiles, 1025 / 1152 = 0.89; backward 1025 / 1216 = 0.84 of it.
 *
 * Interface:
 * - sliding_window_v2_mma_window, sliding_window_v2_mma_window_backward: f16 and bf16, d <= 256.
 */
#include "library/backward_library.h"
#include "library/cuda/window_cuda.h"

static bool asks_for_weights(const AttnArgs *args)
{
    if (!window_clips(args) && !window_drops(args))
        return false;
    window_set_skip_reason("its kernels keep no weights that could be clipped or dropped: "
                           "v1_window_tiles does");
    return true;
}

AttnStatus sliding_window_v2_mma_window(const AttnArgs *args)
{
    if (args->Q.dtype == ATTN_F32 || asks_for_weights(args))
        return ATTN_SKIP;
    return window_plain_run_cuda(args, window_mma_run_cuda);
}

/* Without a norm the gradients of the kernel are those of the tensors, and it rounds them
 * itself. */
AttnStatus sliding_window_v2_mma_window_backward(const AttnArgs *args)
{
    if (args->Q.dtype == ATTN_F32 || asks_for_weights(args))
        return ATTN_SKIP;
    if (args->options && args->options->norm_group > 0)
        return window_plain_backward_cuda(args, window_mma_add_cuda);
    return window_plain_run_cuda(args, flash_backward_library_cuda);
}
