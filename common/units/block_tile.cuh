/* SPDX-License-Identifier: MIT
 *
 * block_tile.cuh: a tile of pairs in float32, done by all threads of a block, for v0 and v1.
 *
 * For S and dP a thread takes one pair (query r, key c) after another. Then threads are dealt out
 * anew: a warp takes whole rows of a result, its lanes neighbouring channels.
 *
 * Interface:
 * - BlockTile<D>: sizes. load_rows, store_rows: rows of a head to shared memory and
 *   back to global.
 * - score_tile: P and dS. add_product: one of the three products that use them.
 */
#ifndef UNITS_BLOCK_TILE_CUH
#define UNITS_BLOCK_TILE_CUH

#include "units/backward_pass.cuh"

/* All within 64 KiB of shared memory, what GPUs from sm_75 on give a block. */
template <int D_> struct BlockTile {
    static const int D = D_, WARPS = 8, THREADS = WARPS * 32;
    static const int Bc = 32, Br = D == 64 ? 32 : 16;
    static const int LD = D + 1; /* odd: lanes that read one channel of 32 keys hit 32 banks */
    static const int SMEM = (2 * Br * D + 2 * Bc * LD + 2 * Br * Bc) * (int)sizeof(float);
};

/* tile_smem [count][ld] = rows first .. of one head, zeros outside of rows.begin .. rows.end - 1.
 * base: row 0; rows lie `step` floats apart. */
template <class C>
static __device__ __forceinline__ void load_rows(float *tile_smem, int ld, const float *base,
                                                 int64_t step, int first, int count, RowRange rows)
{
    for (int e = threadIdx.x; e < count * C::D; e += C::THREADS) {
        const int r = e / C::D, x = e % C::D, row = first + r;
        tile_smem[r * ld + x] = row >= rows.begin && row < rows.end ? base[row * step + x] : 0.0f;
    }
}

/* P and dS [Br][Bc] of one tile. Pairs that are not seen get P = dS = 0. stats: of query i0. */
template <class C>
static __device__ __forceinline__ void
score_tile(const Band &band, const float2 *stats, float scale, int i0, int j0, const float *Q_smem,
           const float *dO_smem, const float *K_smem, const float *V_smem, float *P_smem,
           float *dS_smem)
{
    for (int e = threadIdx.x; e < C::Br * C::Bc; e += C::THREADS) {
        const int r = e / C::Bc, c = e % C::Bc;
        float p = 0.0f, dS = 0.0f;
        if (i0 + r < band.Nq && pair_is_seen(band, i0 + r, j0 + c)) {
            float qk = 0.0f, dP = 0.0f;
            for (int x = 0; x < C::D; x++) {
                qk = fmaf(Q_smem[r * C::D + x], K_smem[c * C::LD + x], qk);
                dP = fmaf(dO_smem[r * C::D + x], V_smem[c * C::LD + x], dP);
            }
            p = fmaf(qk, scale * (float)M_LOG2E, -stats[r].x);
            p = p > 0.0f ? 1.0f : exp2f(p); /* exp(scale * qk - lse); lse is rounded: P <= 1 */
            dS = p * (dP - stats[r].y);
        }
        P_smem[e] = p;
        dS_smem[e] = dS;
    }
}

/* sum[n][x], of row warp + 8n and channel lane + 32x, += A B over K terms. */
template <class C, int ROWS>
static __device__ __forceinline__ void add_product(float (&sum)[ROWS][C::D / 32],
                                                   const float *A_smem, int row_step, int k_step,
                                                   const float *B_smem, int ld, int K)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            const float factor = A_smem[(warp + C::WARPS * n) * row_step + k * k_step];
#pragma unroll
            for (int x = 0; x < C::D / 32; x++)
                sum[n][x] = fmaf(factor, B_smem[k * ld + lane + 32 * x], sum[n][x]);
        }
}

/* factor * sum, the rows of a warp, to rows first .. of one head that has N. base: row 0. */
template <class C, int ROWS>
static __device__ __forceinline__ void store_rows(float *base, int64_t step, int first, int N,
                                                  const float (&sum)[ROWS][C::D / 32], float factor)
{
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        const int row = first + threadIdx.x / 32 + C::WARPS * n;
#pragma unroll
        for (int x = 0; x < C::D / 32; x++)
            if (row < N)
                base[row * step + threadIdx.x % 32 + 32 * x] = factor * sum[n][x];
    }
}

#endif
