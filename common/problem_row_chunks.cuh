/* SPDX-License-Identifier: MIT
 *
 * problem_row_chunks.cuh: many columns of a row in the registers of one thread, for the CUDA rungs
 * of stage 02 that read a row once (v2, v3).
 *
 * Interface:
 * - load_chunk, push_chunk, store_chunk: such columns; a warp takes runs of 512 bytes.
 * - load_four, store_four: a float4 of x or y, counted like load_one (problem_rows.cuh).
 * - is_aligned_for_four: when a float4 may be used at all.
 */
#ifndef PROBLEM_ROW_CHUNKS_CUH
#define PROBLEM_ROW_CHUNKS_CUH

#include "problem_rows.cuh"

static __device__ __forceinline__ float4 load_four(const float *p)
{
    count_device(0, 4);
    return __ldcg(reinterpret_cast<const float4 *>(p));
}

static __device__ __forceinline__ void store_four(float *p, float4 value)
{
    count_device(1, 4);
    *reinterpret_cast<float4 *>(p) = value;
}

/* A float4 access must lie on a multiple of 16 bytes: so must the base and each row's start. */
static inline bool is_aligned_for_four(const SoftmaxArgs *args)
{
    return args->cols % 4 == 0 && reinterpret_cast<uintptr_t>(args->x) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(args->y) % 16 == 0;
}

/* Adds FLOATS scores to a thread's state: one rescaling for all of them, not one for each. */
template <int FLOATS>
static __device__ __forceinline__ SoftmaxState push_chunk(SoftmaxState state,
                                                          const float (&s_reg)[FLOATS])
{
    float m_new = state.m;
#pragma unroll
    for (int e = 0; e < FLOATS; e++)
        m_new = fmaxf(m_new, s_reg[e]);
    float shift = softmax_shift(m_new);
    state.l *= expf(state.m - shift);
#pragma unroll
    for (int e = 0; e < FLOATS; e++)
        state.l += expf(s_reg[e] - shift);
    state.m = m_new;
    return state;
}

/* VECTORS x 4 of the n columns at x for one thread: columns 4 * (t + k * step) and the three after
 * each, so that a warp's k-th load is one run of 512 bytes. Columns at or past n are -inf, the
 * identity. With FOUR = 0 single floats are loaded, in the same kind of runs. */
template <int FOUR, int VECTORS>
static __device__ __forceinline__ void load_chunk(float (&s_reg)[VECTORS * 4], const float *x,
                                                  int n, int t, int step)
{
    if (FOUR) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            int c = 4 * (t + k * step);
            float4 four = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            if (c < n)
                four = load_four(x + c);
            s_reg[4 * k] = four.x;
            s_reg[4 * k + 1] = four.y;
            s_reg[4 * k + 2] = four.z;
            s_reg[4 * k + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int e = 0; e < VECTORS * 4; e++) {
            int c = t + e * step;
            s_reg[e] = c < n ? load_one(x + c) : -INFINITY;
        }
    }
}

/* The way back: the same columns, times factor. */
template <int FOUR, int VECTORS>
static __device__ __forceinline__ void store_chunk(float *y, const float (&p_reg)[VECTORS * 4],
                                                   float factor, int n, int t, int step)
{
    if (FOUR) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            int c = 4 * (t + k * step);
            if (c < n)
                store_four(y + c,
                           make_float4(p_reg[4 * k] * factor, p_reg[4 * k + 1] * factor,
                                       p_reg[4 * k + 2] * factor, p_reg[4 * k + 3] * factor));
        }
    } else {
#pragma unroll
        for (int e = 0; e < VECTORS * 4; e++) {
            int c = t + e * step;
            if (c < n)
                store_one(y + c, p_reg[e] * factor);
        }
    }
}

#endif
