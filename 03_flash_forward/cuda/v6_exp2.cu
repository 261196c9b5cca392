/* SPDX-License-Identifier: MIT
 *
 * v6_exp2: v5 with fewer instructions for each score.
 *
 * The special-function units compute powers of two. v5 computes exp(scale * s - m) as written: a
 * product with the scale, a subtraction, a product with log2(e), then 2^x. Here S stays unscaled,
 * m_i is kept in powers of two, and one constant c = scale * log2(e) goes into the fused
 * multiply-add that subtracts the maximum (update_rows_exp2):
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
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 * Namespace v6 holds what this rung adds. warp_tile.cuh has the same words for later rungs; here
 * v6:: is what runs.
 */
#include "problem.cuh"
#include "units/warp_tile.cuh"

namespace v6
{

/* The online softmax with m in powers of two: exp(scale * s - m) = 2^(s * c - m'), c = scale times
 * log2(e): one multiply-add and one exponential for each score. HIDDEN: some scores may be -inf. */
template <class C, bool HIDDEN, int MT0 = 0, int COUNT = C::MT>
static __device__ __forceinline__ void update_rows_exp2(float (&S_reg)[COUNT][C::Bc / 8][4],
                                                        TileRows<C> &rows, float scale_log2)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int mt = MT0 + c;
            const float m_new = fmaxf(rows.m_i[mt][e], max_of_row<C>(S_reg[c], e) * scale_log2);
            const float base = HIDDEN && m_new == -INFINITY ? 0.0f : m_new;
            const float alpha = exp2_sfu(rows.m_i[mt][e] - base);
            rows.m_i[mt][e] = m_new;
            float l_tile = 0.0f;
#pragma unroll
            for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const float p = exp2_sfu(fmaf(S_reg[c][n][2 * e + x], scale_log2, -base));
                    S_reg[c][n][2 * e + x] = p;
                    l_tile += p;
                }
            rows.l_i[mt][e] = rows.l_i[mt][e] * alpha + l_tile;
            rescale_O(rows, mt, e, alpha);
        }
}

} // namespace v6

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    exp2_kernel(const __grid_constant__ Problem p)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const BlockWork work = work_of_block(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const T *Q = queries_of((const T *)p.Q, p, work);
    const T *K = keys_of((const T *)p.K, p, work), *V = keys_of((const T *)p.V, p, work);
    /* Tile j goes to stage j % 2. */
    auto load_keys = [&](int j) {
        const uint32_t tile = smem_address + C::Q_BYTES + (j & 1) * C::STAGE_BYTES;
        load_tile_async<T, C, C::Bc>(tile, K, K_step, j * C::Bc, p.Nk, read_thread());
        load_tile_async<T, C, C::Bc>(tile + C::K_BYTES, V, K_step, j * C::Bc, p.Nk, read_thread());
    };

    load_tile_async<T, C, C::Br>(smem_address, Q, Q_step, work.i0, p.Nq, threadIdx.x);
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
        hide_scores<C>(S_reg, p.from, p.to, work.i0, j * C::Bc, p.Nk);
        v6::update_rows_exp2<C, true>(S_reg, rows, p.scale * (float)M_LOG2E);
        multiply_PV<T, C>(rows, S_reg, at.V + stage);
    }
    copy_async_wait<0>();                           /* nothing may be in flight when a block ends */
    const BlockWork done = work_of_block(p, C::Br); /* once more: no registers were kept for it */
    store_rows(rows, queries_of((T *)p.O, p, done), Q_step, p.lse + lse_row(&p, done.b, done.h, 0),
               done.i0, p.Nq, (float)M_LN2);
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef StagedTile<D, 2> C;
    if (reserve_smem((const void *)exp2_kernel<T, C>, C::SMEM))
        exp2_kernel<T, C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p);
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *)
{
    return {Tile<64>::Br, Tile<64>::Bc};
}

RUNG(flash_forward, v6_exp2, "powers of two: scale and maximum in one multiply-add", F16 | BF16,
     forward, NULL, NULL, tiles, SM80);
