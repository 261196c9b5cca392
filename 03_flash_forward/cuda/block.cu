/* SPDX-License-Identifier: MIT
 *
 * block.cu: the block kernel of stages 05 and 06 and of the operator: which kernel, in which
 * memory.
 *
 * Interface:
 * - flash_cuda_workspace_bytes, flash_cuda_run: without an allocation inside.
 * - flash_block_cuda: the same with memory of its own.
 */
#include "block.cuh"

size_t flash_cuda_workspace_bytes(const AttnShape *, AttnDtype)
{
    return 0;
}

AttnStatus flash_cuda_run(const AttnArgs *a, float *O_state_dev, void *)
{
    return a->Q.dtype == ATTN_F32 ? flash_block_f32(a, O_state_dev)
                                  : flash_block_16_bit(a, O_state_dev);
}

AttnStatus flash_block_cuda(const AttnArgs *a, float *O_state_dev)
{
    return flash_cuda_run(a, O_state_dev, NULL);
}
