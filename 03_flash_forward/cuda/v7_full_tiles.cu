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
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 */
#include <type_traits>

#include "problem.cuh"
#include "units/warp_tile.cuh"

/* What all threads of a block know alike. In shared memory: at D = 128 the accumulators leave no
 * registers for it. */
template <typename T> struct Plan {
    const T *K, *V; /* row 0 of the head */
    BlockWork work;
    KeyTiles tiles, full;
};

/* One tile of keys for m16 tiles MT0 .. MT0 + COUNT - 1. */
template <typename T, class C, bool MASKED, bool Q_IN_REGISTERS, int MT0, int COUNT>
static __device__ __forceinline__ void
step_tile(TileRows<C> &rows, const uint32_t (*Q_reg)[C::MT][4], TileAddresses at, const Problem &p,
          int i0, float scale_log2, int j)
{
    float S_reg[COUNT][C::Bc / 8][4];
    multiply_QK<T, C, Q_IN_REGISTERS, MT0, COUNT>(S_reg, Q_reg, at.Q, at.K);
    if (MASKED)
        hide_scores<C, MT0, COUNT>(S_reg, p.from, p.to, i0, j * C::Bc, p.Nk);
    update_rows_exp2<C, MASKED, MT0, COUNT>(S_reg, rows, scale_log2);
    multiply_PV<T, C, MT0, COUNT>(rows, S_reg, at.V);
}

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    full_tiles_kernel(const __grid_constant__ Problem p)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    __shared__ Plan<T> plan;
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const BlockWork work = work_of_block(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const T *Q = queries_of((const T *)p.Q, p, work);
    const T *K = keys_of((const T *)p.K, p, work), *V = keys_of((const T *)p.V, p, work);
    /* Tile j goes to stage j % 2. */
    auto load_keys = [&](const T *K, const T *V, int j) {
        const uint32_t tile = smem_address + C::Q_BYTES + (j & 1) * C::STAGE_BYTES;
        load_tile_async<T, C, C::Bc>(tile, K, K_step, j * C::Bc, p.Nk, read_thread());
        load_tile_async<T, C, C::Bc>(tile + C::K_BYTES, V, K_step, j * C::Bc, p.Nk, read_thread());
    };

    load_tile_async<T, C, C::Br>(smem_address, Q, Q_step, work.i0, p.Nq, threadIdx.x);
    if (tiles.begin < tiles.end)
        load_keys(K, V, tiles.begin);
    copy_async_commit();
    if (threadIdx.x == 0)
        plan = {K, V, work, tiles, full_tiles<C::Br, C::Bc>(p, work.i0, tiles)};
    TileRows<C> rows;
    start_rows(rows);
    __syncthreads(); /* the plan is there */
    const float scale_log2 = p.scale * (float)M_LOG2E;
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
                step_tile<T, C, true, false, 0, 1>(rows, NULL, at, p, plan.work.i0, scale_log2, j);
                step_tile<T, C, true, false, 1, 1>(rows, NULL, at, p, plan.work.i0, scale_log2, j);
            } else {
                step_tile<T, C, false, false, 0, C::MT>(rows, NULL, at, p, plan.work.i0, scale_log2,
                                                        j);
            }
        }
    };
    walk(std::true_type(), plan.full.begin);
    walk(std::false_type(), plan.full.end);
    walk(std::true_type(), plan.tiles.end);
    copy_async_wait<0>(); /* nothing may be in flight when a block ends */
    store_rows(rows, queries_of((T *)p.O, p, plan.work), Q_step,
               p.lse + lse_row(&p, plan.work.b, plan.work.h, 0), plan.work.i0, p.Nq, (float)M_LN2);
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef StagedTile<D, 2> C;
    if (reserve_smem((const void *)full_tiles_kernel<T, C>, C::SMEM))
        full_tiles_kernel<T, C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p);
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *)
{
    return {Tile<64>::Br, Tile<64>::Bc};
}

RUNG(flash_forward, v7_full_tiles, "no mask where all of a tile is seen", F16 | BF16, forward, NULL,
     NULL, tiles, SM80);
