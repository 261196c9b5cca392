/* SPDX-License-Identifier: MIT
 *
 * problem_rows.cuh: problem_rows.h on a GPU, what the CUDA rungs of stage 02 share: merging states
 * across threads, and counted memory accesses.
 *
 * A GPU thread sees few elements of a row. Its (m, l) meets the others' in two steps, both of them
 * trees of softmax_merge:
 *   - inside a warp (32 threads that run together) by shuffles: a register of another lane is read
 *     directly, no memory is involved;
 *   - across the warps of a block through one slot of shared memory for each warp.
 *
 * Interface:
 * - warp_merge, block_merge: the state of all threads, given back to every one of them.
 * - load_one, load_four, store_one, store_four: one element or a float4 of x or y, counted in the
 *   _counted twins (problem_rows.h). Reads go past L1, which cannot help lines that are touched
 *   once; writes have no hint (docs/lab/02_did_not_pay.md says what hints cost).
 * - load_chunk, push_chunk, store_chunk: many columns of one thread, kept in registers.
 * - is_aligned_for_four: when a float4 may be used at all.
 * - collect_counts: host side, after the launches of a variant.
 */
#ifndef PROBLEM_ROWS_CUH
#define PROBLEM_ROWS_CUH

#include <cuda_runtime.h>

#include "problem_rows.h"
#include "units/softmax_state.h"

#ifdef COUNT_ACCESSES
extern "C" void note_failure(void); /* of the harness (problem.cuh) */

static __device__ unsigned long long device_accesses[2]; /* loads, stores */

static __device__ void count_device(int which, int n)
{
    atomicAdd(&device_accesses[which], (unsigned long long)n);
}

static void collect_counts(cudaStream_t stream)
{
    unsigned long long seen[2] = {0, 0}, zero[2] = {0, 0};
    if (cudaStreamSynchronize(stream) != cudaSuccess ||
        cudaMemcpyFromSymbol(seen, device_accesses, sizeof seen) != cudaSuccess ||
        cudaMemcpyToSymbol(device_accesses, zero, sizeof zero) != cudaSuccess)
        note_failure();
    access_counts_add((int64_t)seen[0], (int64_t)seen[1]);
}
#else
static __device__ __forceinline__ void count_device(int, int)
{
}
static inline void collect_counts(cudaStream_t)
{
}
#endif

#define WARP_LANES 32
#define EVERY_LANE 0xffffffffu
#define MAX_WARPS  32 /* 1024 threads, the largest block */

static __device__ __forceinline__ float load_one(const float *p)
{
    count_device(0, 1);
    return __ldcg(p);
}

static __device__ __forceinline__ float4 load_four(const float *p)
{
    count_device(0, 4);
    return __ldcg(reinterpret_cast<const float4 *>(p));
}

static __device__ __forceinline__ void store_one(float *p, float value)
{
    count_device(1, 1);
    *p = value;
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

/* In five steps every lane meets every other: distances 16, 8, 4, 2, 1 (a butterfly). */
static __device__ __forceinline__ SoftmaxState warp_merge(SoftmaxState state)
{
#pragma unroll
    for (int distance = WARP_LANES / 2; distance > 0; distance /= 2) {
        SoftmaxState other;
        other.m = __shfl_xor_sync(EVERY_LANE, state.m, distance);
        other.l = __shfl_xor_sync(EVERY_LANE, state.l, distance);
        state = softmax_merge(state, other);
    }
    return state;
}

/* mine: the state of the caller's warp, equal in all its lanes. slots_smem [MAX_WARPS]. One
 * barrier: the caller must not reuse the same slots before its next one. */
static __device__ __forceinline__ SoftmaxState block_merge(SoftmaxState mine,
                                                           SoftmaxState *slots_smem)
{
    int lane = threadIdx.x % WARP_LANES;
    int warp = threadIdx.x / WARP_LANES;
    int warps = blockDim.x / WARP_LANES;
    if (lane == 0)
        slots_smem[warp] = mine;
    __syncthreads();
    return warp_merge(lane < warps ? slots_smem[lane] : softmax_empty());
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
