/* SPDX-License-Identifier: MIT
 *
 * v9_warp_pairs: two warps share 32 keys (d = 128).
 *
 * A warp cannot have 32 keys at d = 128 (v8), but two warps together can. Each of the pair
 *
 *   - computes the scores of all 32 keys with one half of the tile's queries,
 *   - sums dK and dV of all 32 keys, over all queries, for one half of the channels.
 *
 * So each needs P^T and dS^T of the other half of the queries, which come through shared memory. dS
 * is there for dQ anyway; P gets a tile of its own. Only the two warps have to wait for each other,
 * and they have a barrier of their own for it. A fragment of Q or dO serves four mma again, and a
 * block has 8 warps, 128 keys and 64 queries.
 *
 * 255 registers hold dK, dV, S and dP and little else. So what follows from the lane alone, where
 * it points ldmatrix at, is computed again for every tile (read_thread) and not kept.
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): d = 128, v8 loads 0.55 fragments for an
 * mma, here it is 0.43 with those of P and dS; a block adds to dQ half as often; a tile of 64
 * queries meets half as many barriers as two of 32: 1.4 times v8. d = 64: the same kernel.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 * (Counted afterwards: v8 loads 0.63.)
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 */
#include <type_traits>

#include "problem.cuh"
#include "units/warp_keys.cuh"

/* 128 keys, 64 queries. d = 64: 4 warps with 32 keys each; d = 128: 8 warps, a pair has 32. */
template <int D> using TileV9 = WarpKeys<D, D == 64 ? 4 : 8, 2, 64, 2, D == 64 ? 1 : 2>;

