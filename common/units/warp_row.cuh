/* SPDX-License-Identifier: MIT
 *
 * warp_row.cuh: one row of queries against one tile of keys, done by one warp. The step of the two
 * textbook kernels v0 and v1, which differ in nothing but the order of their loops.
 *
 * Each lane has one key of the tile (so Bc = 32) for S and P, and channels lane, lane + 32, ... of
 * the row for O:
 *
 *     S: lane c computes q . K_c            O: lane x adds P_0 V_0[x] + P_1 V_1[x] + ...
 *
 * In between the warp exchanges registers: maximum and sum over lanes, P_c from lane c to all.
 *
 * Interface:
 * - RowTile<D>: sizes and the shared memory of a block, at most 64 KiB.
 * - load_rows: a tile to shared memory, zeros past the end.
 * - step_row: m, l, O of a row, updated by one tile of keys. O stays unnormalised.
 */
#ifndef UNITS_WARP_ROW_CUH
#define UNITS_WARP_ROW_CUH

#include <stdint.h>

#define EVERY_LANE 0xffffffffu

template <int D_> struct RowTile {
    static const int D = D_, Bc = 32, Br = 32;
    static const int WARPS = 8, THREADS = WARPS * 32;
    static const int ROWS = Br / WARPS; /* rows of a warp: its number, + WARPS, + 2 WARPS ... */
    static const int LD = D + 1; /* odd: lanes that read one channel of 32 rows hit 32 banks */
    static const int SMEM = (Br * D + 2 * Bc * LD) * (int)sizeof(float);
};

/* tile_smem [32][ld] = rows first .. first + 31 of one head, zeros from row N on. base: row 0; rows
 * lie `stride` floats apart. */
template <class C>
static __device__ __forceinline__ void load_rows(float *tile_smem, int ld, const float *base,
                                                 int64_t stride, int first, int N)
{
    for (int e = threadIdx.x; e < 32 * C::D; e += C::THREADS) {
        const int r = e / C::D, x = e % C::D;
        tile_smem[r * ld + x] = first + r < N ? base[(first + r) * stride + x] : 0.0f;
    }
}

/* A row that sees keys first .. end - 1, against keys j0 .. j0 + 31. Q_row_smem [D], K_smem and
 * V_smem [Bc][LD], O_reg: channels lane + 32 * n. */
template <class C>
static __device__ __forceinline__ void
step_row(float scale, int first, int end, int j0, const float *Q_row_smem, const float *K_smem,
         const float *V_smem, float &m_i, float &l_i, float (&O_reg)[C::D / 32])
{
    const int lane = threadIdx.x % 32, j = j0 + lane;
    float qk = 0.0f;
    for (int x = 0; x < C::D; x++)
        qk = fmaf(Q_row_smem[x], K_smem[lane * C::LD + x], qk);
    const float s = first <= j && j < end ? scale * qk : -INFINITY;

    float m_new = s;
    for (int distance = 16; distance > 0; distance /= 2)
        m_new = fmaxf(m_new, __shfl_xor_sync(EVERY_LANE, m_new, distance));
    m_new = fmaxf(m_new, m_i);
    if (m_new == -INFINITY)
        m_new = 0.0f; /* nothing seen so far: p = alpha = 0 instead of NaN */
    const float p = expf(s - m_new), alpha = expf(m_i - m_new);
    float l_tile = p;
    for (int distance = 16; distance > 0; distance /= 2)
        l_tile += __shfl_xor_sync(EVERY_LANE, l_tile, distance);

#pragma unroll
    for (int n = 0; n < C::D / 32; n++)
        O_reg[n] *= alpha;
    for (int key = 0; key < C::Bc; key++) {
        const float p_key = __shfl_sync(EVERY_LANE, p, key);
#pragma unroll
        for (int n = 0; n < C::D / 32; n++)
            O_reg[n] = fmaf(p_key, V_smem[key * C::LD + lane + 32 * n], O_reg[n]);
    }
    l_i = alpha * l_i + l_tile;
    if (l_i != 0.0f)
        m_i = m_new;
}

#endif
