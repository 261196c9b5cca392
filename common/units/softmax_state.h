/* SPDX-License-Identifier: MIT
 *
 * softmax_state.h: the pair (m, l) that a piece of a row leaves behind, and the merge of two.
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
 * - softmax_shift: what to subtract before exp.
 */
#ifndef UNITS_SOFTMAX_STATE_H
#define UNITS_SOFTMAX_STATE_H

#include <math.h>

#ifdef __CUDACC__
#define STATE_HD __host__ __device__
#else
#define STATE_HD
#endif

/* What a set of scores leaves behind: its maximum, and the sum of exp(s - m) over it. */
typedef struct SoftmaxState {
    float m; /* running maximum, -inf for the empty set */
    float l; /* running sum of exp(s - m), 0 for the empty set */
} SoftmaxState;

static inline STATE_HD SoftmaxState softmax_empty(void)
{
    SoftmaxState empty = {-INFINITY, 0.0f};
    return empty;
}

/* What to subtract before exp. While nothing but -inf was seen, m is -inf and x - m would be
 * (-inf) - (-inf) = NaN. Any finite number serves then, because exp(-inf - 0) is 0 as it must be;
 * and a NaN among the scores still comes out as NaN. */
static inline STATE_HD float softmax_shift(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

/* State of the union of two sets. alpha = exp(m_old - m_new) brings each l to the new maximum. */
static inline STATE_HD SoftmaxState softmax_merge(SoftmaxState a, SoftmaxState b)
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
static inline STATE_HD SoftmaxState softmax_push(SoftmaxState a, float s)
{
    float m_new = a.m > s ? a.m : s;
    float shift = softmax_shift(m_new);
    a.l = a.l * expf(a.m - shift) + expf(s - shift);
    a.m = m_new;
    return a;
}

/* 1 / l, and 0 for a row without any visible score: its softmax is all zeros, never NaN. */
static inline STATE_HD float softmax_inverse(SoftmaxState a)
{
    return a.l == 0.0f ? 0.0f : 1.0f / a.l;
}

/* Log-sum-exp in natural logarithm, -inf for the empty set. */
static inline STATE_HD float softmax_lse(SoftmaxState a)
{
    return a.l == 0.0f ? -INFINITY : a.m + logf(a.l);
}

#endif