/* A barrier of the two warps that share keys. Barrier 0 is __syncthreads(), hence + 1. */
static __device__ __forceinline__ void meet_partner(int pair)
{
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 256 / C::THREADS)
    warp_pairs_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
{
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t K_smem = smem_address(smem), V_smem = K_smem + C::KEY_TILE;    /* [Bc][LD] */
    const uint32_t Q_smem = V_smem + C::KEY_TILE, dO_smem = Q_smem + C::ROW_TILE; /* [Br][LD] */
    const int STAGE = 2 * C::ROW_TILE, dS_BYTE = 2 * C::KEY_TILE + 2 * STAGE;
    const int STATS_BYTE = dS_BYTE + 2 * C::dS_TILE; /* dS [2][Bc][LD_dS], stats [2][Br] */
    const int P_BYTE = STATS_BYTE + 2 * C::STATS;    /* P [Bc][LD_dS], of pairs */
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange keys = {0, p.Nk}, seen = rows_that_see(band);
    const RowRange rows = rows_that_see(band, block.j0, C::Bc);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const int64_t key_0 = key_row(&p, block.b, block.h_kv, 0);
    const int Tr = divide_up(p.Nq, C::Br);
    const int end = end_of_walk(block);

    auto copy_rows = [&](WalkTile tile, int stage) {
        const int thread = read_thread();
        const int64_t query_0 = query_row(&p, block.b, tile.h, 0);
        const float2 *stats = stats_of_head(pass, block.b * p.H + tile.h, p.Nq) + tile.i0;
        copy_tile<T, C::D, C::Br, C::THREADS>(Q_smem + stage * STAGE, (const T *)p.Q + query_0,
                                              Q_step, tile.i0, seen, thread);
        copy_tile<T, C::D, C::Br, C::THREADS>(dO_smem + stage * STAGE, (const T *)p.dO + query_0,
                                              Q_step, tile.i0, seen, thread);
        copy_stats<C::Br>(K_smem + STATS_BYTE + stage * C::STATS, stats, thread);
    };
    copy_tile<T, C::D, C::Bc, C::THREADS>(K_smem, (const T *)p.K + key_0, K_step, block.j0, keys,
                                          threadIdx.x);
    copy_tile<T, C::D, C::Bc, C::THREADS>(V_smem, (const T *)p.V + key_0, K_step, block.j0, keys,
                                          threadIdx.x);
    WalkTile tile = first_tile(block, rows, C::Br);
    if (tile.h < end)
        copy_rows(tile, 0);
    copy_async_commit();

    float dK[C::MT][C::WARP_N][4] = {}, dV[C::MT][C::WARP_N][4] = {};
    /* One tile of queries for this warp's keys: dV += P^T dO, dK += dS^T Q, and dS. */
    auto step = [&](auto masked, int stage, int i0) {
        const uint32_t Q_stage = Q_smem + stage * STAGE, dO_stage = dO_smem + stage * STAGE;
        const float2 *stats = (const float2 *)(smem + STATS_BYTE + stage * C::STATS);
        const int thread = read_thread(), warp = thread / 32, half = warp % C::PAIR;
        const int OWN = C::Br / C::PAIR, own = half * OWN; /* this warp's queries */
        const uint32_t left = lane_plain(thread, C::LD) + warp / C::PAIR * 16 * C::LD * 2;
        const uint32_t right = lane_crossed(thread, C::LD);
        const uint32_t turned = lane_plain(thread, C::LD) + half * C::WARP_N * 16; /* channels */
        KeyMask<C::MT> mask = {};
        if (masked.value)
            mask = mask_of_keys<C>(band, block.j0, i0);
#pragma unroll
        for (int first = 0; first < OWN; first += C::CHUNK) {
            const int q0 = own + first;
            LeftFactors<C::MT, C::CHUNK> f;
            compute_scores<T, C, masked.value, C::CHUNK>(
                f, K_smem + left, V_smem + left, Q_stage + right + q0 * C::LD * 2,
                dO_stage + right + q0 * C::LD * 2, stats, q0, mask, p.scale * (float)M_LOG2E);
            store_factor<C>(smem + dS_BYTE + stage * C::dS_TILE, f.dS, q0);
            if (C::PAIR == 2)
                store_factor<C>(smem + P_BYTE, f.P, q0);
#pragma unroll
            for (int k = 0; k < C::CHUNK / 16; k++) {
                const int down = (q0 + k * 16) * C::LD * 2;
                accumulate<T, C>(dV, f.P[k], dO_stage + turned + down);
                accumulate<T, C>(dK, f.dS[k], Q_stage + turned + down);
            }
        }
        if (C::PAIR == 2) { /* the other half of the queries */
            const uint32_t factor =
                K_smem + lane_plain(thread, C::LD_dS) + (warp / 2 * 16 * C::LD_dS + OWN - own) * 2;
            meet_partner(warp / 2);
#pragma unroll
            for (int k = 0; k < OWN / 16; k++) {
                const int down = (OWN - own + k * 16) * C::LD * 2;
                uint32_t P[C::MT][4], dS[C::MT][4];
#pragma unroll
                for (int m = 0; m < C::MT; m++) {
                    const uint32_t from = factor + m * C::KEYS * C::LD_dS * 2 + k * 32;
                    ldmatrix_x4(P[m], from + P_BYTE);
                    ldmatrix_x4(dS[m], from + dS_BYTE + stage * C::dS_TILE);
                }
                accumulate<T, C>(dV, P, dO_stage + turned + down);
                accumulate<T, C>(dK, dS, Q_stage + turned + down);
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
#pragma unroll
    for (int m = 0; m < C::MT; m++) {
        const int warp = threadIdx.x / 32, j0 = block.j0 + m * C::KEYS + warp / C::PAIR * 16;
        const int x0 = warp % C::PAIR * C::WARP_N * 8;
        store_keys((T *)p.dK + key_0 + x0, K_step, j0, p.Nk, dK[m], p.scale);
        store_keys((T *)p.dV + key_0 + x0, K_step, j0, p.Nk, dV[m], 1.0f);
    }
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef TileV9<D> C;
    const int bytes =
        2 * (C::KEY_TILE + 2 * C::ROW_TILE + C::dS_TILE + C::STATS) + (C::PAIR - 1) * C::dS_TILE;
    const PassSizes sizes = sizes_of(p);
    if (!reserve_smem((const void *)warp_pairs_kernel<T, C>, bytes))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    warp_pairs_kernel<T, C><<<key_blocks(p, C::Bc), C::THREADS, bytes, stream_of(p)>>>(*p, pass);
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
    return {p->d == 64 ? TileV9<64>::Br : TileV9<128>::Br,
            p->d == 64 ? TileV9<64>::Bc : TileV9<128>::Bc};
}

RUNG(flash_backward, v9_warp_pairs, "two warps share 32 keys (d = 128)", F16 | BF16, NULL, backward,
     work, tiles, ATOMICS | SM80);
