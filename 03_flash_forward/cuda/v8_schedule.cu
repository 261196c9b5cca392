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
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 */
#include <type_traits>

#include "problem.cuh"
#include "units/warp_tile.cuh"

#define SECTION_BYTES (32 << 20) /* of K and V, in an L2 cache of 50 MB (H100), 60 (H200) */

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

/* Row tiles in the order in which blocks start: within a section of heads the longest first. */
template <class C> static __device__ __forceinline__ BlockWork longest_first(const Problem &p)
{
    const int heads = p.B * p.H, group = p.H / p.Hkv;
    const int fit = (int)(SECTION_BYTES / ((int64_t)p.Nk * C::D * 4)) * group;
    const bool causal =
        p.to < 1 << 30 && p.from == -(1 << 30); /* else all row tiles cost the same */
    const int section = causal ? min(max(fit, 1), heads) : 1;
    const int tiles = (p.Nq + C::Br - 1) / C::Br;
    const int head = blockIdx.x / (tiles * section) * section; /* the first of the section */
    const int rest = blockIdx.x - head * tiles, here = min(section, heads - head);
    return work_of_head(p, head + rest % here, (tiles - 1 - rest / here) * C::Br);
}

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    schedule_kernel(const __grid_constant__ Problem p)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    __shared__ Plan<T> plan;
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const BlockWork work = longest_first<C>(p);
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
    const bool Q_IN_REGISTERS = C::D <= 64;
    uint32_t Q_reg[C::D / 16][C::MT][4];
    copy_async_wait<0>();
    __syncthreads(); /* Q and the plan are there */
#pragma unroll
    for (int k = 0; Q_IN_REGISTERS && k < C::D / 16; k++)
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
            load_Q<C>(Q_reg[k][mt], tile_addresses<C>(smem_address, threadIdx.x).Q, mt, k);
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
                step_tile<T, C, true, Q_IN_REGISTERS, 0, 1>(rows, Q_reg, at, p, plan.work.i0,
                                                            scale_log2, j);
                step_tile<T, C, true, Q_IN_REGISTERS, 1, 1>(rows, Q_reg, at, p, plan.work.i0,
                                                            scale_log2, j);
            } else {
                step_tile<T, C, false, Q_IN_REGISTERS, 0, C::MT>(rows, Q_reg, at, p, plan.work.i0,
                                                                 scale_log2, j);
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
    if (reserve_smem((const void *)schedule_kernel<T, C>, C::SMEM))
        schedule_kernel<T, C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p);
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *)
{
    return {Tile<64>::Br, Tile<64>::Bc};
}

RUNG(flash_forward, v8_schedule, "longest row tiles first, Q in registers", F16 | BF16, forward,
     NULL, NULL, tiles, SM80);
