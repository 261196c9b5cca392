/* SPDX-License-Identifier: MIT
 *
 * v2_mma: v0's loops, the five products on tensor cores.
 *
 * The inputs of a tensor core are 16-bit, its sums float32 (stage 03's mma.cuh). So P and dS, which
 * are factors of the next products, are rounded to the dtype; dK_j, dV_j and dQ are never rounded
 * before they are complete, and dS is made from the unrounded P.
 *
 * A warp owns 16 rows of each product's result. P and dS come out of S and dP with queries as rows,
 * and are needed in two ways:
 *
 *     dQ_i += dS K_j        rows = queries: the warp's own dS
 *     dV_j += P^T dO_i      rows = keys: 16 columns of P from all warps
 *     dK_j += dS^T Q_i
 *
 * So both go through shared memory, with a barrier before anybody reads. There are four kinds of
 * factors: left or right, with the summation index k along a row of the tile or across the rows.
 * One instruction, ldmatrix, loads all of them, if it transposes where k runs across:
 *
 *     product             left: k along?         right: k along?
 *     S  = Q K^T          Q   yes, channels      K   yes
 *     dP = dO V^T         dO  yes                V   yes
 *     dV = P^T dO         P   no, queries        dO  no
 *     dK = dS^T Q         dS  no                 Q   no
 *     dQ = dS K           dS  yes, keys          K   no
 *
 * Still plain: load, wait, compute, wait; every pair of a masked tile is asked for.
 *
 * Prediction (H200, bf16, d=64, full): per tile and warp 320 mma and 210 ldmatrix, 3000 other
 * instructions for P, dS and the atomics of dQ, and four barriers: 150 TFLOP/s. (The count is that
 * of d = 128. At d = 64 there are 160 mma and 100 ldmatrix.)
 *
 * Interface:
 * - flash_backward_v2_mma: f16 and bf16, d <= 256. flash_backward_block_v2_mma (block.cuh).
 */
#include "block.cuh"
#include "dispatch.cuh"
#include "scores.cuh"
#include "tile_load.cuh"

/* Br x Bc = 64 x 64: 88 KiB of shared memory at D = 128, of 99 that GPUs from sm_80 on have. D =
 * 256 has room for 32 x 32, and two warps share the 16 rows of a result, half of the columns each.
 */
template <int D_> struct MmaTile {
    static const int D = D_, WARPS = 4, THREADS = WARPS * 32;
    static const int Br = D <= 128 ? 64 : 32, Bc = Br;
    static const int PARTS = WARPS * 16 / Br;   /* of the columns */
    static const int DQ = D <= 96 ? D : 64;     /* channels of dQ at a time: registers are short */
    static const int LD = D + 8, LD_P = Bc + 8; /* rows padded by 16 bytes: no bank conflicts */
    static const int SMEM = (2 * Br * LD + 2 * Bc * LD + 2 * Br * LD_P) * 2;
};

/* The first row, 0 .. Br - 1, and the first of COLS columns of this warp's share of a result. */
template <class C> static __device__ __forceinline__ int warp_row(void)
{
    return threadIdx.x / 32 % (C::Br / 16) * 16;
}

template <class C> static __device__ __forceinline__ int warp_column(int columns)
{
    return threadIdx.x / 32 / (C::Br / 16) * (columns / C::PARTS);
}

/* sum += A B, 16 rows from `row` on, 8 N columns from `column` on, K terms. A lies in shared memory
 * as [rows][k] (A_ALONG) or as [k][rows], B as [columns][k] (B_ALONG) or as [k][columns]. Which row
 * of the tile a lane names to ldmatrix: mma_products.cuh of stage 03 has the table. */
template <typename T, bool A_ALONG, bool B_ALONG, int K, int N>
static __device__ __forceinline__ void multiply_add(float (&sum)[N][4], const T *A_smem, int lda,
                                                    int row, const T *B_smem, int ldb, int column)
{
    const int lane = threadIdx.x % 32, half = lane / 16 * 8, quarter = lane / 8 % 2 * 8;
    A_smem += A_ALONG ? (row + lane % 16) * lda + half : (lane % 8 + half) * lda + row + quarter;
    B_smem +=
        B_ALONG ? (column + lane % 8 + half) * ldb + quarter : lane % 16 * ldb + column + half;
    const uint32_t A = (uint32_t)__cvta_generic_to_shared(A_smem);
    const uint32_t B = (uint32_t)__cvta_generic_to_shared(B_smem);
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        uint32_t A_frag[4];
        if (A_ALONG)
            ldmatrix_x4(A_frag, A + k * 2);
        else
            ldmatrix_x4_trans(A_frag, A + k * lda * 2);
#pragma unroll
        for (int n = 0; n < N; n += 2) { /* 16 columns */
            uint32_t B_frag[4];
            if (B_ALONG)
                ldmatrix_x4(B_frag, B + (n * 8 * ldb + k) * 2);
            else
                ldmatrix_x4_trans(B_frag, B + (k * ldb + n * 8) * 2);
            mma_16816<T>(sum[n], A_frag, B_frag[0], B_frag[1]);
            mma_16816<T>(sum[n + 1], A_frag, B_frag[2], B_frag[3]);
        }
    }
}

