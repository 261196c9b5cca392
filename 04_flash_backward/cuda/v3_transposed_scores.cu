/* SPDX-License-Identifier: MIT
 *
 * v3_transposed_scores: P and dS feed the next products from registers.
 *
 * v2 sends P and dS through shared memory, because two of the three products that use them want
 * them transposed. So compute them transposed: a warp owns 16 keys and computes
 *
 *     S^T  = K Q^T        dP^T = V dO^T         [16 keys][queries]
 *     dV  += P^T dO       dK  += dS^T Q         [16 keys][d], in registers for the whole kernel
 *
 * An accumulator of mma.m16n8k16 has the layout of a left factor of the next one (mma.cuh), and
 * P^T and dS^T are left factors: they go from accumulator to factor without leaving the registers.
 * Only dQ = dS K is left over. It sums over keys, that is, over warps. So dS^T is written to shared
 * memory once, and the warps share out the rows and channels of dQ.
 *
 * lse and delta belong to columns here; a lane reads those of its columns from shared memory.
 * Scores are computed for 32 queries at a time. At d = 128 a tile has only these 32, so that a
 * second buffer will fit in (v4).
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): of v2's 2 x 2 KiB a warp and tile
 * through shared memory, written and read, a half of the writing and three quarters of the reading
 * go (P both ways, dS as a left factor of dK), 20 of 100 ldmatrix at d = 64. The loads still wait,
 * and so do three barriers of four: 1.2 times v2. At d = 128 tiles half as high bring twice as many
 * loads and barriers for each pair: no gain.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 * The account was too kind. P and dS as left factors save 8 ldmatrix and dQ 4, but K and V are
 * loaded again for each 32 queries, 8 more: 96 of v2's 100 are left. A half of the writing of P and
 * dS goes and a third of the reading. All three barriers stay.
 *
 * Interface:
 * - flash_backward_v3_transposed_scores, flash_backward_tiles_v3_transposed_scores: f16 and bf16,
 *   d = 64 and 128.
 */
#include "warp_tile.cuh"

using namespace rung;

/* 64 keys, 64 or 32 queries, 4 warps. */
template <int D> using TileV3 = WarpTile<D, 4, 1, D == 64 ? 64 : 32, 2>;

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    transposed_scores_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass)
{
    extern __shared__ __align__(128) unsigned char smem[];
    unsigned char *K_smem = smem, *V_smem = K_smem + C::KEY_TILE;                  /* [Bc][LD] */
    unsigned char *Q_smem = V_smem + C::KEY_TILE, *dO_smem = Q_smem + C::ROW_TILE; /* [Br][LD] */
    unsigned char *dS_smem = dO_smem + C::ROW_TILE;                                /* [Bc][LD_dS] */
    float2 *stats = (float2 *)(dS_smem + C::dS_TILE);                              /* [Br] */
    __shared__ Plain plain;
    const KeyBlock block = block_of_keys(a, C::Bc);
    publish_plain(plain, a);
    const Rows seen = {plain.first_row, plain.end_row};
    const Rows rows = rows_that_see(plain, block.j0, C::Bc), keys = {0, plain.Nk};
    const int warp = threadIdx.x / 32;
    const uint32_t left = lane_plain(threadIdx.x, C::LD) + warp * 16 * C::LD * 2; /* K, V */
    const uint32_t right = lane_crossed(threadIdx.x, C::LD);                      /* Q, dO */
    const uint32_t turned = lane_plain(threadIdx.x, C::LD); /* Q, dO as right factors of dK, dV */

    float dK[1][C::WARP_N][4] = {}, dV[1][C::WARP_N][4] = {};
    load_tile<T, C::D, C::Bc, C::THREADS>(K_smem, a.K, block.b, block.h_kv, block.j0, keys);
    load_tile<T, C::D, C::Bc, C::THREADS>(V_smem, a.V, block.b, block.h_kv, block.j0, keys);
    for (int h = block.h_kv * block.group; h < (block.h_kv + 1) * block.group; h++)
        for (int i0 = rows.begin / C::Br * C::Br; i0 < rows.end; i0 += C::Br) {
            __syncthreads(); /* nobody reads the last tile any more */
            load_tile<T, C::D, C::Br, C::THREADS>(Q_smem, a.Q, block.b, h, i0, seen);
            load_tile<T, C::D, C::Br, C::THREADS>(dO_smem, a.dO, block.b, h, i0, seen);
            if (threadIdx.x < C::Br)
                stats[threadIdx.x] = stats_of_head(a, pass, block.b, h)[i0 + threadIdx.x];
            __syncthreads();
            const KeyMask<1> mask = mask_of_keys<C>(plain, block.j0, i0);
#pragma unroll
            for (int q0 = 0; q0 < C::Br; q0 += C::CHUNK) {
                ScoreFactors<1, C::CHUNK> f;
                compute_scores<T, C, true, C::CHUNK>(f, smem_address(K_smem) + left,
                                                     smem_address(V_smem) + left,
                                                     smem_address(Q_smem) + right + q0 * C::LD * 2,
                                                     smem_address(dO_smem) + right + q0 * C::LD * 2,
                                                     stats, q0, mask, a.scale * LOG2E);
                store_factor<C>(dS_smem, f.dS, q0);
#pragma unroll
                for (int k = 0; k < C::CHUNK / 16; k++) {
                    const int down = (q0 + k * 16) * C::LD * 2;
                    accumulate<T, C>(dV, f.P[k], smem_address(dO_smem) + turned + down);
                    accumulate<T, C>(dK, f.dS[k], smem_address(Q_smem) + turned + down);
                }
            }
            __syncthreads(); /* dS of all keys is there: dQ */
            float dQ[C::dQ_M][C::dQ_N][4];
            multiply_dS_K<T, C>(dQ, smem_address(dS_smem), smem_address(K_smem), threadIdx.x);
            const int row = i0 + warp / C::CHANNEL_WARPS * C::dQ_M * 16;
#pragma unroll
            for (int m = 0; m < C::dQ_M; m++)
                add_dQ_rows<C::D>(pass.dQ_sum, a, block.b, h, row + m * 16,
                                  warp % C::CHANNEL_WARPS * C::dQ_N * 8, dQ[m]);
        }
    store_keys<T>(a.dK, block, block.j0 + warp * 16, 0, dK[0], a.scale);
    store_keys<T>(a.dV, block, block.j0 + warp * 16, 0, dV[0], 1.0f);
}

template <typename T, int D> struct LaunchV3 {
    static AttnStatus run(const AttnArgs *a, const Pass &pass)
    {
        typedef TileV3<D> C;
        const int bytes = 2 * C::KEY_TILE + 2 * C::ROW_TILE + C::dS_TILE + C::STATS;
        const unsigned blocks =
            (unsigned)(a->shape.B * a->shape.Hkv * divide_up((int)a->shape.Nk, C::Bc));
        const AttnStatus status =
            cuda_reserve_smem((const void *)transposed_scores_kernel<T, C>, bytes);
        if (status != ATTN_OK)
            return status;
        transposed_scores_kernel<T, C>
            <<<blocks, C::THREADS, bytes, (cudaStream_t)a->stream>>>(*a, pass);
        CUDA_TRY_LAUNCH();
        return round_dQ(a, pass);
    }
};

FlashTiles flash_backward_tiles_v3_transposed_scores(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, a->shape.d == 64 ? TileV3<64>::Br : TileV3<128>::Br, 64);
}

AttnStatus flash_backward_v3_transposed_scores(const AttnArgs *a)
{
    return run_pass(a, run_16_bit<LaunchV3>, true);
}
