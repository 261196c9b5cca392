/* SPDX-License-Identifier: MIT
 *
 * mma_rows.cuh: the rows of Q and O that a warp owns, in the registers of the tensor cores.
 *
 * A warp owns MT tiles of 16 rows. It keeps their S, P and O as accumulators of m16n8k16 products
 * (mma.cuh): with g = lane / 4, t = lane % 4, a thread has of m16 tile mt the rows g (e = 0) and
 * g + 8 (e = 1), and of these the columns 2t, 2t + 1 of every n8 column tile:
 *
 *     S_reg[mt][n][2e + x] = S[row(mt, e)][8n + 2t + x]
 *
 * So a row is spread over the four lanes of a "quad", and a row maximum is a loop over registers
 * plus two shuffles. The warps take m16 tiles in turn (warp w: tiles w, w + 4): along a causal
 * diagonal all of them have the same amount to do.
 *
 * Interface:
 * - Tile<D>: sizes. TileRows: what a thread carries from key tile to key tile.
 * - first_row_of: row(mt, 0) within the block.
 * - start_rows, store_rows: from nothing or from a state, (O, lse) or unnormalised (FlashRows); to
 *   O and lse or to the state. store_rows_wide: to O in whole rows.
 * - hide_scores: -inf where the mask says so; look_at_tile.
 */
#ifndef FLASH_FORWARD_MMA_ROWS_CUH
#define FLASH_FORWARD_MMA_ROWS_CUH

#include "row_mask.cuh"
#include "units/mma.cuh"

/* Br = 128 rows, so a K or V fragment from shared memory serves two m16 tiles of each warp. For
 * D = 256 the accumulators of one m16 tile fill the registers already, and 99 KiB of shared memory,
 * what every GPU from sm_80 on has, allow 64 rows and one tile of 64 keys: K is loaded while P V is
 * multiplied, V during Q K^T. */
template <int D_, int MT_ = D_ <= 128 ? 2 : 1> struct Tile {
    static const int D = D_, MT = MT_, Bc = 64, STAGES = D_ <= 128 ? 2 : 1;
    static const int WARPS = 4, THREADS = WARPS * 32;
    static const int Br = WARPS * MT * 16;
};

template <class C> struct TileRows {
    float O_reg[C::MT][C::D / 8][4];
    float m_i[C::MT][2]; /* running row maximum */
    float l_i[C::MT][2]; /* running row sum over this thread's columns; added up at the end */
};

template <class C> static __device__ __forceinline__ int first_row_of(int mt)
{
    return (mt * C::WARPS + threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4;
}

/* m_per_lse: m_i is kept in natural units (1) or in powers of two (log2(e), which an unnormalised
 * state demands). A state (O, lse) is normalised: it enters with the weight l = 1 at the maximum
 * m = lse. Where l = 0 no key has been seen, and O is not read. */
template <class C>
static __device__ __forceinline__ void start_rows(TileRows<C> &rows, const AttnArgs &a,
                                                  BlockWork work, const float *O_state,
                                                  FlashRows state, float m_per_lse)
{
    const int t = threadIdx.x % 4, d = (int)a.shape.d;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = work.i0 + first_row_of<C>(mt) + 8 * e;
            float m_row = -INFINITY, l_row = 0.0f;
            const float *O_row = O_state;
            if (O_state && i < a.shape.Nq) {
                const int64_t row = lse_row(a, work, i);
                m_row = state.m ? state.m[row] : a.lse[row] * m_per_lse;
                l_row = state.m ? state.l[row] : m_row != -INFINITY ? 1.0f : 0.0f;
                O_row += state_row(a, work, i);
            }
            const bool resumes = l_row != 0.0f;
            rows.m_i[mt][e] = m_row;
            rows.l_i[mt][e] = t == 0 ? l_row : 0.0f;
#pragma unroll
            for (int n = 0; n < C::D / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const int channel = n * 8 + 2 * t + x;
                    rows.O_reg[mt][n][2 * e + x] = resumes && channel < d ? O_row[channel] : 0.0f;
                }
        }
}

/* What O is to be multiplied by, the division by l_i that the loop put off, and lse. Adds up l_i
 * over the quad. An unnormalised state gets m and l, and O as it is. */
template <class C>
static __device__ __forceinline__ float finish_row(TileRows<C> &rows, const AttnArgs &a,
                                                   BlockWork work, float *lse, FlashRows state,
                                                   int mt, int e, float m_per_lse)
{
    const int i = work.i0 + first_row_of<C>(mt) + 8 * e;
    float l_row = rows.l_i[mt][e];
    l_row += __shfl_xor_sync(0xffffffffu, l_row, 1);
    l_row += __shfl_xor_sync(0xffffffffu, l_row, 2);
    if (i < a.shape.Nq && threadIdx.x % 4 == 0) {
        const int64_t row = lse_row(a, work, i);
        lse[row] = l_row == 0.0f ? -INFINITY : rows.m_i[mt][e] * (1.0f / m_per_lse) + logf(l_row);
        if (state.m) {
            state.m[row] = rows.m_i[mt][e];
            state.l[row] = l_row;
        }
    }
    if (state.m)
        return 1.0f;
    return l_row == 0.0f ? 0.0f : 1.0f / l_row; /* a row that saw nothing: O = 0 */
}

