/* SPDX-License-Identifier: MIT
 *
 * sums.cu: what the backward passes on the GPU share: delta, and gradients in float32. cpu/sums.c
 * says why delta = rowsum(dO * O).
 *
 * All of it is one walk over memory with hardly any arithmetic, so only the walk matters: a warp
 * takes a row, its lanes neighbouring channels, so that one load of the warp covers whole sectors
 * of memory. Single elements: a row may start anywhere.
 *
 * Interface: flash_backward_delta_cuda, flash_sums_start_cuda, flash_sums_store_cuda
 * (flash_backward.h).
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/backward/backward_library.h"
#include "flash_backward.h"
#include "harness/device/cuda_check.h"

#define THREADS 256

/* Blocks for so many rows, a warp each. */
static unsigned blocks_of_rows(int64_t rows)
{
    return (unsigned)((rows + THREADS / 32 - 1) / (THREADS / 32));
}

/* This warp's row; `rows` or more: none. */
static __device__ __forceinline__ int64_t row_of_warp(void)
{
    return blockIdx.x * (int64_t)(THREADS / 32) + threadIdx.x / 32;
}

/* delta [B][H][Nq] */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    delta_kernel(const __grid_constant__ AttnArgs a, float *delta)
{
    const int64_t H = a.shape.H, Nq = a.shape.Nq, row = row_of_warp();
    const int lane = threadIdx.x % 32, d = (int)a.shape.d;
    if (row >= a.shape.B * H * Nq)
        return;
    const int64_t b = row / (H * Nq), h = row / Nq % H, i = row % Nq;
    const T *O_i = (const T *)a.O.data + tensor_offset(&a.O, b, i, h);
    const T *dO_i = (const T *)a.dO.data + tensor_offset(&a.dO, b, i, h);
    float sum = 0.0f;
    for (int x = lane; x < d; x += 32)
        sum = fmaf((float)dO_i[x], (float)O_i[x], sum);
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane == 0)
        delta[row] = sum;
}

/* to = from [B][N][heads][d], rounded to the dtype of `to` */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    store_kernel(const __grid_constant__ Tensor to, const float *from)
{
    const int64_t N = to.shape[1], heads = to.shape[2], row = row_of_warp();
    const int lane = threadIdx.x % 32, d = (int)to.shape[3];
    if (row >= to.shape[0] * N * heads)
        return;
    T *to_row = (T *)to.data + tensor_offset(&to, row / (N * heads), row / heads % N, row % heads);
    for (int x = lane; x < d; x += 32)
        to_row[x] = T(from[row * d + x]);
}

AttnStatus flash_backward_delta_cuda(const AttnArgs *a, float *delta_dev)
{
    const unsigned blocks = blocks_of_rows(a->shape.B * a->shape.H * a->shape.Nq);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    if (blocks == 0) /* no such grid */
        return ATTN_OK;
    if (a->dO.dtype == ATTN_F32)
        delta_kernel<float><<<blocks, THREADS, 0, stream>>>(*a, delta_dev);
    else if (a->dO.dtype == ATTN_F16)
        delta_kernel<__half><<<blocks, THREADS, 0, stream>>>(*a, delta_dev);
    else
        delta_kernel<__nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*a, delta_dev);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus flash_sums_start_cuda(const AttnShape *n, FlashSums sums_dev, void *stream)
{
    const size_t dQ_bytes = (size_t)(n->B * n->Nq * n->H * n->d) * sizeof(float);
    const size_t dK_bytes = (size_t)(n->B * n->Nk * n->Hkv * n->d) * sizeof(float);
    CUDA_TRY(cudaMemsetAsync(sums_dev.dQ, 0, dQ_bytes, (cudaStream_t)stream));
    CUDA_TRY(cudaMemsetAsync(sums_dev.dK, 0, dK_bytes, (cudaStream_t)stream));
    CUDA_TRY(cudaMemsetAsync(sums_dev.dV, 0, dK_bytes, (cudaStream_t)stream));
    return ATTN_OK;
}

static AttnStatus store_tensor(const Tensor *to, const float *from_dev, cudaStream_t stream)
{
    const unsigned blocks = blocks_of_rows(to->shape[0] * to->shape[1] * to->shape[2]);
    if (blocks == 0)
        return ATTN_OK;
    if (to->dtype == ATTN_F32)
        store_kernel<float><<<blocks, THREADS, 0, stream>>>(*to, from_dev);
    else if (to->dtype == ATTN_F16)
        store_kernel<__half><<<blocks, THREADS, 0, stream>>>(*to, from_dev);
    else
        store_kernel<__nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*to, from_dev);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus flash_sums_store_cuda(const AttnArgs *a, FlashSums sums_dev)
{
    const cudaStream_t stream = (cudaStream_t)a->stream;
    AttnStatus status = store_tensor(&a->dQ, sums_dev.dQ, stream);
    if (status == ATTN_OK)
        status = store_tensor(&a->dK, sums_dev.dK, stream);
    return status == ATTN_OK ? store_tensor(&a->dV, sums_dev.dV, stream) : status;
}
