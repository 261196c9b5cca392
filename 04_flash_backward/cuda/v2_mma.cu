/* SPDX-License-Identifier: MIT
 *
 * v2_mma: v0's loops, the five products on tensor cores.
 *
 * The inputs of a tensor core are 16-bit, its sums float32 (mma.cuh). So P and dS, which
 * are factors of the next products, are rounded to the dtype; dK_j, dV_j and dQ are not rounded
 * before they are complete, and dS is made from the unrounded P.
 *
 * A warp owns 16 rows of each product's result. P and dS come out of S and dP with queries as rows,
 * and are needed in two ways:
 *
 *     dQ_i += dS K_j        rows = queries: the warp's own dS
 *     dV_j += P^T dO_i      rows = keys: 16 columns of P from all warps
 *     dK_j += dS^T Q_i
 *
 * So both go through shared memory, with a barrier before anybody reads. dS lacks the scale: dK and
 * dQ are multiplied by it once, at the end. There are four kinds of factors: a left or a right one,
 * whose summation index k runs along the rows of its tile or across them.
 *
 *     product             left: k along?         right: k along?
 *     S  = Q K^T          Q   yes, channels      K   yes
 *     dP = dO V^T         dO  yes                V   yes
 *     dV = P^T dO         P   no, queries        dO  no
 *     dK = dS^T Q         dS  no                 Q   no
 *     dQ = dS K           dS  yes, keys          K   no
 *
 * Still plain: load, wait, compute, wait. Every pair of every tile is asked whether it is seen.
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): a tile of 64 x 64 pairs takes a warp
 * 160 mma at d = 64 and 320 at d = 128: 2560 and 5120 clocks of its tensor core (16 each). Beside
 * them stand about 1500 and 2300 other instructions, 32 lanes wide, and three barriers. With 2
 * blocks an SM nothing hides the loads: a third of the mma's speed at best, 120 and 140 TFLOP/s.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 * An mma takes about 8 clocks, not 16: see stage 03's v3_mma.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 * Namespace v2 holds what this rung adds. warp_keys.cuh has the same words for later rungs; here
 * v2:: is what runs.
 */
#include "problem.cuh"
#include "units/warp_keys.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)
#define TILE    64         /* Br = Bc */
#define LD_P    (TILE + 8) /* of P and dS [Br][Bc] */

namespace v2
{

/* sum [M x 16 rows][N x 8 columns] += A B, K terms. A lies as [rows][k] (A_ALONG) or [k][rows], its
 * 16 rows m begin A_STEP * m after the first; B lies as [columns][k] (B_ALONG) or [k][columns]. */
template <typename T, bool A_ALONG, bool B_ALONG, int K, int LD_A, int LD_B, int A_STEP, int M,
          int N>
static __device__ __forceinline__ void multiply_add(float (&sum)[M][N][4], uint32_t A, uint32_t B)
{
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        uint32_t A_frag[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            if (A_ALONG)
                ldmatrix_x4(A_frag[m], A + (m * A_STEP * LD_A + k) * 2);
            else
                ldmatrix_x4_trans(A_frag[m], A + (k * LD_A + m * A_STEP) * 2);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t B_frag[4];
            if (B_ALONG)
                ldmatrix_x4(B_frag, B + (n * 8 * LD_B + k) * 2);
            else
                ldmatrix_x4_trans(B_frag, B + (k * LD_B + n * 8) * 2);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<T>(sum[m][n], A_frag[m], B_frag[0], B_frag[1]);
                mma_16816<T>(sum[m][n + 1], A_frag[m], B_frag[2], B_frag[3]);
            }
        }
    }
}

} // namespace v2

/* S_reg and dP_reg of this warp's rows become P and dS, rounded, in shared memory [Br][LD_P].
 * stats: of the tile of queries. */
template <typename T>
static __device__ __forceinline__ void
store_P_dS(const float (&S_reg)[TILE / 8][4], const float (&dP_reg)[TILE / 8][4], const Band &band,
           const float2 *stats, int i0, int j0, float scale_log2, T *P_smem, T *dS_smem)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int r = threadIdx.x / 32 * 16 + g + 8 * e;
        const float2 row = stats[r]; /* lse * log2(e), delta */
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const int c = n * 8 + 2 * t;
            float P[2], dS[2];
#pragma unroll
            for (int x = 0; x < 2; x++) {
                P[x] = exp2_sfu(fmaf(S_reg[n][2 * e + x], scale_log2, -row.x));
                if (!pair_is_seen(band, i0 + r, j0 + c + x))
                    P[x] = 0.0f;
                dS[x] = P[x] * (dP_reg[n][2 * e + x] - row.y);
            }
            *reinterpret_cast<uint32_t *>(P_smem + r * LD_P + c) = pack2<T>(P[0], P[1]);
            *reinterpret_cast<uint32_t *>(dS_smem + r * LD_P + c) = pack2<T>(dS[0], dS[1]);
        }
    }
}

