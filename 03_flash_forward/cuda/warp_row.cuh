/* SPDX-License-Identifier: MIT
 *
 * warp_row.cuh: one row of queries against one tile of keys, done by one warp. The step of the two
 * textbook kernels v0 and v1, which differ in nothing but the order of their loops.
 *
 * Each lane has one key of the tile (so Bc = 32, or 16 where D = 256 would not fit) for S and P,
 * and channels lane, lane + 32, ... of the row for O:
 *
 *     S: lane c computes q . K_c            O: lane x adds P_0 V_0[x] + P_1 V_1[x] + ...
 *
 * In between the warp exchanges registers: maximum and sum over lanes, P_c from lane c to all.
 *
 * Interface:
 * - RowTile<D>: sizes and the shared memory of a block, at most 64 KiB.
 * - load_rows_f32: a tile to shared memory, zeros past the end.
 * - step_row: m, l, O of a row, updated by one tile of keys. O stays unnormalised.
 * - tile_is_visited: does a tile hold any visible pair, and must each pair be asked?
 */
#ifndef FLASH_FORWARD_WARP_ROW_CUH
#define FLASH_FORWARD_WARP_ROW_CUH

#include "dispatch.cuh"

#define EVERY_LANE 0xffffffffu

template <int D_> struct RowTile {
    static const int D = D_;
    static const int Bc = D <= 128 ? 32 : 16, Br = Bc;
    static const int WARPS = 8, THREADS = WARPS * 32;
    static const int ROWS = Br / WARPS; /* rows of a warp: its number, + WARPS, + 2 WARPS ... */
    static const int LD = D + 1; /* odd: lanes that read one channel of 32 rows hit 32 banks */
    static const int SMEM = (Br * D + 2 * Bc * LD) * (int)sizeof(float);
};

/* tile_smem [count][ld] = rows first ... of one head; base [N][d]. Tiles are D channels wide. */
template <int D>
static __device__ __forceinline__ void load_rows_f32(float *tile_smem, int ld, const float *base,
                                                     int64_t stride, int first, int count, int N,
                                                     int d)
{
    for (int e = threadIdx.x; e < count * D; e += blockDim.x) {
        const int r = e / D, x = e % D;
        tile_smem[r * ld + x] = first + r < N && x < d ? base[(first + r) * stride + x] : 0.0f;
    }
}

/* Row i against keys j0 .. j0 + Bc - 1. Q_row_smem [D], K_smem and V_smem [Bc][LD], O_reg: channels
 * lane + 32 * n. ask: the tile is not seen in full. */
template <class C>
static __device__ __forceinline__ void
step_row(const AttnArgs &a, int i, int j0, bool ask, const float *Q_row_smem, const float *K_smem,
         const float *V_smem, float &m_i, float &l_i, float (&O_reg)[C::D / 32])
{
    const int lane = threadIdx.x % 32, c = lane % C::Bc, j = j0 + c;
    float qk = 0.0f;
    for (int x = 0; x < C::D; x++)
        qk = fmaf(Q_row_smem[x], K_smem[c * C::LD + x], qk);
    float s = attn_score(&a, qk);
    if (lane >= C::Bc || j >= a.shape.Nk || (ask && !attn_sees(&a, i, j)))
        s = -INFINITY;

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

/* Does anybody in this tile of rows and keys see anything? *ask: must each pair be asked? */
static __device__ __forceinline__ bool tile_is_visited(const AttnArgs &a, int i0, int Br, int j0,
                                                       int Bc, bool *ask)
{
    const AttnRange q = attn_range(a.positions_q, i0, min((int64_t)Br, a.shape.Nq - i0));
    const AttnRange k = attn_range(a.positions_k, j0, min((int64_t)Bc, a.shape.Nk - j0));
    const AttnTile kind = attn_tile_class(a.rule, q, k);
    *ask = kind == ATTN_TILE_MASKED || a.mask;
    return kind != ATTN_TILE_SKIP;
}

#endif
