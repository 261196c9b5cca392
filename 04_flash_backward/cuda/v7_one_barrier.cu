/* SPDX-License-Identifier: MIT
 *
 * v7_one_barrier: dQ of a tile is made one tile later.
 *
 * dQ = dS K needs dS of all warps, and v6 waits for it at once, behind a barrier of its own. But
 * the next tile begins with a barrier anyway. So dS has two buffers, and the step of a tile is
 *
 *     wait for tile t;  barrier;  start copying tile t + 1;  dQ of tile t - 1;
 *     S, P, dP, dS, dV, dK of tile t
 *
 * Between two barriers a warp has all five products to work on. A warp that is late meets one
 * barrier a tile instead of two, and the products of dQ stand beside the exponentials of the next
 * tile, which the tensor cores need not wait for.
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): at a barrier the four warps of a block
 * wait for the last one, some 200 to 300 of about 4000 clocks that a tile takes. One of two
 * barriers less: 1.05 times v6; d = 128, whose tiles are half as high, 1.1 times.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 */
#include <type_traits>

#include "problem.cuh"
#include "units/warp_keys.cuh"

/* 64 keys, 64 or 32 queries, 4 warps: v3's. */
template <int D> using TileV7 = WarpKeys<D, 4, 1, D == 64 ? 64 : 32, 2>;

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    one_barrier_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
{
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t K_smem = smem_address(smem), V_smem = K_smem + C::KEY_TILE;    /* [Bc][LD] */
    const uint32_t Q_smem = V_smem + C::KEY_TILE, dO_smem = Q_smem + C::ROW_TILE; /* [Br][LD] */
    const int STAGE = 2 * C::ROW_TILE, dS_BYTE = 2 * C::KEY_TILE + 2 * STAGE;
    const int STATS_BYTE = dS_BYTE + 2 * C::dS_TILE; /* dS [2][Bc][LD_dS], stats [2][Br] */
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange keys = {0, p.Nk}, seen = rows_that_see(band);
    const RowRange rows = rows_that_see(band, block.j0, C::Bc);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const int64_t key_0 = key_row(&p, block.b, block.h_kv, 0);
    const int warp = threadIdx.x / 32;
    const int Tr = divide_up(p.Nq, C::Br);
    const int end = end_of_walk(block);
    const uint32_t left = lane_plain(threadIdx.x, C::LD) + warp * 16 * C::LD * 2; /* K, V */
    const uint32_t right = lane_crossed(threadIdx.x, C::LD);                      /* Q, dO */
    const uint32_t turned = lane_plain(threadIdx.x, C::LD); /* Q, dO as right factors of dK, dV */

    auto copy_rows = [&](WalkTile tile, int stage) {
        const int64_t query_0 = query_row(&p, block.b, tile.h, 0);
        const float2 *stats = stats_of_head(pass, block.b * p.H + tile.h, p.Nq) + tile.i0;
        copy_tile<T, C::D, C::Br, C::THREADS>(Q_smem + stage * STAGE, (const T *)p.Q + query_0,
                                              Q_step, tile.i0, seen, threadIdx.x);
        copy_tile<T, C::D, C::Br, C::THREADS>(dO_smem + stage * STAGE, (const T *)p.dO + query_0,
                                              Q_step, tile.i0, seen, threadIdx.x);
        copy_stats<C::Br>(K_smem + STATS_BYTE + stage * C::STATS, stats, threadIdx.x);
    };
    copy_tile<T, C::D, C::Bc, C::THREADS>(K_smem, (const T *)p.K + key_0, K_step, block.j0, keys,
                                          threadIdx.x);
    copy_tile<T, C::D, C::Bc, C::THREADS>(V_smem, (const T *)p.V + key_0, K_step, block.j0, keys,
                                          threadIdx.x);
    WalkTile tile = first_tile(block, rows, C::Br);
    if (tile.h < end)
        copy_rows(tile, 0);
    copy_async_commit();

    float dK[1][C::WARP_N][4] = {}, dV[1][C::WARP_N][4] = {};
    /* One tile of queries for this warp's keys: dV += P^T dO, dK += dS^T Q, and dS. */
    auto step = [&](auto masked, int stage, int i0) {
        const uint32_t Q_stage = Q_smem + stage * STAGE, dO_stage = dO_smem + stage * STAGE;
        const float2 *stats = (const float2 *)(smem + STATS_BYTE + stage * C::STATS);
        KeyMask<1> mask = {};
        if (masked.value)
            mask = mask_of_keys<C>(band, block.j0, i0);
#pragma unroll
        for (int q0 = 0; q0 < C::Br; q0 += C::CHUNK) {
            LeftFactors<1, C::CHUNK> f;
            compute_scores<T, C, masked.value, C::CHUNK>(
                f, K_smem + left, V_smem + left, Q_stage + right + q0 * C::LD * 2,
                dO_stage + right + q0 * C::LD * 2, stats, q0, mask, p.scale * (float)M_LOG2E);
            store_factor<C>(smem + dS_BYTE + stage * C::dS_TILE, f.dS, q0);
#pragma unroll
            for (int k = 0; k < C::CHUNK / 16; k++) {
                const int down = (q0 + k * 16) * C::LD * 2;
                accumulate<T, C>(dV, f.P[k], dO_stage + turned + down);
                accumulate<T, C>(dK, f.dS[k], Q_stage + turned + down);
            }
        }
    };
    auto add_dQ = [&](WalkTile of, int stage) {
        float dQ[C::dQ_M][C::dQ_N][4];
        multiply_dS_K<T, C>(dQ, K_smem + dS_BYTE + stage * C::dS_TILE, K_smem, read_thread());
        add_dQ_fragments<C>(pass.dQ_sum, block.b * p.H + of.h, Tr, of.i0 / C::Br, dQ,
                            read_thread());
    };
    WalkTile before = {-1, 0};
    int stage = 0;
    for (; tile.h < end; stage = 1 - stage) {
        const WalkTile next = next_tile(tile, rows, C::Br);
        copy_async_wait<0>();
        __syncthreads(); /* the tile and the dS before it are there, the other stage is free */
        if (next.h < end)
            copy_rows(next, 1 - stage);
        copy_async_commit();
        if (before.h >= 0)
            add_dQ(before, 1 - stage);
        if (tile_is_full<C>(band, tile.i0, block.j0))
            step(std::false_type(), stage, tile.i0);
        else
            step(std::true_type(), stage, tile.i0);
        before = tile;
        tile = next;
    }
    __syncthreads(); /* the last dS is there */
    if (before.h >= 0)
        add_dQ(before, 1 - stage);
    store_keys((T *)p.dK + key_0, K_step, block.j0 + warp * 16, p.Nk, dK[0], p.scale);
    store_keys((T *)p.dV + key_0, K_step, block.j0 + warp * 16, p.Nk, dV[0], 1.0f);
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef TileV7<D> C;
    const int bytes = 2 * (C::KEY_TILE + 2 * C::ROW_TILE + C::dS_TILE + C::STATS);
    const PassSizes sizes = sizes_of(p);
    if (!reserve_smem((const void *)one_barrier_kernel<T, C>, bytes))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    one_barrier_kernel<T, C><<<key_blocks(p, C::Bc), C::THREADS, bytes, stream_of(p)>>>(*p, pass);
    finish_fragments<T, C>(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
}

static void backward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), true);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? TileV7<64>::Br : TileV7<128>::Br,
            p->d == 64 ? TileV7<64>::Bc : TileV7<128>::Bc};
}

RUNG(flash_backward, v7_one_barrier, "dQ of a tile is made one tile later", F16 | BF16, NULL,
     backward, work, tiles, ATOMICS | SM80);
