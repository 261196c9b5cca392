/* SPDX-License-Identifier: MIT
 *
 * cooperative_groups.h: a block and tiles of up to a warp of it, by the intrinsics of simt.h.
 *
 * Interface: namespace cooperative_groups: this_thread_block, tiled_partition.
 */
#pragma once
#ifdef __cplusplus
#include "simt.h"

namespace cooperative_groups
{
struct thread_block {
    /* line: a barrier is known by where it stands */
    SIMT_QUIET void sync(int line = __builtin_LINE()) const
    {
        simt::syncthreads(line);
    }
    SIMT_QUIET unsigned thread_rank() const
    {
        const uint3 t = simt::index_of(simt::threadIdx_), n = simt::index_of(simt::blockDim_);
        return t.x + n.x * (t.y + n.y * t.z);
    }
    SIMT_QUIET unsigned size() const
    {
        const uint3 n = simt::index_of(simt::blockDim_);
        return n.x * n.y * n.z;
    }
};
static inline SIMT_QUIET thread_block this_thread_block()
{
    return {};
}

template <unsigned N> struct thread_block_tile {
    static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "a tile has 1, 2, 4, ... 32 threads");
    unsigned in_block;
    SIMT_QUIET unsigned mask() const
    {
        return (N == 32 ? ~0u : (1u << N % 32) - 1) << (in_block % 32 / N * N);
    }
    SIMT_QUIET void sync() const
    {
        simt::syncwarp(mask());
    }
    SIMT_QUIET unsigned thread_rank() const
    {
        return in_block % N;
    }
    SIMT_QUIET unsigned meta_group_rank() const
    {
        return in_block / N;
    }
    SIMT_QUIET unsigned size() const
    {
        return N;
    }
    template <class T> SIMT_QUIET T shfl(T v, int from) const
    {
        return __shfl_sync(mask(), v, from, N);
    }
    template <class T> SIMT_QUIET T shfl_xor(T v, int with) const
    {
        return __shfl_xor_sync(mask(), v, with, N);
    }
    template <class T> SIMT_QUIET T shfl_down(T v, int by) const
    {
        return __shfl_down_sync(mask(), v, by, N);
    }
    template <class T> SIMT_QUIET T shfl_up(T v, int by) const
    {
        return __shfl_up_sync(mask(), v, by, N);
    }
    SIMT_QUIET bool any(int v) const
    {
        return __any_sync(mask(), v);
    }
    SIMT_QUIET bool all(int v) const
    {
        return __all_sync(mask(), v);
    }
};
template <unsigned N>
static inline SIMT_QUIET thread_block_tile<N> tiled_partition(const thread_block &b)
{
    return {b.thread_rank()};
}
} // namespace cooperative_groups
#endif
