/* SPDX-License-Identifier: MIT
 *
 * tiled_softmax.h: the contract of stage 02. How can softmax be computed without seeing the whole
 * row?
 *
 *     y_c = exp(x_c - m) / l        m = max_c x_c        l = sum_c exp(x_c - m)
 *
 * m and l need the whole row, so it seems that nothing can be written before everything was read.
 * The way out is a pair (m, l) that any piece of a row can compute alone, and a merge that makes
 * one pair from two:
 *
 *     m = max(m_a, m_b)        l = l_a exp(m_a - m) + l_b exp(m_b - m)
 *
 * The merge is associative and has an identity, (-inf, 0): pieces may be of any size, come in any
 * order and be merged in any tree. Threads, warps, blocks and (stage 06) whole GPUs use this one
 * operator.
 *
 * Interface:
 * - SoftmaxState, softmax_empty, softmax_push, softmax_merge, softmax_inverse, softmax_lse.
 * - SoftmaxArgs, SoftmaxFn: the softmax alone, on rows x cols float32, row-major and contiguous.
 * - softmax_v*: the softmax of each variant. attention_v*: the same softmax between stage 01's
 *   products, which is what the table and the sweeps judge.
 * - softmax_*_counted: the same source, compiled to count its element accesses (counted.h).
 */
#ifndef TILED_SOFTMAX_H
#define TILED_SOFTMAX_H

#include <math.h>
#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TILED_SOFTMAX_ABI_VERSION 2

/* What a set of scores leaves behind: its maximum, and the sum of exp(s - m) over it. */
typedef struct SoftmaxState {
    float m; /* running maximum, -inf for the empty set */
    float l; /* running sum of exp(s - m), 0 for the empty set */
} SoftmaxState;

static inline ATTN_HD SoftmaxState softmax_empty(void)
{
    SoftmaxState empty = {-INFINITY, 0.0f};
    return empty;
}

/* What to subtract before exp. While nothing but -inf was seen, m is -inf and x - m would be
 * (-inf) - (-inf) = NaN. Any finite number serves then, because exp(-inf - 0) is 0 as it must be;
 * and a NaN among the scores still comes out as NaN. */
static inline ATTN_HD float softmax_shift(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

/* State of the union of two sets. alpha = exp(m_old - m_new) brings each l to the new maximum. */
static inline ATTN_HD SoftmaxState softmax_merge(SoftmaxState a, SoftmaxState b)
{
    SoftmaxState merged;
    float shift;
    merged.m = a.m > b.m ? a.m : b.m;
    shift = softmax_shift(merged.m);
    merged.l = a.l * expf(a.m - shift) + b.l * expf(b.m - shift);
    return merged;
}

/* One more score: the merge with the one-element state (s, 1). A score of -inf is the empty set:
 * the subtraction of the shift makes it so without a branch. */
static inline ATTN_HD SoftmaxState softmax_push(SoftmaxState a, float s)
{
    float m_new = a.m > s ? a.m : s;
    float shift = softmax_shift(m_new);
    a.l = a.l * expf(a.m - shift) + expf(s - shift);
    a.m = m_new;
    return a;
}

/* 1 / l, and 0 for a row without any visible score: its softmax is all zeros, never NaN. */
static inline ATTN_HD float softmax_inverse(SoftmaxState a)
{
    return a.l == 0.0f ? 0.0f : 1.0f / a.l;
}

/* Log-sum-exp in natural logarithm, -inf for the empty set. */
static inline ATTN_HD float softmax_lse(SoftmaxState a)
{
    return a.l == 0.0f ? -INFINITY : a.m + logf(a.l);
}

typedef struct SoftmaxArgs {
    const float *x; /* [rows][cols] scores; a device pointer for the CUDA variants */
    float *y;       /* [rows][cols] probabilities; may be x itself */
    float *lse;     /* [rows], or NULL when nobody asks */
    int64_t rows, cols;
    int threads;     /* CPU threads, >= 1 */
    void *workspace; /* softmax_workspace_bytes() bytes, device memory for CUDA; NULL if 0 */
    void *stream;    /* cudaStream_t, or NULL on the CPU */
} SoftmaxArgs;

typedef AttnStatus (*SoftmaxFn)(const SoftmaxArgs *args);

/* Only v3_split_row needs memory of its own: one state for each slice of each row. */
size_t softmax_workspace_bytes(int64_t rows, int64_t cols);

/* Widest row that v3_simd_threads and v2_one_read keep on chip: they read it once, wider ones
 * twice. The model of the access counts (rows_mode.c) needs the numbers. */
#define SIMD_BLOCK_COLS 4096
#define ONE_READ_COLS   32768

/* Rows of v4_fused_rows' query tile: K and V are read once for each. */
#define FUSED_TILE_ROWS 128

/* Attention of stage 02 v0-v3 on the CPU: stage 01's scores, `softmax` on them in place, stage
 * 01's weighted sum. Its CUDA twin is cuda/attention_on_device.cu. */
AttnStatus attention_by_softmax(const AttnArgs *args, SoftmaxFn softmax);

AttnStatus softmax_v0_three_pass(const SoftmaxArgs *args);
AttnStatus softmax_v1_online(const SoftmaxArgs *args);
AttnStatus softmax_v2_tiled_merge(const SoftmaxArgs *args);
AttnStatus softmax_v3_simd_threads(const SoftmaxArgs *args);
AttnStatus softmax_v0_three_pass_counted(const SoftmaxArgs *args);
AttnStatus softmax_v1_online_counted(const SoftmaxArgs *args);
AttnStatus softmax_v2_tiled_merge_counted(const SoftmaxArgs *args);
AttnStatus softmax_v3_simd_threads_counted(const SoftmaxArgs *args);

/* (m, l) filling in for one row of a small problem (host tensors). 0, or -1: memory is short. */
int softmax_trace(const AttnArgs *args, FILE *to);

/* A wrong example kept on purpose: exp without subtracting the maximum. Not a variant. */
AttnStatus softmax_unsafe_no_max(const SoftmaxArgs *args);

/* Copies x to y: what the bandwidth figures are compared with, with the same prototype. */
AttnStatus softmax_copy_on_host(const SoftmaxArgs *args);
AttnStatus softmax_copy_on_device(const SoftmaxArgs *args);

AttnStatus attention_v0_three_pass(const AttnArgs *args);
AttnStatus attention_v1_online(const AttnArgs *args);
AttnStatus attention_v2_tiled_merge(const AttnArgs *args);
AttnStatus attention_v3_simd_threads(const AttnArgs *args);
AttnStatus attention_v4_fused_rows(const AttnArgs *args);

AttnStatus softmax_v0_block_per_row(const SoftmaxArgs *args);
AttnStatus softmax_v1_warp_online(const SoftmaxArgs *args);
AttnStatus softmax_v2_one_read(const SoftmaxArgs *args);
AttnStatus softmax_v3_split_row(const SoftmaxArgs *args);
AttnStatus softmax_v0_block_per_row_counted(const SoftmaxArgs *args);
AttnStatus softmax_v1_warp_online_counted(const SoftmaxArgs *args);
AttnStatus softmax_v2_one_read_counted(const SoftmaxArgs *args);
AttnStatus softmax_v3_split_row_counted(const SoftmaxArgs *args);

AttnStatus attention_v0_block_per_row(const AttnArgs *args);
AttnStatus attention_v1_warp_online(const AttnArgs *args);
AttnStatus attention_v2_one_read(const AttnArgs *args);
AttnStatus attention_v3_split_row(const AttnArgs *args);

#ifdef __cplusplus
}
#endif
#endif
