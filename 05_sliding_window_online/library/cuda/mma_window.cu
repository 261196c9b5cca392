/* SPDX-License-Identifier: MIT
 *
 * mma_window.cu: the window on tensor cores: which kernel takes a case.
 *
 * Interface:
 * - window_mma_run_cuda, window_mma_add_cuda (window_cuda.h).
 * - window_tiles_v2_mma, window_traffic_v2_mma (window_model.h): of the kernel that takes the case,
 *   for the byte model.
 */
#include "alloc.h"
#include "library/backward_library.h"
#include "library/flash_library.h"
#include "window_cuda.h"
#include "window_model.h"

AttnStatus window_mma_run_cuda(const AttnArgs *plain)
{
    const AttnStatus status = window_rolling_cuda(plain);
    return status == ATTN_SKIP ? flash_forward_library_cuda(plain) : status;
}

FlashTiles window_tiles_v2_mma(const AttnArgs *args)
{
    const RollingTiles rolling = window_rolling_tiles_cuda(args);
    return rolling.blocks > 0 ? flash_tiles_of(&args->shape, rolling.strip, rolling.keys)
                              : flash_tiles_library_cuda(args);
}

ModelTraffic window_traffic_v2_mma(const AttnArgs *args, FlashTiles tiles)
{
    const RollingTiles rolling = window_rolling_tiles_cuda(args);
    return rolling.blocks > 0
               ? model_rolling_traffic(args, rolling.rows, rolling.keys, rolling.blocks)
               : model_split_traffic(args, tiles.Br, tiles.Bc, tiles.splits);
}

AttnStatus window_mma_add_cuda(const AttnArgs *plain, FlashSums sums)
{
    const AttnShape *n = &plain->shape;
    const size_t bytes = (size_t)(n->B * n->H * n->Nq) * sizeof(float);
    float *delta_dev = (float *)workspace_alloc_device(bytes);
    if (!delta_dev)
        return ATTN_NO_MEMORY;
    AttnStatus status = flash_backward_delta_cuda(plain, delta_dev);
    if (status == ATTN_OK)
        status = flash_backward_block_cuda(plain, delta_dev, sums);
    workspace_free_device(delta_dev); /* kept until the kernels are done */
    return status;
}