/* What a tile asks of its pairs. */
struct PairMask {
    int i0, j0;
    bool ask; /* not all pairs are visible, or not all of them exist */
};

/* S_reg and dP_reg, this warp's rows from `row` on and its columns from `column` on, become P and
 * dS, rounded, in shared memory [Br][LD_P]. lse and delta: of the head, [Nq]. */
template <typename T, class C>
static __device__ __forceinline__ void
store_P_dS(float (&S_reg)[C::Bc / C::PARTS / 8][4], float (&dP_reg)[C::Bc / C::PARTS / 8][4],
           const AttnArgs &a, PairMask mask, const float *lse, const float *delta, int row,
           int column, T *P_smem, T *dS_smem)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float scale_log2 = exponent_scale(a);
    const bool capped = a.softcap > 0.0f;
    adjust_scores(S_reg, a);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int r = row + g + 8 * e, i = mask.i0 + r;
        const bool exists = i < a.shape.Nq;
        const float lse_i = exists ? lse[i] : INFINITY, delta_i = exists ? delta[i] : 0.0f;
        const float base = lse_i == -INFINITY ? 0.0f : lse_i * LOG2E;
#pragma unroll
        for (int n = 0; n < C::Bc / C::PARTS / 8; n++) {
            const int c = column + n * 8 + 2 * t;
            float P[2], dS[2];
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const float s = S_reg[n][2 * e + x]; /* with a cap: the tanh */
                const int j = mask.j0 + c + x;
                P[x] = exp2_sfu(fmaf(s, scale_log2, -base));
                if (mask.ask && !(exists && j < a.shape.Nk && attn_sees(&a, i, j)))
                    P[x] = 0.0f;
                dS[x] = P[x] * (dP_reg[n][2 * e + x] - delta_i);
                if (capped)
                    dS[x] *= 1.0f - s * s;
            }
            *reinterpret_cast<uint32_t *>(P_smem + r * C::LD_P + c) = pack2<T>(P[0], P[1]);
            *reinterpret_cast<uint32_t *>(dS_smem + r * C::LD_P + c) = pack2<T>(dS[0], dS[1]);
        }
    }
}

