/* SPDX-License-Identifier: MIT
 *
 * v4_cp_async: the next tile of queries arrives while this one is multiplied.
 *
 * v3 loads a tile and waits for it. Global memory answers after 500 to 1000 clocks, and meanwhile
 * the warps of this block have nothing to do. Here Q, dO and the stats have two buffers, or stages:
 * cp.async copies the next tile into the one while the products read the other. The copy needs no
 * registers, and no thread waits for it before the next tile begins.
 *
 *     wait for tile t;  barrier;  start copying tile t + 1;  S, P, dP, dS, dV, dK of tile t;
 *     barrier (dS of all warps is there);  dQ of tile t
 *
 * The first barrier also says that all warps are done with dS and with the stage that the copy
 * overwrites, so v3's third barrier goes, too.
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): 2 blocks of 4 warps an SM. A tile keeps
 * the tensor cores busy for 2560 clocks of 4 warps at d = 64 and 2560 at d = 128 (half a tile); v3
 * adds a load of about 1000, and the second block hides half of it. Without: 1.2 times v3 at
 * d = 64, 1.2 at d = 128.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 * An mma takes about 8 clocks, so a tile is 1280 clocks of work, and a load hides less well.
 *
 * Interface:
 * - flash_backward_v4_cp_async, flash_backward_tiles_v4_cp_async: f16 and bf16, d = 64 and 128.
 */
#include "warp_tile.cuh"

using namespace rung;

/* 64 keys, 64 or 32 queries, 4 warps: v3's. */
template <int D> using TileV4 = WarpTile<D, 4, 1, D == 64 ? 64 : 32, 2>;

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    cp_async_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass)
{
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t K_smem = smem_address(smem), V_smem = K_smem + C::KEY_TILE;    /* [Bc][LD] */
    const uint32_t Q_smem = V_smem + C::KEY_TILE, dO_smem = Q_smem + C::ROW_TILE; /* [Br][LD] */
    const int STAGE = 2 * C::ROW_TILE, dS_BYTE = 2 * C::KEY_TILE + 2 * STAGE; /* dS [Bc][LD_dS] */
    const int STATS_BYTE = dS_BYTE + C::dS_TILE;                              /* [2][Br] */
    __shared__ Plain plain;
    const KeyBlock block = block_of_keys(a, C::Bc);
    publish_plain(plain, a);
    const Rows seen = {plain.first_row, plain.end_row};
    const Rows rows = rows_that_see(plain, block.j0, C::Bc), keys = {0, plain.Nk};
    const int warp = threadIdx.x / 32;
    const int end = end_of_walk(block);
    const uint32_t left = lane_plain(threadIdx.x, C::LD) + warp * 16 * C::LD * 2; /* K, V */
    const uint32_t right = lane_crossed(threadIdx.x, C::LD);                      /* Q, dO */
    const uint32_t turned = lane_plain(threadIdx.x, C::LD); /* Q, dO as right factors of dK, dV */

    auto copy_rows = [&](RowTile tile, int stage) {
        const int h = tile.h, i0 = tile.i0, at = stage * STAGE;
        copy_tile<T, C::D, C::Br, C::THREADS>(Q_smem + at, a.Q, block.b, h, i0, seen, threadIdx.x);
        copy_tile<T, C::D, C::Br, C::THREADS>(dO_smem + at, a.dO, block.b, h, i0, seen,
                                              threadIdx.x);
        copy_stats<C::Br>(K_smem + STATS_BYTE + stage * C::STATS,
                          stats_of_head(a, pass, block.b, h) + i0, threadIdx.x);
    };
    copy_tile<T, C::D, C::Bc, C::THREADS>(K_smem, a.K, block.b, block.h_kv, block.j0, keys,
                                          threadIdx.x);
    copy_tile<T, C::D, C::Bc, C::THREADS>(V_smem, a.V, block.b, block.h_kv, block.j0, keys,
                                          threadIdx.x);
    RowTile tile = first_tile(block, rows, C::Br);
    if (tile.h < end)
        copy_rows(tile, 0);
    copy_async_commit();

    float dK[1][C::WARP_N][4] = {}, dV[1][C::WARP_N][4] = {};
    for (int stage = 0; tile.h < end; stage = 1 - stage) {
        const RowTile next = next_tile(tile, rows, C::Br);
        const uint32_t Q_stage = Q_smem + stage * STAGE, dO_stage = dO_smem + stage * STAGE;
        const float2 *stats = (const float2 *)(smem + STATS_BYTE + stage * C::STATS);
        copy_async_wait<0>();
        __syncthreads(); /* the tile is there, and dS and the other stage are free */
        if (next.h < end)
            copy_rows(next, 1 - stage);
        copy_async_commit();
        const KeyMask<1> mask = mask_of_keys<C>(plain, block.j0, tile.i0);
#pragma unroll
        for (int q0 = 0; q0 < C::Br; q0 += C::CHUNK) {
            ScoreFactors<1, C::CHUNK> f;
            compute_scores<T, C, true, C::CHUNK>(
                f, K_smem + left, V_smem + left, Q_stage + right + q0 * C::LD * 2,
                dO_stage + right + q0 * C::LD * 2, stats, q0, mask, a.scale * LOG2E);
            store_factor<C>(smem + dS_BYTE, f.dS, q0);
#pragma unroll
            for (int k = 0; k < C::CHUNK / 16; k++) {
                const int down = (q0 + k * 16) * C::LD * 2;
                accumulate<T, C>(dV, f.P[k], dO_stage + turned + down);
                accumulate<T, C>(dK, f.dS[k], Q_stage + turned + down);
            }
        }
        __syncthreads(); /* dS of all keys is there: dQ */
        float dQ[C::dQ_M][C::dQ_N][4];
        multiply_dS_K<T, C>(dQ, K_smem + dS_BYTE, K_smem, threadIdx.x);
        const int row = tile.i0 + warp / C::CHANNEL_WARPS * C::dQ_M * 16;
#pragma unroll
        for (int m = 0; m < C::dQ_M; m++)
            add_dQ_rows<C::D>(pass.dQ_sum, a, block.b, tile.h, row + m * 16,
                              warp % C::CHANNEL_WARPS * C::dQ_N * 8, dQ[m]);
        tile = next;
    }
    store_keys<T>(a.dK, block, block.j0 + warp * 16, 0, dK[0], a.scale);
    store_keys<T>(a.dV, block, block.j0 + warp * 16, 0, dV[0], 1.0f);
}

template <typename T, int D> struct LaunchV4 {
    static AttnStatus run(const AttnArgs *a, const Pass &pass)
    {
        typedef TileV4<D> C;
        const int bytes = 2 * C::KEY_TILE + 4 * C::ROW_TILE + C::dS_TILE + 2 * C::STATS;
        const unsigned blocks =
            (unsigned)(a->shape.B * a->shape.Hkv * divide_up((int)a->shape.Nk, C::Bc));
        const AttnStatus status = cuda_reserve_smem((const void *)cp_async_kernel<T, C>, bytes);
        if (status != ATTN_OK)
            return status;
        cp_async_kernel<T, C><<<blocks, C::THREADS, bytes, (cudaStream_t)a->stream>>>(*a, pass);
        CUDA_TRY_LAUNCH();
        return round_dQ(a, pass);
    }
};

FlashTiles flash_backward_tiles_v4_cp_async(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, a->shape.d == 64 ? TileV4<64>::Br : TileV4<128>::Br, 64);
}

AttnStatus flash_backward_v4_cp_async(const AttnArgs *a)
{
    return run_pass(a, run_16_bit<LaunchV4>, true);
}
