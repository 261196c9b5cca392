/* SPDX-License-Identifier: MIT
 *
 * v8_schedule: v7 in a better order, and Q loaded once.
 *
 *   - A causal row tile i costs i + 1. Blocks start in the order of their index: the longest first,
 *     so the short ones fill the gaps at the end. Tiles of one length from many heads would fill
 *     them best, tiles of one head share K and V in the L2 cache: sections of heads whose K and V
 *     fit it are the compromise.
 *   - The fragments of Q stay in registers where there is room, D = 64. v7 loads them again for
 *     each tile of keys.
 *
 * Prediction (H200, bf16, N = 16384): causal, 264 places for blocks and 128 row tiles of 32 heads:
 * 4096 blocks, 15.5 rounds; in v7's order the last block to start is as likely a long one as a
 * short one and costs up to 2 mean blocks while others idle: 2 of 15.5 rounds at most, 5 to 10 %
 * faster. Full at d = 64: 8 of 56 ldmatrix of a warp and tile go: 3 %. Full at d = 128: nothing
 * changes.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 * (There are 40 ldmatrix, not 56.)
 *
 * Interface:
 * - flash_forward_v8_schedule: f16 and bf16, the plain problem.
 */
#include <type_traits>

#include "warp_tile.cuh"

#define SECTION_BYTES (32 << 20) /* of K and V, in an L2 cache of 50 MB (H100), 60 (H200) */

using namespace plain;

namespace v8
{

/* Row tiles in the order in which blocks start: within a section of heads the longest first. */
template <class C> static __device__ __forceinline__ BlockWork longest_first(const AttnArgs &a)
{
    const int heads = (int)(a.shape.B * a.shape.H), group = (int)(a.shape.H / a.shape.Hkv);
    const int fit = (int)(SECTION_BYTES / (a.shape.Nk * C::D * 4)) * group;
    const bool causal = a.rule.right >= 0 && a.rule.left < 0; /* else all row tiles cost the same */
    const int section = causal ? min(max(fit, 1), heads) : 1;
    const int tiles = ((int)a.shape.Nq + C::Br - 1) / C::Br;
    const int head = blockIdx.x / (tiles * section) * section; /* the first of the section */
    const int rest = blockIdx.x - head * tiles, here = min(section, heads - head);
    return work_of_head(a, head + rest % here, (tiles - 1 - rest / here) * C::Br);
}

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    schedule_kernel(const __grid_constant__ AttnArgs a)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    __shared__ Plan<T> plan;
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const int Nk = (int)a.shape.Nk;
    const Band band = band_of(a);
    const BlockWork work = longest_first<C>(a);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(a, band, work.i0);
    const T *Q = head_of<const T>(a.Q, work.b, work.h);
    const T *K = head_of<const T>(a.K, work.b, work.h_kv);
    const T *V = head_of<const T>(a.V, work.b, work.h_kv);
    /* Tile j goes to stage j % 2. */
    auto load_keys = [&](const T *K, const T *V, int j) {
        const uint32_t tile = smem_address + C::Q_BYTES + (j & 1) * C::STAGE_BYTES;
        load_tile_async<T, C, C::Bc>(tile, K, a.K.stride[1], j * C::Bc, Nk, read_thread());
        load_tile_async<T, C, C::Bc>(tile + C::K_BYTES, V, a.V.stride[1], j * C::Bc, Nk,
                                     read_thread());
    };

    load_tile_async<T, C, C::Br>(smem_address, Q, a.Q.stride[1], work.i0, (int)a.shape.Nq,
                                 threadIdx.x);
    if (tiles.begin < tiles.end)
        load_keys(K, V, tiles.begin);
    copy_async_commit();
    if (threadIdx.x == 0)
        plan = {K, V, work, band, tiles, full_tiles<C::Br, C::Bc>(a, band, work.i0, tiles)};
    TileRows<C> rows;
    start_rows(rows);
    const bool Q_IN_REGISTERS = C::D <= 64;
    uint32_t Q_reg[C::D / 16][C::MT][4];
    copy_async_wait<0>();
    __syncthreads(); /* Q and the plan are there */
#pragma unroll
    for (int k = 0; Q_IN_REGISTERS && k < C::D / 16; k++)
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
            load_Q<C>(Q_reg[k][mt], tile_addresses<C>(smem_address, threadIdx.x).Q, mt, k);
    const float scale_log2 = a.scale * LOG2E;
    int j = tiles.begin;
    auto walk = [&](auto masked, int end) {
#pragma unroll 1
        for (; j < end; j++) {
            TileAddresses at = tile_addresses<C>(smem_address, read_thread());
            at.K += (j & 1) * C::STAGE_BYTES;
            at.V += (j & 1) * C::STAGE_BYTES;
            copy_async_wait<0>();
            __syncthreads(); /* tile j is there, and all warps are done with the other stage */
            if (j + 1 < plan.tiles.end)
                load_keys(plan.K, plan.V, j + 1);
            copy_async_commit();
            if (masked.value) { /* few of them: 16 rows at a time need fewer registers */
                step_tile<T, C, true, Q_IN_REGISTERS, 0, 1>(rows, Q_reg, at, plan, scale_log2, j,
                                                            Nk);
                step_tile<T, C, true, Q_IN_REGISTERS, 1, 1>(rows, Q_reg, at, plan, scale_log2, j,
                                                            Nk);
            } else {
                step_tile<T, C, false, Q_IN_REGISTERS, 0, C::MT>(rows, Q_reg, at, plan, scale_log2,
                                                                 j, Nk);
            }
        }
    };
    walk(std::true_type(), plan.full.begin);
    walk(std::false_type(), plan.full.end);
    walk(std::true_type(), plan.tiles.end);
    copy_async_wait<0>(); /* nothing may be in flight when a block ends */
    store_rows<T>(rows, a, plan.work, LN2);
}

template <typename T, int D> struct Launch {
    static AttnStatus run(const AttnArgs *a)
    {
        return launch<StagedTile<D, 2>>(schedule_kernel<T, StagedTile<D, 2>>, a);
    }
};

} // namespace v8

FlashTiles flash_tiles_v8_schedule(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, Tile<64>::Br, Tile<64>::Bc);
}

AttnStatus flash_forward_v8_schedule(const AttnArgs *a)
{
    return run_for_16_bit<v8::Launch>(a);
}
