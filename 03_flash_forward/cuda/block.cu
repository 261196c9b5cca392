/* SPDX-License-Identifier: MIT
 *
 * block.cu: the block kernel of stages 05 and 06 and of the operator: v2's for float32, v5's for 16
 * bits, and memory for the states that v5 merges.
 *
 * Interface:
 * - flash_cuda_workspace_bytes, flash_cuda_run, flash_cuda_run_last: without an allocation inside.
 * - flash_block_cuda, flash_forward_v5_clean_tiles: the same with memory of their own.
 */
#include "alloc.h"
#include "block.cuh"

size_t flash_cuda_workspace_bytes(const AttnShape *shape, AttnDtype dtype)
{
    return dtype == ATTN_F32 ? 0 : flash_16_bit_workspace_bytes(shape);
}

AttnStatus flash_cuda_run(const AttnArgs *a, float *O_state_dev, void *workspace_dev)
{
    return a->Q.dtype == ATTN_F32 ? flash_block_f32(a, O_state_dev)
                                  : flash_block_16_bit(a, O_state_dev, workspace_dev);
}

AttnStatus flash_cuda_run_last(const AttnArgs *a, float *O_state_dev)
{
    return a->Q.dtype == ATTN_F32 ? ATTN_SKIP : flash_block_16_bit_last(a, O_state_dev);
}

AttnStatus flash_block_cuda(const AttnArgs *a, float *O_state_dev)
{
    const size_t bytes = flash_cuda_workspace_bytes(&a->shape, a->Q.dtype);
    void *workspace_dev = bytes ? workspace_alloc_device(bytes) : NULL;
    if (bytes && !workspace_dev)
        return ATTN_NO_MEMORY;
    const AttnStatus status = flash_cuda_run(a, O_state_dev, workspace_dev);
    workspace_free_device(workspace_dev); /* kept until the kernel is done */
    return status;
}

AttnStatus flash_forward_v5_clean_tiles(const AttnArgs *a)
{
    return a->Q.dtype == ATTN_F32 ? ATTN_SKIP : flash_block_cuda(a, NULL);
}
