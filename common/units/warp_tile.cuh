/* SPDX-License-Identifier: MIT
 *
 * warp_tile.cuh: what a warp of the forward pass does with a tile on tensor cores: fragments,
 * the two products and the online softmax. Rungs v3 to v8 of stage 03 are made of it; what a rung
 * adds stands in its own file.
 *
 * A block of 4 warps owns Br = 128 rows of Q and walks over tiles of Bc = 64 keys. A warp owns two
 * tiles of 16 rows ("m16 tiles") and keeps their S, P and O as accumulators of m16n8k16 products
 * (mma.cuh). With g = lane / 4, t = lane % 4, a thread has of m16 tile mt the rows g (e = 0) and
 * g + 8 (e = 1), and of these the columns 2t, 2t + 1 of every n8 column tile:
 *
 *     S_reg[mt][n][2e + x] = S[row(mt, e)][8n + 2t + x]
 *
 * So a row is spread over the four lanes of a "quad", and a row maximum is a loop over registers
 * plus two shuffles. A fragment of K or V that was loaded once serves both m16 tiles.
 *
 * ldmatrix (v4 and later) loads four 8x8 matrices in one instruction, each lane naming one 16-byte
 * row of shared memory. With L the lane:
 *
 *          the four matrices of one ldmatrix            lane L names
 *     Q    rows 0-7, 8-15 of chunk 0, then of chunk 1   row L % 16, chunk L / 16
 *     K    keys 0-7 of chunk 0, of chunk 1, then 8-15   key L % 8 + L / 16 * 8, chunk L / 8 % 2
 *     V    keys 0-7, 8-15 of chunk 0, then of chunk 1   key L % 16, chunk L / 16
 *
 * A chunk is 8 channels. The chunks of the next 16 channels are one XOR away (skip_chunks), so a
 * lane keeps one address for each of Q, K and V.
 *
 * Interface:
 * - Tile<D>: sizes. TileRows: what a thread carries from key tile to key tile. first_row_of.
 * - start_rows, store_rows. hide_scores: -inf where the mask says so.
 * - update_rows (v3 to v5), update_rows_exp2 (v7 and v8): the online softmax. pack_P (v3).
 * - StagedTile, TileAddresses, tile_addresses, load_Q, multiply_QK, multiply_PV: from swizzled
 *   shared memory (v5 and later). load_tile_async (v6 and later).
 *   MT0, COUNT: which m16 tiles of the warp; all of them, if not said otherwise.
 * What v4, v5 and v6 introduce is written twice: in the rung's own file, in a namespace (v4, v5,
 * v6), so that the file shows its idea; and here, word for word, for the rungs after it.
 */
#ifndef UNITS_WARP_TILE_CUH
#define UNITS_WARP_TILE_CUH

#include "units/mma.cuh"

template <int D_> struct Tile {
    static const int D = D_, MT = 2, Bc = 64, WARPS = 4, THREADS = WARPS * 32;
    static const int Br = WARPS * MT * 16;
};

template <class C> struct TileRows {
    float O_reg[C::MT][C::D / 8][4];
    float m_i[C::MT][2]; /* running row maximum */
    float l_i[C::MT][2]; /* running row sum over this thread's columns; added up at the end */
};

/* row(mt, 0) within the block. The warps take m16 tiles in turn (warp w: tiles w, w + 4): along a
 * causal diagonal all of them have the same amount to do. */
template <class C> static __device__ __forceinline__ int first_row_of(int mt, int thread)
{
    return (mt * C::WARPS + thread / 32) * 16 + thread % 32 / 4;
}

template <class C> static __device__ __forceinline__ void start_rows(TileRows<C> &rows)
{
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            rows.m_i[mt][e] = -INFINITY;
            rows.l_i[mt][e] = 0.0f;
#pragma unroll
            for (int n = 0; n < C::D / 8; n++)
                rows.O_reg[mt][n][2 * e] = rows.O_reg[mt][n][2 * e + 1] = 0.0f;
        }
}

/* O / l and lse = m + ln l to memory: O [Nq][stride] and lse [Nq] of the head. ln_per_m: m_i is
 * kept in natural units (1) or in powers of two (ln 2). A row that saw nothing: O = 0, lse = -inf.
 * A store is 16 bytes of eight rows each: eight sectors, half full (exercise 13 of
 * docs/lab/03_exercises.md). */
template <typename T, class C>
static __device__ __forceinline__ void store_rows(TileRows<C> &rows, T *O, int64_t stride,
                                                  float *lse, int i0, int Nq, float ln_per_m)
{
    const int thread = read_thread(), t = thread % 4;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = i0 + first_row_of<C>(mt, thread) + 8 * e;
            float l_row = rows.l_i[mt][e];
            l_row += __shfl_xor_sync(0xffffffffu, l_row, 1);
            l_row += __shfl_xor_sync(0xffffffffu, l_row, 2);
            if (i >= Nq)
                continue;
            const float inverse = l_row == 0.0f ? 0.0f : 1.0f / l_row;
            if (t == 0)
                lse[i] = l_row == 0.0f ? -INFINITY : rows.m_i[mt][e] * ln_per_m + logf(l_row);
            T *O_row = O + i * stride + 2 * t;
#pragma unroll
            for (int n = 0; n < C::D / 8; n++)
                *reinterpret_cast<uint32_t *>(O_row + n * 8) = pack2<T>(
                    rows.O_reg[mt][n][2 * e] * inverse, rows.O_reg[mt][n][2 * e + 1] * inverse);
        }
}

