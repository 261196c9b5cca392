/* SPDX-License-Identifier: MIT
 *
 * v6_exp2: v5 with fewer instructions for each score.
 *
 * The special-function units compute powers of two. v5 computes exp(scale * s - m) as written: a
 * product with the scale, a subtraction, a product with log2(e), then 2^x. Here S stays unscaled,
 * m_i is kept in powers of two, and one constant c = scale * log2(e) goes into the fused
 * multiply-add that subtracts the maximum (update_rows_exp2 in warp_tile.cuh):
 *
 *     exp(scale * s - m) = 2^(s * c - m')          m' = m * log2(e)
 *
 * It needs c > 0, so that the largest s is the largest score.
 *
 * Prediction (H200, bf16, N = 16384, full): a thread has 64 scores of a tile. In v5 each costs
 * about 10 instructions: 3 for the mask, 1 for the maximum, 3 and 2^x for the exponential, 1 for
 * the sum, half of one to pack. Two of them go: 128 of about 1000 instructions of a warp and tile
 * at d = 64 (with 128 mma), 10 % if issue slots limit. At d = 128 (256 mma) 6 %.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 * Only one goes: nvcc had already made one multiply-add of v5's product and subtraction.
 *
 * Interface:
 * - flash_forward_v6_exp2: f16 and bf16, the plain problem.
 */
#include "warp_tile.cuh"

using namespace plain;

namespace v6
{

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    exp2_kernel(const __grid_constant__ AttnArgs a)
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
        update_rows_exp2<C, true>(S_reg, rows, a.scale * LOG2E);
        multiply_PV<T, C>(rows, S_reg, at.V + stage);
    }
    copy_async_wait<0>(); /* nothing may be in flight when a block ends */
    store_rows<T>(rows, a, work, LN2);
}

template <typename T, int D> struct Launch {
    static AttnStatus run(const AttnArgs *a)
    {
        return launch<StagedTile<D, 2>>(exp2_kernel<T, StagedTile<D, 2>>, a);
    }
};

} // namespace v6

FlashTiles flash_tiles_v6_exp2(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, Tile<64>::Br, Tile<64>::Bc);
}

AttnStatus flash_forward_v6_exp2(const AttnArgs *a)
{
    return run_for_16_bit<v6::Launch>(a);
}
