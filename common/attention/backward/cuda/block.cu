/* SPDX-License-Identifier: MIT
 *
 * block.cu: the library on the GPU, by dtype: the whole pass, and the block kernel of stages 05 and
 * 06.
 *
 * Interface:
 * - flash_backward_library_cuda, flash_backward_tiles_library_cuda: the whole pass.
 * - flash_backward_cuda_workspace_bytes, flash_backward_cuda_run: without an allocation inside.
 * - flash_backward_block_cuda: the same with memory of its own.
 */
#include "alloc.h"
#include "attention/backward/backward_library.h"
#include "block.cuh"

/* float32: delta. */
size_t flash_backward_cuda_workspace_bytes(const AttnShape *n, AttnDtype dtype)
{
    return dtype == ATTN_F32 ? (size_t)(n->B * n->H * n->Nq) * sizeof(float)
                             : flash_gradients_workspace_bytes(n);
}

static AttnStatus run_f32(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                          float *workspace_dev)
{
    if (sums_dev.dQ)
        return flash_gradients_f32_run(a, delta_dev, sums_dev);
    const AttnStatus status = flash_backward_delta_cuda(a, workspace_dev);
    return status == ATTN_OK ? flash_gradients_f32_run(a, workspace_dev, sums_dev) : status;
}

AttnStatus flash_backward_cuda_run(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                                   void *workspace_dev)
{
    return a->Q.dtype == ATTN_F32
               ? run_f32(a, delta_dev, sums_dev, (float *)workspace_dev)
               : flash_gradients_run(a, delta_dev, sums_dev, workspace_dev, GRADIENTS_ALL);
}

AttnStatus flash_backward_cuda_begin(const AttnArgs *a, const float *delta_dev, void *workspace_dev)
{
    const FlashSums none = {NULL, NULL, NULL};
    return a->Q.dtype == ATTN_F32
               ? ATTN_OK
               : flash_gradients_run(a, delta_dev, none, workspace_dev, GRADIENTS_BEGIN);
}

AttnStatus flash_backward_cuda_add(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                                   void *workspace_dev)
{
    return a->Q.dtype == ATTN_F32
               ? flash_gradients_f32_run(a, delta_dev, sums_dev)
               : flash_gradients_run(a, delta_dev, sums_dev, workspace_dev, GRADIENTS_ADD);
}

AttnStatus flash_backward_cuda_end(const AttnArgs *a, FlashSums sums_dev, void *workspace_dev)
{
    return a->Q.dtype == ATTN_F32
               ? ATTN_OK
               : flash_gradients_run(a, NULL, sums_dev, workspace_dev, GRADIENTS_END);
}

AttnStatus flash_backward_block_cuda(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev)
{
    const size_t bytes = flash_backward_cuda_workspace_bytes(&a->shape, a->Q.dtype);
    void *workspace_dev = bytes ? workspace_alloc_device(bytes) : NULL;
    if (bytes && !workspace_dev)
        return ATTN_NO_MEMORY;
    const AttnStatus status = flash_backward_cuda_run(a, delta_dev, sums_dev, workspace_dev);
    workspace_free_device(workspace_dev); /* kept until the kernels are done */
    return status;
}

FlashTiles flash_backward_tiles_library_cuda(const AttnArgs *a)
{
    return a->Q.dtype == ATTN_F32 ? flash_gradients_f32_tiles(a) : flash_gradients_tiles(a);
}

AttnStatus flash_backward_library_cuda(const AttnArgs *a)
{
    const FlashSums to_tensors = {NULL, NULL, NULL};
    return flash_backward_block_cuda(a, NULL, to_tensors);
}
