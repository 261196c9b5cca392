/* SPDX-License-Identifier: MIT
 *
 * small_work.cu: sums and changes of type between the block kernels.
 *
 * Narrowing in place. Element k is read at byte 4k and written at byte 2k, so thousands of threads
 * in no order at all would write over what others have not read yet. But elements 2^e .. 2^(e+1)-1
 * are read at bytes 4 2^e and more, and written before byte 4 2^e: within such a run no thread can
 * hurt another, and the runs before it have been read already. So: a run, and one of twice the
 * length, and so on, a launch each, since launches of a stream follow one another. The first
 * elements, up to FIRST, are read by one block, which waits until all of them are in registers.
 * Widening is the same film backwards.
 *
 *     bytes   0        2 2^e      4 2^e                8 2^e
 *             |  done  |  written  |  read: this run    |  not yet
 *
 * Interface: small_work.h.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "harness/device/cuda_check.h"
#include "runtime/cuda/small_work.h"

#define THREADS 256
#define PER     8               /* elements of a thread in the first run */
#define FIRST   (THREADS * PER) /* a power of two */

/* Enough blocks to fill the GPU. A thread walks on in steps of the whole grid, so that neighbours
 * always read neighbouring addresses. */
static unsigned blocks_of(int64_t count)
{
    const int64_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 4096 ? blocks : 4096); /* a thread takes several elements */
}

static __global__ void __launch_bounds__(THREADS) empty_rows_kernel(float *lse, int64_t count)
{
    const int64_t step = gridDim.x * (int64_t)THREADS;
    for (int64_t k = blockIdx.x * (int64_t)THREADS + threadIdx.x; k < count; k += step)
        lse[k] = -INFINITY;
}

/* to [count] = from [count] */
template <typename To, typename From>
static __global__ void __launch_bounds__(THREADS)
    cast_kernel(To *to, const From *from, int64_t first, int64_t end)
{
    const int64_t step = gridDim.x * (int64_t)THREADS;
    for (int64_t k = first + blockIdx.x * (int64_t)THREADS + threadIdx.x; k < end; k += step)
        to[k] = To((float)from[k]);
}

static __global__ void __launch_bounds__(THREADS)
    add_kernel(float *to, const float *from, int64_t count)
{
    const int64_t step = gridDim.x * (int64_t)THREADS;
    for (int64_t k = blockIdx.x * (int64_t)THREADS + threadIdx.x; k < count; k += step)
        to[k] += from[k];
}

/* The first run, by one block: everything is read before anything is written. */
template <typename To, typename From>
static __global__ void __launch_bounds__(THREADS) first_run_kernel(void *p, int count)
{
    float value[PER];
#pragma unroll
    for (int t = 0; t < PER; t++) {
        const int k = t * THREADS + threadIdx.x;
        value[t] = k < count ? (float)((const From *)p)[k] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < PER; t++) {
        const int k = t * THREADS + threadIdx.x;
        if (k < count)
            ((To *)p)[k] = To(value[t]);
    }
}

template <typename To, typename From>
static AttnStatus cast_run(void *p, int64_t first, int64_t end, cudaStream_t stream)
{
    cast_kernel<<<blocks_of(end - first), THREADS, 0, stream>>>((To *)p, (const From *)p, first,
                                                                end);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* float32 to T: upwards, each run twice as long as the one before. */
template <typename T> static AttnStatus narrow(void *p, int64_t count, cudaStream_t stream)
{
    AttnStatus status = ATTN_OK;
    first_run_kernel<T, float><<<1, THREADS, 0, stream>>>(p, (int)lesser(count, FIRST));
    CUDA_TRY_LAUNCH();
    for (int64_t first = FIRST; first < count && status == ATTN_OK; first *= 2)
        status = cast_run<T, float>(p, first, lesser(2 * first, count), stream);
    return status;
}

/* T to float32: the same runs, the longest first. */
template <typename T> static AttnStatus widen(void *p, int64_t count, cudaStream_t stream)
{
    AttnStatus status = ATTN_OK;
    int64_t first = FIRST;
    while (2 * first < count)
        first *= 2;
    for (; first >= FIRST && status == ATTN_OK; first /= 2)
        if (first < count)
            status = cast_run<float, T>(p, first, lesser(2 * first, count), stream);
    if (status != ATTN_OK)
        return status;
    first_run_kernel<float, T><<<1, THREADS, 0, stream>>>(p, (int)lesser(count, FIRST));
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus launch_empty_rows(float *lse, int64_t count, cudaStream_t stream)
{
    if (count == 0)
        return ATTN_OK;
    empty_rows_kernel<<<blocks_of(count), THREADS, 0, stream>>>(lse, count);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus launch_cast(void *to, AttnDtype dtype, const float *from, int64_t count,
                       cudaStream_t stream)
{
    if (count == 0)
        return ATTN_OK;
    if (dtype == ATTN_F32)
        cast_kernel<<<blocks_of(count), THREADS, 0, stream>>>((float *)to, from, (int64_t)0, count);
    else if (dtype == ATTN_F16)
        cast_kernel<<<blocks_of(count), THREADS, 0, stream>>>((__half *)to, from, (int64_t)0,
                                                              count);
    else
        cast_kernel<<<blocks_of(count), THREADS, 0, stream>>>((__nv_bfloat16 *)to, from, (int64_t)0,
                                                              count);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus launch_add(float *to, const float *from, int64_t count, cudaStream_t stream)
{
    if (count == 0)
        return ATTN_OK;
    add_kernel<<<blocks_of(count), THREADS, 0, stream>>>(to, from, count);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus launch_narrow(void *p, int64_t count, AttnDtype dtype, cudaStream_t stream)
{
    if (count == 0 || dtype == ATTN_F32)
        return ATTN_OK;
    return dtype == ATTN_F16 ? narrow<__half>(p, count, stream)
                             : narrow<__nv_bfloat16>(p, count, stream);
}

AttnStatus launch_widen(void *p, int64_t count, AttnDtype dtype, cudaStream_t stream)
{
    if (count == 0 || dtype == ATTN_F32)
        return ATTN_OK;
    return dtype == ATTN_F16 ? widen<__half>(p, count, stream)
                             : widen<__nv_bfloat16>(p, count, stream);
}