/* For each element of this warp's share of a result: add(row, channel, value). */
template <int N, class Add>
static __device__ __forceinline__ void for_each_element(const float (&sum)[N][4], int row,
                                                        int column, Add add)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            add(row + g + e / 2 * 8, column + n * 8 + 2 * t + e % 2, sum[n][e]);
}

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS)
    mma_kernel(const __grid_constant__ AttnArgs a, const float *delta, FlashSums sums, bool aligned)
{
    extern __shared__ __align__(16) unsigned char smem[];
    T *Q_smem = (T *)smem, *dO_smem = Q_smem + C::Br * C::LD;                /* [Br][LD] */
    T *K_smem = dO_smem + C::Br * C::LD, *V_smem = K_smem + C::Bc * C::LD;   /* [Bc][LD] */
    T *P_smem = V_smem + C::Bc * C::LD, *dS_smem = P_smem + C::Br * C::LD_P; /* [Br][LD_P] */
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const int H = (int)a.shape.H, Hkv = (int)a.shape.Hkv, group = H / Hkv;
    const int tiles = (Nk + C::Bc - 1) / C::Bc, b = blockIdx.x / tiles / Hkv;
    const int h_kv = blockIdx.x / tiles % Hkv, j0 = blockIdx.x % tiles * C::Bc;
    const int row = warp_row<C>(), column = warp_column<C>(C::Bc), channel = warp_column<C>(C::D);
    const T *K = (const T *)a.K.data + tensor_offset(&a.K, b, 0, h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, b, 0, h_kv);
    const AttnRange keys = attn_range(a.positions_k, j0, min(C::Bc, Nk - j0));

    float dK_reg[C::D / C::PARTS / 8][4] = {}, dV_reg[C::D / C::PARTS / 8][4] = {};
    load_tile_padded<T, C::D, C::Bc, C::THREADS>(K_smem, K, a.K.stride[1], j0, Nk, d, aligned);
    load_tile_padded<T, C::D, C::Bc, C::THREADS>(V_smem, V, a.V.stride[1], j0, Nk, d, aligned);
    for (int h = h_kv * group; h < (h_kv + 1) * group; h++) {
        const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, b, 0, h);
        const T *dO = (const T *)a.dO.data + tensor_offset(&a.dO, b, 0, h);
        const int64_t head = ((int64_t)b * H + h) * Nq; /* in lse and delta [B][H][Nq] */
        for (int i0 = 0; i0 < Nq; i0 += C::Br) {
            const AttnRange queries = attn_range(a.positions_q, i0, min(C::Br, Nq - i0));
            const AttnTile kind = attn_tile_class(a.rule, queries, keys);
            if (kind == ATTN_TILE_SKIP)
                continue;                        /* the same decision in all threads */
            const bool whole = j0 + C::Bc <= Nk; /* rows behind Nq need no question: lse = inf */
            const PairMask mask = {i0, j0, kind == ATTN_TILE_MASKED || a.mask || !whole};
            float S_reg[C::Bc / C::PARTS / 8][4] = {}, dP_reg[C::Bc / C::PARTS / 8][4] = {};
            __syncthreads(); /* nobody reads the last tile any more */
            load_tile_padded<T, C::D, C::Br, C::THREADS>(Q_smem, Q, a.Q.stride[1], i0, Nq, d,
                                                         aligned);
            load_tile_padded<T, C::D, C::Br, C::THREADS>(dO_smem, dO, a.dO.stride[1], i0, Nq, d,
                                                         aligned);
            __syncthreads();
            multiply_add<T, true, true, C::D>(S_reg, Q_smem, C::LD, row, K_smem, C::LD, column);
            multiply_add<T, true, true, C::D>(dP_reg, dO_smem, C::LD, row, V_smem, C::LD, column);
            store_P_dS<T, C>(S_reg, dP_reg, a, mask, a.lse + head, delta + head, row, column,
                             P_smem, dS_smem);
            __syncthreads(); /* P and dS of all warps are there */
            multiply_add<T, false, false, C::Br>(dV_reg, P_smem, C::LD_P, row, dO_smem, C::LD,
                                                 channel);
            multiply_add<T, false, false, C::Br>(dK_reg, dS_smem, C::LD_P, row, Q_smem, C::LD,
                                                 channel);
#pragma unroll 1
            for (int x0 = channel; x0 < channel + C::D / C::PARTS; x0 += C::DQ) {
                float dQ_reg[C::DQ / 8][4] = {};
                multiply_add<T, true, false, C::Bc>(dQ_reg, dS_smem, C::LD_P, row, K_smem, C::LD,
                                                    x0);
                for_each_element(dQ_reg, row, x0, [&](int r, int x, float sum) {
                    if (i0 + r < Nq && x < d)
                        atomicAdd(sums.dQ + (((int64_t)b * Nq + i0 + r) * H + h) * d + x,
                                  a.scale * sum);
                });
            }
        }
    }
    const int64_t first = ((int64_t)b * Nk + j0) * Hkv + h_kv; /* nobody else has these keys */
    for_each_element(dK_reg, row, channel, [&](int r, int x, float sum) {
        if (j0 + r < Nk && x < d)
            sums.dK[(first + (int64_t)r * Hkv) * d + x] += a.scale * sum;
    });
    for_each_element(dV_reg, row, channel, [&](int r, int x, float sum) {
        if (j0 + r < Nk && x < d)
            sums.dV[(first + (int64_t)r * Hkv) * d + x] += sum;
    });
}

template <typename T, int D> struct LaunchMma {
    typedef MmaTile<D> C;
    static AttnStatus run(const AttnArgs *a, const float *delta, FlashSums sums)
    {
        const int64_t blocks = a->shape.B * a->shape.Hkv * tile_count(a->shape.Nk, C::Bc);
        const AttnStatus status = reserve_smem(mma_kernel<T, C>, C::SMEM);
        if (status != ATTN_OK)
            return status;
        mma_kernel<T, C><<<(unsigned)blocks, C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(
            *a, delta, sums, all_rows_on_16_bytes(a) && rows_on_16_bytes(&a->dO));
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

FlashTiles flash_backward_tiles_v2_mma(const AttnArgs *a)
{
    return tiles_for_dim<LaunchMma, __half>(a);
}

AttnStatus flash_backward_block_v2_mma(const AttnArgs *a, const float *delta_dev,
                                       FlashSums sums_dev)
{
    return flash_backward_deterministic() ? ATTN_SKIP
                                          : run_for_16_bit<LaunchMma>(a, delta_dev, sums_dev);
}

AttnStatus flash_backward_v2_mma(const AttnArgs *a)
{
    return flash_backward_by_block_cuda(a, flash_backward_block_v2_mma);
}
