/* SPDX-License-Identifier: MIT
 *
 * score_row.cuh: one block of threads at work on one row of scores that a product has left.
 *
 * Interface:
 * - score_row_make, finish_score: cap and mask of one score of the row.
 * - block_max, block_sum: one value from each thread of the block to one result, for all of them.
 * - store_score: writes a row back over itself, as float or rounded to 16 bits.
 */
#ifndef NAIVE_SCORE_ROW_CUH
#define NAIVE_SCORE_ROW_CUH

#include "attn_pairs.h"
#include "element.cuh"

/* What is the same for all scores of row i. */
struct ScoreRow {
    AttnPosition query;
    const uint8_t *mask_i; /* [Nk] or NULL */
    bool sees_all;         /* by the position rule: nobody needs to ask key by key */
};

static __device__ inline ScoreRow score_row_make(const AttnArgs *args, int64_t i)
{
    const AttnRange keys = attn_range(args->positions_k, 0, args->shape.Nk);
    ScoreRow row;
    row.query = attn_position(args->positions_q, i);
    row.mask_i = args->mask ? args->mask + i * args->shape.Nk : NULL;
    row.sees_all =
        attn_tile_class(args->rule, attn_range(args->positions_q, i, 1), keys) == ATTN_TILE_CLEAN;
    return row;
}

/* s = scale * q.k becomes the score of key j: capped, or -inf where it is not visible. */
static __device__ inline float finish_score(const AttnArgs *args, const ScoreRow *row, int64_t j,
                                            float s)
{
    const float cap = args->softcap;
    if (row->mask_i && row->mask_i[j])
        return -INFINITY;
    if (!row->sees_all &&
        !attn_visible(args->rule, row->query, attn_position(args->positions_k, j)))
        return -INFINITY;
    return cap > 0.0f ? cap * tanhf(s / cap) : s;
}

/* Within a warp, lanes exchange registers: each step halves the number of partial results. The
 * warps then meet in shared memory. All BLOCK threads must call. */
template <bool IS_MAX> static __device__ inline float block_reduce(float value)
{
    __shared__ float of_warp[BLOCK / 32];
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = IS_MAX ? fmaxf(value, other) : value + other;
    }
    __syncthreads(); /* of_warp may still be read from the call before */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < BLOCK / 32; warp++)
        value = IS_MAX ? fmaxf(value, of_warp[warp]) : value + of_warp[warp];
    return value;
}

static __device__ inline float block_max(float value)
{
    return block_reduce<true>(value);
}

static __device__ inline float block_sum(float value)
{
    return block_reduce<false>(value);
}

/* Puts value j of a row of Nk floats back, as dtype. All threads call it together, with j =
 * first + threadIdx.x for first = 0, BLOCK, 2*BLOCK ..., each having read its value before.
 *
 * 16-bit values take half the room, so value j lands on the float j/2. Those up to `first` are
 * used up already; the ones of this step are once every thread has arrived. */
static __device__ inline void store_score(float *row, AttnDtype dtype, int64_t Nk, int64_t j,
                                          float value)
{
    if (dtype != ATTN_F32)
        __syncthreads();
    if (j >= Nk)
        return;
    if (dtype == ATTN_F16)
        ((__half *)row)[j] = __float2half_rn(value);
    else if (dtype == ATTN_BF16)
        ((__nv_bfloat16 *)row)[j] = __float2bfloat16_rn(value);
    else
        row[j] = value;
}

#endif
