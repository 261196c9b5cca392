/* SPDX-License-Identifier: MIT
 *
 * v8_32_keys: a warp owns 32 keys, so a fragment serves four mma (d = 64).
 *
 * A tensor core multiplies faster than shared memory delivers. With 16 keys a warp, every fragment
 * of Q and dO is loaded for two mma: 8 bytes of shared memory for each lane and mma on top of those
 * of K and V. With 32 keys the same fragment serves four. A block has 128 keys then, which also
 * halves the number of times that a tile of dQ is added to.
 *
 * At d = 128 dK and dV of 32 keys would be 256 floats a lane, more than the 255 registers that a
 * thread can have: there v7's 16 keys stay (see v9).
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): at d = 64 a warp of v7 loads 32 + 32
 * fragments of Q and dO along and across, 8 + 8 of K and V for each 32 queries, and dQ's: about 0.7
 * ldmatrix.x4 for an mma. ldmatrix.x4 takes shared memory 4 clocks, an mma a tensor core 16, but
 * four tensor cores share one shared memory: 4 * 0.7 = 2.8 against 4 clocks an mma. Now 0.45, and
 * half of dQ's 34 GB: 1.3 times v7. d = 128: the same kernel.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 * Counted afterwards: v7 has 96 ldmatrix.x4 for 160 mma at d = 64, 0.6, and v8 0.4; an mma takes
 * 8 clocks. So it was 2.4 against 2 clocks an mma, and is 1.6 against 2. d = 128: 0.63.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 */
#include <type_traits>

#include "problem.cuh"
#include "units/warp_keys.cuh"

/* d = 64: 128 keys, 64 queries. d = 128: 64 keys, 32 queries, v7's. 4 warps. */
template <int D> using TileV8 = WarpKeys<D, 4, D == 64 ? 2 : 1, D == 64 ? 64 : 32, 2>;

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    keys_32_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
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

    float dK[C::MT][C::WARP_N][4] = {}, dV[C::MT][C::WARP_N][4] = {};
    /* One tile of queries for this warp's keys: dV += P^T dO, dK += dS^T Q, and dS. */
    auto step = [&](auto masked, int stage, int i0) {
        const uint32_t Q_stage = Q_smem + stage * STAGE, dO_stage = dO_smem + stage * STAGE;
        const float2 *stats = (const float2 *)(smem + STATS_BYTE + stage * C::STATS);
        KeyMask<C::MT> mask = {};
        if (masked.value)
            mask = mask_of_keys<C>(band, block.j0, i0);
#pragma unroll
        for (int q0 = 0; q0 < C::Br; q0 += C::CHUNK) {
            LeftFactors<C::MT, C::CHUNK> f;
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
#pragma unroll
    for (int m = 0; m < C::MT; m++) {
        const int j0 = block.j0 + m * C::KEYS + warp * 16;
        store_keys((T *)p.dK + key_0, K_step, j0, p.Nk, dK[m], p.scale);
        store_keys((T *)p.dV + key_0, K_step, j0, p.Nk, dV[m], 1.0f);
    }
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef TileV8<D> C;
    const int bytes = 2 * (C::KEY_TILE + 2 * C::ROW_TILE + C::dS_TILE + C::STATS);
    const PassSizes sizes = sizes_of(p);
    if (!reserve_smem((const void *)keys_32_kernel<T, C>, bytes))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    keys_32_kernel<T, C><<<key_blocks(p, C::Bc), C::THREADS, bytes, stream_of(p)>>>(*p, pass);
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
    return {p->d == 64 ? TileV8<64>::Br : TileV8<128>::Br,
            p->d == 64 ? TileV8<64>::Bc : TileV8<128>::Bc};
}

RUNG(flash_backward, v8_32_keys, "32 keys a warp: a fragment serves two products (d = 64)",
     F16 | BF16, NULL, backward, work, tiles, ATOMICS | SM80);
