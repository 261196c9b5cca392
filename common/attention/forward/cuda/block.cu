/* SPDX-License-Identifier: MIT
 *
 * block.cu: the library on the GPU, as stages 04 to 06 and the operator call it: one kernel for
 * float32, one for 16 bits, the division at the end of an unnormalised state, and memory for the
 * parts of split keys.
 *
 * Interface:
 * - flash_cuda_workspace_bytes, flash_cuda_run: without an allocation inside.
 * - flash_cuda_resume, flash_cuda_resume_heads, flash_cuda_rows_store (block_resume.h): with an
 *   unnormalised state.
 * - flash_block_cuda, flash_forward_library_cuda: the same with memory of their own.
 */
#include "alloc.h"
#include "block_kernels.cuh"
#include "dispatch.cuh"

#define THREADS 256

size_t flash_cuda_workspace_bytes(const AttnShape *shape, AttnDtype dtype)
{
    return dtype == ATTN_F32 ? 0 : flash_16_bit_workspace_bytes(shape);
}

/* A grid of no block is an error. */
static bool has_no_rows(const AttnArgs *a)
{
    return a->shape.B * a->shape.H * a->shape.Nq == 0;
}

AttnStatus flash_cuda_resume(const AttnArgs *a, float *O_state_dev, FlashRows rows_dev,
                             void *workspace_dev)
{
    if (has_no_rows(a))
        return ATTN_OK;
    return a->Q.dtype == ATTN_F32 ? flash_block_f32(a, O_state_dev, rows_dev)
                                  : flash_block_16_bit(a, O_state_dev, rows_dev, workspace_dev);
}

AttnStatus flash_cuda_run(const AttnArgs *a, float *O_state_dev, void *workspace_dev)
{
    return flash_cuda_resume(a, O_state_dev, no_rows(), workspace_dev);
}

AttnStatus flash_cuda_resume_heads(const AttnArgs *a, float *O_state_dev, FlashRows rows_dev,
                                   FlashHeads heads, int last)
{
    if (has_no_rows(a) || heads.count == 0)
        return ATTN_OK;
    return a->Q.dtype == ATTN_F32 ? ATTN_SKIP
                                  : flash_block_16_bit_heads(a, O_state_dev, rows_dev, heads, last);
}

/* One warp for each row of O [B][Nq][H]. The product with 1 / l is the one of the kernels: a state
 * that saw one block of keys becomes the bits of the plain forward pass. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    rows_store_kernel(const __grid_constant__ AttnArgs a, const float *O_state, const float *l_rows)
{
    const int64_t H = a.shape.H, Nq = a.shape.Nq, d = a.shape.d;
    const int64_t row = blockIdx.x * (int64_t)(THREADS / 32) + threadIdx.x / 32;
    if (row >= a.shape.B * Nq * H)
        return;
    const int64_t b = row / (Nq * H), i = row / H % Nq, h = row % H;
    const float l = l_rows[(b * H + h) * Nq + i]; /* [B][H][Nq] */
    const float inverse = 1.0f / l;
    T *O = (T *)a.O.data + tensor_offset(&a.O, b, i, h);
    for (int64_t x = threadIdx.x % 32; x < d; x += 32)
        O[x] = T(l == 0.0f ? 0.0f : O_state[row * d + x] * inverse);
}

template <typename T>
static AttnStatus rows_store(const AttnArgs *a, const float *O_state_dev, const float *l_dev)
{
    const int64_t rows = a->shape.B * a->shape.Nq * a->shape.H, each = THREADS / 32;
    if (rows == 0)
        return ATTN_OK;
    rows_store_kernel<T>
        <<<(unsigned)((rows + each - 1) / each), THREADS, 0, (cudaStream_t)a->stream>>>(
            *a, O_state_dev, l_dev);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus flash_cuda_rows_store(const AttnArgs *a, const float *O_state_dev, FlashRows rows_dev)
{
    if (a->O.dtype == ATTN_F32)
        return rows_store<float>(a, O_state_dev, rows_dev.l);
    return a->O.dtype == ATTN_F16 ? rows_store<__half>(a, O_state_dev, rows_dev.l)
                                  : rows_store<__nv_bfloat16>(a, O_state_dev, rows_dev.l);
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

AttnStatus flash_forward_library_cuda(const AttnArgs *a)
{
    return flash_block_cuda(a, NULL);
}

FlashTiles flash_tiles_library_cuda(const AttnArgs *a)
{
    return a->Q.dtype == ATTN_F32 ? flash_tiles_f32(a) : flash_tiles_16_bit(a);
}
