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
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 * Namespace v3 holds what this rung adds. warp_keys.cuh has the same words for later rungs; here
 * v3:: is what runs.
 */
#include "problem.cuh"
#include "units/warp_keys.cuh"

namespace v3
{

/* Columns 16k .. 16k + 15 of an accumulator are the left factor of the next product. */
template <typename T, int MT, int N>
static __device__ __forceinline__ void pack_factor(uint32_t (&A)[N / 2][MT][4],
                                                   const float (&sum)[MT][N][4])
{
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *pair = sum[m][2 * k + e / 2] + e % 2 * 2;
                A[k][m][e] = pack2<T>(pair[0], pair[1]);
            }
}

/* P^T = exp(S^T - lse) and dS^T = P^T * (dP^T - delta) of this warp's keys and QUERIES queries of
 * the tile from q0 on. K, V, Q, dO: where this lane points ldmatrix at, for Q and dO at q0. stats:
 * of the tile. delta costs nothing: the accumulator of dP starts at -delta. */
template <typename T, class C, bool MASKED, int QUERIES>
static __device__ __forceinline__ void
compute_scores(LeftFactors<C::MT, QUERIES> &f, uint32_t K, uint32_t V, uint32_t Q, uint32_t dO,
               const float2 *stats, int q0, const KeyMask<C::MT> &mask, float scale_log2)
{
    const int t = threadIdx.x % 4;
    float S[C::MT][QUERIES / 8][4], dP[C::MT][QUERIES / 8][4];
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        /* x, y: lse and delta of query 2t; z, w: of 2t + 1 */
        const float4 pair = *reinterpret_cast<const float4 *>(stats + q0 + n * 8 + 2 * t);
#pragma unroll
        for (int m = 0; m < C::MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                S[m][n][e] = 0.0f;
                dP[m][n][e] = e % 2 ? -pair.w : -pair.y;
            }
    }
    multiply_add<T, true, true, C::D, C::LD, C::LD, C::KEYS>(S, K, Q);
    multiply_add<T, true, true, C::D, C::LD, C::LD, C::KEYS>(dP, V, dO);
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const float4 pair = *reinterpret_cast<const float4 *>(stats + q0 + n * 8 + 2 * t);
#pragma unroll
        for (int m = 0; m < C::MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int query = q0 + n * 8 + 2 * t + e % 2;
                float s = S[m][n][e];
                if (MASKED && (query < mask.first[m][e / 2] || query > mask.last[m][e / 2]))
                    s = -INFINITY;
                S[m][n][e] = exp2_sfu(fmaf(s, scale_log2, e % 2 ? -pair.z : -pair.x));
                dP[m][n][e] *= S[m][n][e];
            }
    }
    pack_factor<T>(f.P, S);
    pack_factor<T>(f.dS, dP);
}

/* sum [MT x 16 keys][N x 8 channels] += A [keys][16 queries] * rows [16][channels]. rows: where
 * this lane points ldmatrix at (lane_plain). */
template <typename T, class C, int N>
static __device__ __forceinline__ void accumulate(float (&sum)[C::MT][N][4],
                                                  const uint32_t (&A)[C::MT][4], uint32_t rows)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t B[4];
        ldmatrix_x4_trans(B, rows + n * 16);
#pragma unroll
        for (int m = 0; m < C::MT; m++) {
            mma_16816<T>(sum[m][n], A[m], B[0], B[1]);
            mma_16816<T>(sum[m][n + 1], A[m], B[2], B[3]);
        }
    }
}

} // namespace v3