/* To O, rounded, or to the state. pairs: two channels of O at a time. */
template <typename T, class C>
static __device__ __forceinline__ void store_rows(TileRows<C> &rows, const AttnArgs &a,
                                                  BlockWork work, float *O_state, float *lse,
                                                  FlashRows state, bool pairs, float m_per_lse)
{
    const int t = threadIdx.x % 4, d = (int)a.shape.d;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = work.i0 + first_row_of<C>(mt) + 8 * e;
            const float inverse = finish_row(rows, a, work, lse, state, mt, e, m_per_lse);
            if (i >= a.shape.Nq)
                continue;
            T *O_row = (T *)a.O.data + tensor_offset(&a.O, work.b, i, work.h);
            float *O_state_row = O_state ? O_state + state_row(a, work, i) : NULL;
#pragma unroll
            for (int n = 0; n < C::D / 8; n++) {
                const int x = n * 8 + 2 * t;
                const float low = rows.O_reg[mt][n][2 * e] * inverse;
                const float high = rows.O_reg[mt][n][2 * e + 1] * inverse;
                if (x < d && O_state) {
                    O_state_row[x] = low;
                    if (x + 1 < d)
                        O_state_row[x + 1] = high;
                } else if (x < d && pairs) {
                    *reinterpret_cast<uint32_t *>(O_row + x) = pack2<T>(low, high);
                } else if (x < d) {
                    O_row[x] = T(low);
                    if (x + 1 < d)
                        O_row[x + 1] = T(high);
                }
            }
        }
}

/* O through this warp's own rows of Q_smem, which it alone has read: a quad holds 16 bytes of a
 * row, a store of the warp shall cover whole rows. Rows of O lie on 16 bytes. */
template <typename T, class C>
static __device__ __forceinline__ void store_rows_wide(TileRows<C> &rows, const AttnArgs &a,
                                                       BlockWork work, unsigned char *O_smem)
{
    const int lane = threadIdx.x % 32, t = lane % 4, CHUNKS = C::D / 8;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float inverse =
                finish_row(rows, a, work, a.lse, no_rows(), mt, e, (float)M_LOG2E);
            const int r = first_row_of<C>(mt) + 8 * e;
#pragma unroll
            for (int n = 0; n < CHUNKS; n++)
                *reinterpret_cast<uint32_t *>(O_smem + swizzle<C::D>(r, n) + 4 * t) = pack2<T>(
                    rows.O_reg[mt][n][2 * e] * inverse, rows.O_reg[mt][n][2 * e + 1] * inverse);
        }
    __syncwarp();
    T *O = (T *)a.O.data + tensor_offset(&a.O, work.b, work.i0, work.h);
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int c = lane; c < 16 * CHUNKS; c += 32) {
            const int r = (mt * C::WARPS + threadIdx.x / 32) * 16 + c / CHUNKS, chunk = c % CHUNKS;
            if (work.i0 + r < a.shape.Nq && chunk * 8 < a.shape.d)
                *reinterpret_cast<uint4 *>(O + r * a.O.stride[1] + chunk * 8) =
                    *reinterpret_cast<const uint4 *>(O_smem + swizzle<C::D>(r, chunk));
        }
}

/* -inf where a row may not see a key: m16 tiles MT0 .. MT0 + COUNT - 1. */
template <class C, int MT0, int COUNT>
static __device__ __forceinline__ void hide_scores(float (&S_reg)[COUNT][C::Bc / 8][4],
                                                   const RowMask<C::Br, C::Bc> &mask, int j,
                                                   int stage)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int word = 0; word < C::Bc / 32; word++) {
                const int r = first_row_of<C>(MT0 + c) + 8 * e;
                const uint32_t bits = row_bits(mask, r, word, j, stage) >> (2 * t);
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int x = 0; x < 2; x++)
                        if (!(bits >> (n * 8 + x) & 1))
                            S_reg[c][word * 4 + n][2 * e + x] = -INFINITY;
            }
}

/* What the 16 rows of m16 tile mt see of tile j: bit 0: any key, bit 1: not every key. The same
 * answer for all lanes. */
template <class C>
static __device__ __forceinline__ uint32_t look_at_tile(const RowMask<C::Br, C::Bc> &mask, int mt,
                                                        int j, int stage)
{
    const int r = first_row_of<C>(mt);
    uint32_t some = 0, all = 0xffffffffu;
#pragma unroll
    for (int word = 0; word < C::Bc / 32; word++) {
        const uint32_t low = row_bits(mask, r, word, j, stage);
        const uint32_t high = row_bits(mask, r + 8, word, j, stage);
        some |= low | high;
        all &= low & high;
    }
    return any_lane_bits((uint32_t)(some != 0) | (uint32_t)(all != 0xffffffffu) << 1);
}

#endif
