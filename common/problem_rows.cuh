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
 * - load_one, store_one: one element of x or y, counted in the _counted twins (problem_rows.h).
 *   Reads go past L1, which cannot help lines that are touched once; writes have no hint
 *   (docs/lab/02_did_not_pay.md says what hints cost). count_device: by which they count.
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

static __device__ __forceinline__ void store_one(float *p, float value)
{
    count_device(1, 1);
    *p = value;
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

#endif
