/* SPDX-License-Identifier: MIT
 *
 * element.cuh: what the kernels of this stage share: one element of a tensor of any dtype as a
 * float, the size of a grid that gives every element its own thread, and the products of
 * v0_thread_per_score, for the building blocks of a build without cuBLAS.
 *
 * Interface:
 * - load_element, store_element, grid_for, BLOCK.
 * - plain_scores, plain_weighted_sum: on device pointers, queued on args->stream.
 */
#ifndef NAIVE_ELEMENT_CUH
#define NAIVE_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "naive.h"

/* Threads of a block: 8 warps. The kernels here are limited by memory, so the exact number hardly
 * matters as long as each multiprocessor has many warps to switch between. */
enum { BLOCK = 256 };

/* Blocks that hold at least one thread for each of `count` elements; the last one is padded, which
 * is why each kernel starts by comparing its index with the count. */
static inline unsigned grid_for(int64_t count)
{
    return (unsigned)((count + BLOCK - 1) / BLOCK);
}

/* element = tensor_offset(...) + x */
static __device__ inline float load_element(const Tensor *t, int64_t element)
{
    if (t->dtype == ATTN_F16)
        return __half2float(((const __half *)t->data)[element]);
    if (t->dtype == ATTN_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)t->data)[element]);
    return ((const float *)t->data)[element];
}

static __device__ inline void store_element(const Tensor *t, int64_t element, float value)
{
    if (t->dtype == ATTN_F16)
        ((__half *)t->data)[element] = __float2half_rn(value);
    else if (t->dtype == ATTN_BF16)
        ((__nv_bfloat16 *)t->data)[element] = __float2bfloat16_rn(value);
    else
        ((float *)t->data)[element] = value;
}

/* S_dev [B][H][Nq][Nk]: scaled, capped, masked */
AttnStatus plain_scores(const AttnArgs *args, float *S_dev);
/* O = P V; P_dev [B][H][Nq][Nk] */
AttnStatus plain_weighted_sum(const AttnArgs *args, const float *P_dev);

#endif