/* 64 keys, 64 or 32 queries, 4 warps. */
template <int D> using TileV3 = WarpKeys<D, 4, 1, D == 64 ? 64 : 32, 2>;

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    transposed_scores_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
{
    extern __shared__ __align__(128) unsigned char smem[];
    unsigned char *K_smem = smem, *V_smem = K_smem + C::KEY_TILE;                  /* [Bc][LD] */
    unsigned char *Q_smem = V_smem + C::KEY_TILE, *dO_smem = Q_smem + C::ROW_TILE; /* [Br][LD] */
    unsigned char *dS_smem = dO_smem + C::ROW_TILE;                                /* [Bc][LD_dS] */
    float2 *stats = (float2 *)(dS_smem + C::dS_TILE);                              /* [Br] */
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange keys = {0, p.Nk}, seen = rows_that_see(band);
    const RowRange rows = rows_that_see(band, block.j0, C::Bc);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const int64_t key_0 = key_row(&p, block.b, block.h_kv, 0);
    const int warp = threadIdx.x / 32;
    const uint32_t left = lane_plain(threadIdx.x, C::LD) + warp * 16 * C::LD * 2; /* K, V */
    const uint32_t right = lane_crossed(threadIdx.x, C::LD);                      /* Q, dO */
    const uint32_t turned = lane_plain(threadIdx.x, C::LD); /* Q, dO as right factors of dK, dV */

    float dK[1][C::WARP_N][4] = {}, dV[1][C::WARP_N][4] = {};
    load_tile<T, C::D, C::Bc, C::THREADS>(K_smem, (const T *)p.K + key_0, K_step, block.j0, keys);
    load_tile<T, C::D, C::Bc, C::THREADS>(V_smem, (const T *)p.V + key_0, K_step, block.j0, keys);
    for (int h = block.h_kv * block.group; h < (block.h_kv + 1) * block.group; h++)
        for (int i0 = rows.begin / C::Br * C::Br; i0 < rows.end; i0 += C::Br) {
            const int64_t query_0 = query_row(&p, block.b, h, 0);
            __syncthreads(); /* nobody reads the last tile any more */
            load_tile<T, C::D, C::Br, C::THREADS>(Q_smem, (const T *)p.Q + query_0, Q_step, i0,
                                                  seen);
            load_tile<T, C::D, C::Br, C::THREADS>(dO_smem, (const T *)p.dO + query_0, Q_step, i0,
                                                  seen);
            if (threadIdx.x < C::Br)
                stats[threadIdx.x] = stats_of_head(pass, block.b * p.H + h, p.Nq)[i0 + threadIdx.x];
            __syncthreads();
            const KeyMask<1> mask = mask_of_keys<C>(band, block.j0, i0);
#pragma unroll
            for (int q0 = 0; q0 < C::Br; q0 += C::CHUNK) {
                LeftFactors<1, C::CHUNK> f;
                v3::compute_scores<T, C, true, C::CHUNK>(
                    f, smem_address(K_smem) + left, smem_address(V_smem) + left,
                    smem_address(Q_smem) + right + q0 * C::LD * 2,
                    smem_address(dO_smem) + right + q0 * C::LD * 2, stats, q0, mask,
                    p.scale * (float)M_LOG2E);
                store_factor<C>(dS_smem, f.dS, q0);
#pragma unroll
                for (int k = 0; k < C::CHUNK / 16; k++) {
                    const int down = (q0 + k * 16) * C::LD * 2;
                    v3::accumulate<T, C>(dV, f.P[k], smem_address(dO_smem) + turned + down);
                    v3::accumulate<T, C>(dK, f.dS[k], smem_address(Q_smem) + turned + down);
                }
            }
            __syncthreads(); /* dS of all keys is there: dQ */
            float dQ[C::dQ_M][C::dQ_N][4];
            multiply_dS_K<T, C>(dQ, smem_address(dS_smem), smem_address(K_smem), threadIdx.x);
            const int row = i0 + warp / C::CHANNEL_WARPS * C::dQ_M * 16;
#pragma unroll
            for (int m = 0; m < C::dQ_M; m++)
                add_dQ_rows(pass.dQ_sum + query_0 + warp % C::CHANNEL_WARPS * C::dQ_N * 8, Q_step,
                            row + m * 16, p.Nq, dQ[m]);
        }
    store_keys((T *)p.dK + key_0, K_step, block.j0 + warp * 16, p.Nk, dK[0], p.scale);
    store_keys((T *)p.dV + key_0, K_step, block.j0 + warp * 16, p.Nk, dV[0], 1.0f);
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef TileV3<D> C;
    const int bytes = 2 * C::KEY_TILE + 2 * C::ROW_TILE + C::dS_TILE + C::STATS;
    const PassSizes sizes = sizes_of(p);
    if (!reserve_smem((const void *)transposed_scores_kernel<T, C>, bytes))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    transposed_scores_kernel<T, C>
        <<<key_blocks(p, C::Bc), C::THREADS, bytes, stream_of(p)>>>(*p, pass);
    round_sums(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
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
    return {p->d == 64 ? TileV3<64>::Br : TileV3<128>::Br,
            p->d == 64 ? TileV3<64>::Bc : TileV3<128>::Bc};
}

RUNG(flash_backward, v3_transposed_scores, "S^T: P and dS feed dV and dK from registers",
     F16 | BF16, NULL, backward, work, tiles, ATOMICS | SM80);