/* One block: TILE keys of one kv head, all queries of its group. */
template <typename T, int D>
static __global__ void __launch_bounds__(THREADS)
    mma_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
{
    const int LD = D + 8, BYTES = TILE * LD * 2;
    extern __shared__ __align__(128) unsigned char smem[];
    unsigned char *Q_smem = smem, *dO_smem = Q_smem + BYTES; /* [TILE][LD] */
    unsigned char *K_smem = dO_smem + BYTES, *V_smem = K_smem + BYTES;
    T *P_smem = (T *)(V_smem + BYTES), *dS_smem = P_smem + TILE * LD_P; /* [TILE][LD_P] */
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, TILE);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange keys = {0, p.Nk}, seen = rows_that_see(band);
    const RowRange rows = rows_that_see(band, block.j0, TILE);
    const int64_t Q_step = (int64_t)p.H * D, K_step = (int64_t)p.Hkv * D; /* row to row */
    const int64_t key_0 = key_row(&p, block.b, block.h_kv, 0);
    const int warp_row = threadIdx.x / 32 * 16;
    /* Where this lane points ldmatrix at: (k along, left), (k across, left), and right factors. */
    const uint32_t along = lane_plain(threadIdx.x, LD), crossed = lane_crossed(threadIdx.x, LD);
    const uint32_t along_P = lane_plain(threadIdx.x, LD_P) + warp_row * LD_P * 2;
    const uint32_t crossed_P = lane_crossed(threadIdx.x, LD_P) + warp_row * 2;

    float dK_reg[1][D / 8][4] = {}, dV_reg[1][D / 8][4] = {};
    load_tile<T, D, TILE, THREADS>(K_smem, (const T *)p.K + key_0, K_step, block.j0, keys);
    load_tile<T, D, TILE, THREADS>(V_smem, (const T *)p.V + key_0, K_step, block.j0, keys);
    for (int h = block.h_kv * block.group; h < (block.h_kv + 1) * block.group; h++)
        for (int i0 = rows.begin / TILE * TILE; i0 < rows.end; i0 += TILE) {
            const int64_t query_0 = query_row(&p, block.b, h, 0);
            __syncthreads(); /* nobody reads the last tile any more */
            load_tile<T, D, TILE, THREADS>(Q_smem, (const T *)p.Q + query_0, Q_step, i0, seen);
            load_tile<T, D, TILE, THREADS>(dO_smem, (const T *)p.dO + query_0, Q_step, i0, seen);
            __syncthreads();
            float S_reg[1][TILE / 8][4] = {}, dP_reg[1][TILE / 8][4] = {};
            v2::multiply_add<T, true, true, D, LD, LD, 16>(
                S_reg, smem_address(Q_smem) + along + warp_row * LD * 2,
                smem_address(K_smem) + crossed);
            v2::multiply_add<T, true, true, D, LD, LD, 16>(
                dP_reg, smem_address(dO_smem) + along + warp_row * LD * 2,
                smem_address(V_smem) + crossed);
            store_P_dS(S_reg[0], dP_reg[0], band, stats_of_head(pass, block.b * p.H + h, p.Nq) + i0,
                       i0, block.j0, p.scale * (float)M_LOG2E, P_smem, dS_smem);
            __syncthreads(); /* P and dS of all warps are there */
            v2::multiply_add<T, false, false, TILE, LD_P, LD, 16>(
                dV_reg, smem_address(P_smem) + crossed_P, smem_address(dO_smem) + along);
            v2::multiply_add<T, false, false, TILE, LD_P, LD, 16>(
                dK_reg, smem_address(dS_smem) + crossed_P, smem_address(Q_smem) + along);
#pragma unroll 1
            for (int x0 = 0; x0 < D; x0 += 64) { /* 64 channels at a time: registers are short */
                float dQ_reg[1][8][4] = {};
                v2::multiply_add<T, true, false, TILE, LD_P, LD, 16>(
                    dQ_reg, smem_address(dS_smem) + along_P, smem_address(K_smem) + along + x0 * 2);
                add_dQ_rows(pass.dQ_sum + query_0 + x0, Q_step, i0 + warp_row, p.Nq, dQ_reg[0]);
            }
        }
    store_keys((T *)p.dK + key_0, K_step, block.j0 + warp_row, p.Nk, dK_reg[0], p.scale);
    store_keys((T *)p.dV + key_0, K_step, block.j0 + warp_row, p.Nk, dV_reg[0], 1.0f);
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    const int bytes = (4 * TILE * (D + 8) + 2 * TILE * LD_P) * 2;
    const PassSizes sizes = sizes_of(p);
    if (!reserve_smem((const void *)mma_kernel<T, D>, bytes))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    mma_kernel<T, D><<<key_blocks(p, TILE), THREADS, bytes, stream_of(p)>>>(*p, pass);
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

static Tiles tiles(const Problem *)
{
    return {TILE, TILE};
}

RUNG(flash_backward, v2_mma, "tensor cores, P and dS through shared memory", F16 | BF16, NULL,
     backward, work, tiles, ATOMICS | SM80);
