/* SPDX-License-Identifier: MIT
 *
 * v5_dq_fragments: dQ is added up in the order of the accumulators.
 *
 * Every block adds every tile of dQ to device memory. In rows and columns, one instruction of a
 * warp adds to eight rows, 32 bytes of each: lanes 4g .. 4g + 3 hold pairs of channels of row g,
 * and an add takes every other float of them. But nobody reads this dQ before it is complete, so
 * it may lie in any order. Here it lies as the accumulators do,
 *
 *     dQ_sum [B][H][Tr][warp][m16 tile][n8 tile][32 lanes][4]
 *
 * so a warp adds 512 neighbouring bytes at a time, four floats a lane (from sm_90 on in one
 * instruction). A last kernel puts the elements in their places, multiplies by the scale and
 * rounds.
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): dQ of all tiles is Nk / 64 times 128
 * MiB: 34 GB to add. v4 adds it by 8.6e9 single floats; the L2 cache takes about 2500 of them a
 * clock, and each instruction needs 8 sectors of 32 bytes half used. Now 1/4 of the instructions
 * and half of the sectors: where v4 waits for its adds, 1.5 times v4; at d = 128 (the same bytes,
 * twice the products for each of them) 1.3 times.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 * 2500 floats a clock would be 2 ms of v4's 36, and v5 saved 13: the L2 takes far fewer of these
 * adds.
 *
 * Interface:
 * - flash_backward_v5_dq_fragments, flash_backward_tiles_v5_dq_fragments: f16 and bf16, d = 64 and
 *   128.
 */
#include "warp_tile.cuh"

using namespace rung;

/* 64 keys, 64 or 32 queries, 4 warps: v3's. */
template <int D> using TileV5 = WarpTile<D, 4, 1, D == 64 ? 64 : 32, 2>;

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    dq_fragments_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass)
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
    const int Tr = divide_up((int)a.shape.Nq, C::Br);
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
        multiply_dS_K<T, C>(dQ, K_smem + dS_BYTE, K_smem, read_thread());
        add_dQ_fragments<C>(pass.dQ_sum, block.b * (int)a.shape.H + tile.h, Tr, tile.i0 / C::Br, dQ,
                            read_thread());
        tile = next;
    }
    store_keys<T>(a.dK, block, block.j0 + warp * 16, 0, dK[0], a.scale);
    store_keys<T>(a.dV, block, block.j0 + warp * 16, 0, dV[0], 1.0f);
}

template <typename T, int D> struct LaunchV5 {
    static AttnStatus run(const AttnArgs *a, const Pass &pass)
    {
        typedef TileV5<D> C;
        const int bytes = 2 * C::KEY_TILE + 4 * C::ROW_TILE + C::dS_TILE + 2 * C::STATS;
        const unsigned blocks =
            (unsigned)(a->shape.B * a->shape.Hkv * divide_up((int)a->shape.Nk, C::Bc));
        const AttnStatus status = cuda_reserve_smem((const void *)dq_fragments_kernel<T, C>, bytes);
        if (status != ATTN_OK)
            return status;
        dq_fragments_kernel<T, C><<<blocks, C::THREADS, bytes, (cudaStream_t)a->stream>>>(*a, pass);
        CUDA_TRY_LAUNCH();
        return finish_fragments<T, C>(a, pass);
    }
};

FlashTiles flash_backward_tiles_v5_dq_fragments(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, a->shape.d == 64 ? TileV5<64>::Br : TileV5<128>::Br, 64);
}

AttnStatus flash_backward_v5_dq_fragments(const AttnArgs *a)
{
    return run_pass(a, run_16_bit<LaunchV5>, true);
}
