/* SPDX-License-Identifier: MIT
 *
 * v7_full_tiles: v6 with a mask only where the mask's edge is.
 *
 * Under a causal mask of N keys only a few tiles of a block of rows touch the diagonal; all others
 * are seen in full or not at all. So the tiles of a block are three runs:
 *
 *     window:   [ masked | full .............. | masked ]
 *     causal:            [ full .............. | masked ]
 *
 * The loop over full tiles has no mask, no test for empty rows: nothing but products and
 * exponentials, which the compiler may interleave freely. It also keeps no register for the mask.
 *
 * Prediction (H200, bf16, N = 16384): of the 8 instructions that a score of v6 costs 3 are the mask
 * (two comparisons and a selection): 64 x 3 of about 900 instructions of a warp and tile at d = 64:
 * 20 % faster; of about 1150 at d = 128: 15 %. Causal and full gain alike: 2 or 3 of 128 tiles are
 * masked ones.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 *
 * Interface:
 * - flash_forward_v7_full_tiles: f16 and bf16, the plain problem.
 */
#include <type_traits>

#include "warp_tile.cuh"

using namespace plain;

namespace v7
{

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    full_tiles_kernel(const __grid_constant__ AttnArgs a)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    __shared__ Plan<T> plan;
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const int Nk = (int)a.shape.Nk;
    const Band band = band_of(a);
    const BlockWork work = work_of_block(a, C::Br);
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
    __syncthreads(); /* the plan is there */
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
                step_tile<T, C, true, false, 0, 1>(rows, NULL, at, plan, scale_log2, j, Nk);
                step_tile<T, C, true, false, 1, 1>(rows, NULL, at, plan, scale_log2, j, Nk);
            } else {
                step_tile<T, C, false, false, 0, C::MT>(rows, NULL, at, plan, scale_log2, j, Nk);
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
        return launch<StagedTile<D, 2>>(full_tiles_kernel<T, StagedTile<D, 2>>, a);
    }
};

} // namespace v7

FlashTiles flash_tiles_v7_full_tiles(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, Tile<64>::Br, Tile<64>::Bc);
}

AttnStatus flash_forward_v7_full_tiles(const AttnArgs *a)
{
    return run_for_16_bit<v7::Launch>(a);
}
