/* SPDX-License-Identifier: MIT
 *
 * gradient_loads.cuh: what the 16-bit kernel copies to shared memory. All of it is under way when
 * these functions return; the caller commits and waits.
 *
 * Interface:
 * - load_keys: K or V of a block. load_rows: a tile of Q and dO and what belongs to it.
 * - clear_empty_rows: what a query without keys has in dO, once it is there.
 */
#ifndef FLASH_BACKWARD_GRADIENT_LOADS_CUH
#define FLASH_BACKWARD_GRADIENT_LOADS_CUH

#include "attention/forward/cuda/key_plan.cuh"
#include "attention/forward/cuda/tile_load.cuh"
#include "gradient_order.cuh"

template <typename T, class C>
static __device__ __forceinline__ void load_keys(const Tensor &from, unsigned char *to,
                                                 const AttnArgs &a, const GradientPlan &plan,
                                                 const KeyTask &task)
{
    load_tile_async<T, C::D, C::Bc, C::THREADS, C::LEAN>(
        to, (const T *)from.data + tensor_offset(&from, task.work.b, 0, task.work.h_kv),
        from.stride[1], task.work.j0, (int)a.shape.Nk, (int)a.shape.d, plan.aligned);
}

/* Everything that a tile of queries needs, into a stage. */
template <typename T, class C>
static __device__ __forceinline__ void load_rows(RowTile tile, int stage, unsigned char *smem,
                                                 const AttnArgs &a, const GradientPlan &plan,
                                                 const KeyTask &task)
{
    typedef GradientBytes<C> Bytes;
    const int Nq = (int)a.shape.Nq, d = (int)a.shape.d, H = (int)a.shape.H;
    const int h = task.work.h_kv * plan.group + tile.g, i0 = tile.i * C::Br;
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    unsigned char *to = smem + Bytes::STAGES + stage * Bytes::STAGE;
    load_tile_async<T, C::D, C::Br, C::THREADS, C::LEAN>(
        to, (const T *)a.Q.data + tensor_offset(&a.Q, task.work.b, 0, h), a.Q.stride[1], i0, Nq, d,
        plan.aligned);
    load_tile_async<T, C::D, C::Br, C::THREADS, C::LEAN>(
        to + Bytes::dO, (const T *)a.dO.data + tensor_offset(&a.dO, task.work.b, 0, h),
        a.dO.stride[1], i0, Nq, d, plan.aligned);
    const int thread = C::LEAN ? read_thread() : (int)threadIdx.x;
    if (thread < C::Br / 2)
        copy_async_16(smem_address + Bytes::STATS + stage * Bytes::STATS_STAGE + thread * 16,
                      plan.w.stats +
                          ((int64_t)(task.work.b * H + h) * plan.w.tables.Tr + tile.i) * C::Br +
                          thread * 2,
                      1);
    const int masks = Bytes::WORDS + stage * Bytes::WORDS_STAGE;
    if (tile.masked && task.runs && thread < C::Br / 2)
        copy_async_16(smem_address + masks + thread * 16, task.runs + i0 + thread * 2, 1);
    else if (tile.masked && !task.runs)
        make_pair_words<C::Br, C::Bc>((uint32_t *)(smem + masks), a, i0, task.work.j0);
}

/* Queries that see no key have P = 0, but their dO may hold anything, padding for example, and
 * 0 * NaN is NaN. So zeros take its place. Only masked tiles have such queries. All warps look and
 * find the same. */
template <class C>
static __device__ __forceinline__ void clear_empty_rows(unsigned char *smem, int stage)
{
    typedef GradientBytes<C> Bytes;
    const int CHUNKS = C::D / 8;
    const float2 *stats = (const float2 *)(smem + Bytes::STATS + stage * Bytes::STATS_STAGE);
    unsigned char *dO_smem = smem + Bytes::STAGES + stage * Bytes::STAGE + Bytes::dO;
    uint32_t empty = 0;
    for (int r = threadIdx.x % 32; r < C::Br; r += 32)
        empty |= stats[r].x == INFINITY;
    if (!any_lane_bits(empty))
        return;
#pragma unroll 1
    for (int e = threadIdx.x; e < C::Br * CHUNKS; e += C::THREADS)
        if (stats[e / CHUNKS].x == INFINITY)
            *reinterpret_cast<uint4 *>(dO_smem + swizzle<C::D>(e / CHUNKS, e % CHUNKS)) =
                make_uint4(0, 0, 0, 0);
    __syncthreads();
}

#endif