/* -inf where row i may not see key j (from <= j - i <= to), and where there is no key j. */
template <class C, int MT0 = 0, int COUNT = C::MT>
static __device__ __forceinline__ void hide_scores(float (&S_reg)[COUNT][C::Bc / 8][4], int from,
                                                   int to, int i0, int j0, int Nk)
{
    const int thread = read_thread(), j = j0 + 2 * (thread % 4);
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            /* The first and the last column that the row sees, counted from this thread's. */
            const int i = i0 + first_row_of<C>(MT0 + c, thread) + 8 * e;
            const int first = i + from - j, last = min(i + to, Nk - 1) - j;
#pragma unroll
            for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++)
                    if (n * 8 + x < first || n * 8 + x > last)
                        S_reg[c][n][2 * e + x] = -INFINITY;
        }
}

/* The maximum of S over one row: over registers, then over the quad. */
template <class C>
static __device__ __forceinline__ float max_of_row(const float (&S_reg)[C::Bc / 8][4], int e)
{
    float m = fmaxf(S_reg[0][2 * e], S_reg[0][2 * e + 1]);
#pragma unroll
    for (int n = 1; n < C::Bc / 8; n++)
        m = fmaxf(m, fmaxf(S_reg[n][2 * e], S_reg[n][2 * e + 1]));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    return fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
}

template <class C>
static __device__ __forceinline__ void rescale_O(TileRows<C> &rows, int mt, int e, float alpha)
{
#pragma unroll
    for (int n = 0; n < C::D / 8; n++) {
        rows.O_reg[mt][n][2 * e] *= alpha;
        rows.O_reg[mt][n][2 * e + 1] *= alpha;
    }
}

/* The online softmax. S, raw products of q and k, becomes P in place; O and l are rescaled to the
 * new maximum. As on paper: s = scale * qk, p = exp(s - m). (scale > 0: the
 * greatest product is the greatest score.) */
template <class C>
static __device__ __forceinline__ void update_rows(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                   TileRows<C> &rows, float scale)
{
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float m_new = fmaxf(rows.m_i[mt][e], scale * max_of_row<C>(S_reg[mt], e));
            /* A row that has seen nothing yet: -inf - -inf would be NaN. */
            const float base = m_new == -INFINITY ? 0.0f : m_new;
            const float alpha = exp2_sfu((rows.m_i[mt][e] - base) * (float)M_LOG2E);
            rows.m_i[mt][e] = m_new;
            rows.l_i[mt][e] *= alpha;
#pragma unroll
            for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const float s = scale * S_reg[mt][n][2 * e + x];
                    const float p = exp2_sfu((s - base) * (float)M_LOG2E);
                    S_reg[mt][n][2 * e + x] = p;
                    rows.l_i[mt][e] += p;
                }
            rescale_O(rows, mt, e, alpha);
        }
}

/* The online softmax with m in powers of two: exp(scale * s - m) = 2^(s * c - m'), c = scale times
 * log2(e): one multiply-add and one exponential for each score. HIDDEN: some scores may be -inf. */
template <class C, bool HIDDEN, int MT0 = 0, int COUNT = C::MT>
static __device__ __forceinline__ void update_rows_exp2(float (&S_reg)[COUNT][C::Bc / 8][4],
                                                        TileRows<C> &rows, float scale_log2)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int mt = MT0 + c;
            const float m_new = fmaxf(rows.m_i[mt][e], max_of_row<C>(S_reg[c], e) * scale_log2);
            const float base = HIDDEN && m_new == -INFINITY ? 0.0f : m_new;
            const float alpha = exp2_sfu(rows.m_i[mt][e] - base);
            rows.m_i[mt][e] = m_new;
            float l_tile = 0.0f;
#pragma unroll
            for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const float p = exp2_sfu(fmaf(S_reg[c][n][2 * e + x], scale_log2, -base));
                    S_reg[c][n][2 * e + x] = p;
                    l_tile += p;
                }
            rows.l_i[mt][e] = rows.l_i[mt][e] * alpha + l_tile;
            rescale_O(rows, mt, e, alpha);
        }
}

/* P as the left factor of P V: columns 16k .. 16k + 15 are two accumulator tiles of S. */
template <typename T, class C, int COUNT>
static __device__ __forceinline__ void pack_P(uint32_t (&P_frag)[COUNT][4],
                                              const float (&P_reg)[COUNT][C::Bc / 8][4], int k)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float *P_pair = P_reg[c][2 * k + e / 2] + e % 2 * 2;
            P_frag[c][e] = pack2<T>(P_pair[0], P_pair[1]);
        }
}

