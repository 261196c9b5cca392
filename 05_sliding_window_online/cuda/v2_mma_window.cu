/* SPDX-License-Identifier: MIT
 *
 * v2_mma_window: the window on tensor cores, forward and backward.
 *
 * There is no kernel in this file, and that is the point. Stages 03 and 04 planned their walks over
 * tiles from positions: a window is two more numbers in the same arithmetic. What a narrow window
 * changes is where the time goes:
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
 * Interface:
 * - sliding_window_v2_mma_window, sliding_window_v2_mma_window_backward: f16 and bf16, d <= 256.
 */
#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attention/window/cuda/window_cuda.h"
#include "attn_options.h"

static bool asks_for_weights(const AttnArgs *args)
{
    if (!attn_clips(args) && !attn_drops(args))
        return false;
    window_set_skip_reason("its kernels keep no weights that could be clipped or dropped: "
                           "v1_window_tiles does");
    return true;
}

AttnStatus sliding_window_v2_mma_window(const AttnArgs *args)
{
    if (args->Q.dtype == ATTN_F32 || asks_for_weights(args))
        return ATTN_SKIP;
    return window_plain_run_cuda(args, flash_forward_library_cuda);
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
