/* SPDX-License-Identifier: MIT
 *
 * block.cu: the block kernel of stages 05 and 06, and the whole pass around any block kernel.
 *
 * Interface:
 * - flash_backward_cuda_workspace_bytes, flash_backward_cuda_run: without an allocation inside.
 * - flash_backward_block_cuda: the same with memory of its own.
 * - flash_backward_by_block_cuda (block.cuh).
 */
#include "alloc.h"
#include "block.cuh"

/* float32: delta. */
size_t flash_backward_cuda_workspace_bytes(const AttnShape *n, AttnDtype dtype)
{
    return dtype == ATTN_F32 ? (size_t)(n->B * n->H * n->Nq) * sizeof(float)
                             : flash_backward_v4_workspace_bytes(n);
}

static AttnStatus run_f32(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                          float *workspace_dev)
{
    if (sums_dev.dQ)
        return flash_backward_two_kernels_run(a, delta_dev, sums_dev);
    const AttnStatus status = flash_backward_delta_cuda(a, workspace_dev);
    return status == ATTN_OK ? flash_backward_two_kernels_run(a, workspace_dev, sums_dev) : status;
}

AttnStatus flash_backward_cuda_run(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                                   void *workspace_dev)
{
    return a->Q.dtype == ATTN_F32
               ? run_f32(a, delta_dev, sums_dev, (float *)workspace_dev)
               : flash_backward_v4_run(a, delta_dev, sums_dev, workspace_dev, GRADIENTS_ALL);
}

AttnStatus flash_backward_cuda_begin(const AttnArgs *a, const float *delta_dev, void *workspace_dev)
{
    const FlashSums none = {NULL, NULL, NULL};
    return a->Q.dtype == ATTN_F32
               ? ATTN_OK
               : flash_backward_v4_run(a, delta_dev, none, workspace_dev, GRADIENTS_BEGIN);
}

AttnStatus flash_backward_cuda_add(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                                   void *workspace_dev)
{
    return a->Q.dtype == ATTN_F32
               ? flash_backward_two_kernels_run(a, delta_dev, sums_dev)
               : flash_backward_v4_run(a, delta_dev, sums_dev, workspace_dev, GRADIENTS_ADD);
}

AttnStatus flash_backward_cuda_end(const AttnArgs *a, FlashSums sums_dev, void *workspace_dev)
{
    return a->Q.dtype == ATTN_F32
               ? ATTN_OK
               : flash_backward_v4_run(a, NULL, sums_dev, workspace_dev, GRADIENTS_END);
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

AttnStatus flash_backward_by_block_cuda(const AttnArgs *a, FlashBlockFn add_block)
{
    const AttnShape *n = &a->shape;
    const int64_t Q_floats = n->B * n->Nq * n->H * n->d, K_floats = n->B * n->Nk * n->Hkv * n->d;
    const int64_t rows = n->B * n->H * n->Nq;
    float *memory_dev =
        (float *)workspace_alloc_device((size_t)(Q_floats + 2 * K_floats + rows) * sizeof(float));
    if (!memory_dev)
        return ATTN_NO_MEMORY;
    const FlashSums sums_dev = {memory_dev, memory_dev + Q_floats,
                                memory_dev + Q_floats + K_floats};
    float *delta_dev = memory_dev + Q_floats + 2 * K_floats;
    AttnStatus status = flash_backward_delta_cuda(a, delta_dev);
    if (status == ATTN_OK)
        status = flash_sums_start_cuda(n, sums_dev, a->stream);
    if (status == ATTN_OK)
        status = add_block(a, delta_dev, sums_dev);
    if (status == ATTN_OK)
        status = flash_sums_store_cuda(a, sums_dev);
    workspace_free_device(memory_dev); /* kept until the kernels are done */
    return status;
}