/* --- from swizzled shared memory ---------------------------------------------------------------*/

/* Bytes in shared memory: Q [Br][D], then for each stage K [Bc][D] and V [Bc][D]. */
template <int D, int STAGES> struct StagedTile : Tile<D> {
    static const int Q_BYTES = Tile<D>::Br * D * 2, K_BYTES = Tile<D>::Bc * D * 2;
    static const int STAGE_BYTES = 2 * K_BYTES, SMEM = Q_BYTES + STAGES * STAGE_BYTES;
};

/* Where this lane points ldmatrix at: Q, and K and V of stage 0. */
struct TileAddresses {
    uint32_t Q, K, V;
};

template <class C>
static __device__ __forceinline__ TileAddresses tile_addresses(uint32_t smem, int thread)
{
    const int lane = thread % 32;
    const uint32_t K_smem = smem + C::Q_BYTES, V_smem = K_smem + C::K_BYTES;
    return {smem + swizzle<C::D>(thread / 32 * 16 + lane % 16, lane / 16),
            K_smem + swizzle<C::D>(lane % 8 + lane / 16 * 8, lane / 8 % 2),
            V_smem + swizzle<C::D>(lane % 16, lane / 16)};
}

/* Channels 16k .. 16k + 15 of m16 tile mt. */
template <class C>
static __device__ __forceinline__ void load_Q(uint32_t (&Q_frag)[4], uint32_t Q_lane, int mt, int k)
{
    ldmatrix_x4(Q_frag, skip_chunks<C::D>(Q_lane, k) + mt * C::WARPS * 16 * C::D * 2);
}

/* S_reg = Q K_j^T. Q_reg: the fragments of Q, or NULL: they are loaded here, for each tile of keys
 * again. */
template <typename T, class C, bool Q_IN_REGISTERS, int MT0 = 0, int COUNT = C::MT>
static __device__ __forceinline__ void multiply_QK(float (&S_reg)[COUNT][C::Bc / 8][4],
                                                   const uint32_t (*Q_reg)[C::MT][4],
                                                   uint32_t Q_lane, uint32_t K_lane)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                S_reg[c][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
        uint32_t Q_frag[COUNT][4];
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            if (!Q_IN_REGISTERS)
                load_Q<C>(Q_frag[c], Q_lane, MT0 + c, k);
#pragma unroll
            for (int e = 0; Q_IN_REGISTERS && e < 4; e++)
                Q_frag[c][e] = Q_reg[k][MT0 + c][e];
        }
#pragma unroll
        for (int n = 0; n < C::Bc / 16; n++) {
            uint32_t K_frag[4];
            ldmatrix_x4(K_frag, skip_chunks<C::D>(K_lane, k) + n * 16 * C::D * 2);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                mma_16816<T>(S_reg[c][2 * n], Q_frag[c], K_frag[0], K_frag[1]);
                mma_16816<T>(S_reg[c][2 * n + 1], Q_frag[c], K_frag[2], K_frag[3]);
            }
        }
    }
}

/* O += P V_j. V is transposed on its way to the registers. */
template <typename T, class C, int MT0 = 0, int COUNT = C::MT>
static __device__ __forceinline__ void
multiply_PV(TileRows<C> &rows, const float (&P_reg)[COUNT][C::Bc / 8][4], uint32_t V_lane)
{
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++) {
        uint32_t P_frag[COUNT][4];
        pack_P<T, C, COUNT>(P_frag, P_reg, k);
#pragma unroll
        for (int n = 0; n < C::D / 16; n++) {
            uint32_t V_frag[4];
            ldmatrix_x4_trans(V_frag, skip_chunks<C::D>(V_lane, n) + k * 16 * C::D * 2);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                mma_16816<T>(rows.O_reg[MT0 + c][2 * n], P_frag[c], V_frag[0], V_frag[1]);
                mma_16816<T>(rows.O_reg[MT0 + c][2 * n + 1], P_frag[c], V_frag[2], V_frag[3]);
            }
        }
    }
}

/* ROWS rows from `first` of a head to a swizzled tile, in the background; the caller commits. Rows
 * behind the last one become zeros: memory there may hold NaN, and 0 * NaN is NaN. A thread keeps
 * its chunk and walks down the rows, a multiple of 8 at a time: the swizzle of its address is then
 * the same in every step. */
template <typename T, class C, int ROWS>
static __device__ __forceinline__ void load_tile_async(uint32_t tile_smem, const T *base,
                                                       int64_t stride, int first, int N, int thread)
{
    const int CHUNKS = C::D / 8, STEP = C::THREADS / CHUNKS;
    const int r = thread / CHUNKS, chunk = thread % CHUNKS, left = N - first - r;
    const T *from = base + (first + r) * stride + chunk * 8;
    const uint32_t to = tile_smem + swizzle<C::D>(r, chunk);
#pragma unroll
    for (int row = 0; row < ROWS; row += STEP) {
        copy_async_16(to + row * C::D * 2, row < left ? from : base, row < left);
        from += STEP * stride;
    }
}

#endif
