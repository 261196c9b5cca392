/* SPDX-License-Identifier: MIT
 *
 * v5_cp_async: v4 with its tensor cores fed in time.
 *
 * cp.async copies from global to shared memory without passing registers, and without waiting. With
 * two buffers of K and V, the stages of a pipeline, the next tile is on its way while tile j is
 * multiplied.
 *
 *     tile        j               j + 1             j + 2
 *     copy     |  K V of j + 1  |  K V of j + 2  |  ...
 *     compute  |  S, P, O of j  |  S, P, O of j+1|  ...
 *              ^ wait, __syncthreads: the only one of the tile
 *
 * One barrier does two jobs: every thread's part of tile j has arrived, and every warp is done with
 * the other stage, which may be overwritten now.
 *
 * Prediction (H200, bf16, N = 16384, full): a tile of K and V is 16 KiB at d = 64. From the L2
 * cache it comes after about 600 clocks, in which v4 computes nothing; the other block of the
 * multiprocessor fills part of them. The compute of a tile takes about 2500 clocks (four warps of
 * a block, two blocks). So v4 waits 600 of 3100 clocks at most, half of it hidden: 10 to 15 %
 * faster. d = 128: twice the bytes, twice the products, the same.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 *
 * Interface:
 * - flash_forward_v5_cp_async: f16 and bf16, the plain problem.
 */
#include "warp_tile.cuh"

using namespace plain;

namespace v5
{

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    cp_async_kernel(const __grid_constant__ AttnArgs a)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
    const Band band = band_of(a);
    const BlockWork work = work_of_block(a, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(a, band, work.i0);
    const T *Q = head_of<const T>(a.Q, work.b, work.h);
    const T *K = head_of<const T>(a.K, work.b, work.h_kv);
    const T *V = head_of<const T>(a.V, work.b, work.h_kv);
    /* Tile j goes to stage j % 2. */
    auto load_keys = [&](int j) {
        const uint32_t tile = smem_address + C::Q_BYTES + (j & 1) * C::STAGE_BYTES;
        load_tile_async<T, C, C::Bc>(tile, K, a.K.stride[1], j * C::Bc, Nk, read_thread());
        load_tile_async<T, C, C::Bc>(tile + C::K_BYTES, V, a.V.stride[1], j * C::Bc, Nk,
                                     read_thread());
    };

    load_tile_async<T, C, C::Br>(smem_address, Q, a.Q.stride[1], work.i0, Nq, threadIdx.x);
    if (tiles.begin < tiles.end)
        load_keys(tiles.begin);
    copy_async_commit();
    TileRows<C> rows;
    start_rows(rows);
#pragma unroll 1
    for (int j = tiles.begin; j < tiles.end; j++) {
        float S_reg[C::MT][C::Bc / 8][4];
        const TileAddresses at = tile_addresses<C>(smem_address, read_thread());
        const uint32_t stage = (j & 1) * C::STAGE_BYTES;
        copy_async_wait<0>();
        __syncthreads(); /* tile j is there, and all warps are done with the other stage */
        if (j + 1 < tiles.end)
            load_keys(j + 1);
        copy_async_commit();
        multiply_QK<T, C, false>(S_reg, NULL, at.Q, at.K + stage);
        hide_scores<C>(S_reg, band, work.i0, j * C::Bc, Nk);
        update_rows<C>(S_reg, rows, a.scale);
        multiply_PV<T, C>(rows, S_reg, at.V + stage);
    }
    copy_async_wait<0>(); /* nothing may be in flight when a block ends */
    store_rows<T>(rows, a, work, 1.0f);
}

template <typename T, int D> struct Launch {
    static AttnStatus run(const AttnArgs *a)
    {
        return launch<StagedTile<D, 2>>(cp_async_kernel<T, StagedTile<D, 2>>, a);
    }
};

} // namespace v5

FlashTiles flash_tiles_v5_cp_async(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, Tile<64>::Br, Tile<64>::Bc);
}

AttnStatus flash_forward_v5_cp_async(const AttnArgs *a)
{
    return run_for_16_bit<v5::Launch>(a);
}
