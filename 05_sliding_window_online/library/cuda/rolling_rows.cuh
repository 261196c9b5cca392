/* SPDX-License-Identifier: MIT
 *
 * rolling_rows.cuh: the rows of Q and O of one warp in rolling_window.cu, 32 of them.
 *
 * The products are those of stage 03 (mma.cuh). Different is what registers D = 128 forces one to
 * save: S and O alone are 192 of 255. So of the four rows that a quad of lanes shares each lane
 * keeps the maximum and the sum of one, and gets the others by a shuffle; channels are multiplied
 * half at a time; exponentials are made 16 keys at a time, just before these keys' product.
 *
 * Where a number of a product stands (the hardware's order, mma.cuh): the lane is 4 g + t. Of an
 * m16n8 accumulator it holds, in rows g and g + 8, columns 2t and 2t + 1. So the four lanes of a
 * quad, t = 0 .. 3, have the same rows, and a row's maximum or sum is one over the lane's own
 * columns and then one over the quad. Two m16 tiles: four rows a quad, one for each of its lanes.
 *
 * Interface:
 * - load_strip, store_strip: Q to shared memory, O and lse to memory. StripRows, clear_rows.
 * - multiply_scores, hide_keys, raise_maxima, add_values: a tile of keys.
 */
#ifndef WINDOW_ROLLING_ROWS_CUH
#define WINDOW_ROLLING_ROWS_CUH

#include <float.h>

#include "mma_products.cuh"
#include "rolling_plan.cuh"

/* What a thread carries from tile to tile: of four rows, g + 8e of m16 tile mt, its columns of O
 * (mma_rows.cuh). m, in powers of two, and l of row 2 mt + e are kept by lane 2 mt + e of the quad
 * alone. */
template <class C> struct StripRows {
    float O_reg[C::MT][C::D / 8][4];
    float m_own, l_own;
};

/* 32 rows of Q of row block `index`, by the warp that will read them: it alone has to wait for
 * them, and it may overwrite them as soon as its own last product is done. Neighbouring lanes take
 * neighbouring 16 bytes of a row. Rows after the last one and channels after d become zeros. */
template <typename T, class C>
static __device__ __forceinline__ void load_strip(uint32_t smem_address, const AttnArgs &a,
                                                  int index)
{
    const int Tr = ((int)a.shape.Nq + C::Br - 1) / C::Br;
    const BlockWork work = work_of_head(a, index / Tr, index % Tr * C::Br);
    const int lane = lane_of_thread(), strip = strip_of_thread(), CHUNKS = C::D / 8;
    const int i0 = work.i0 + strip * C::ROWS;
    const uint32_t Q_smem = smem_address + strip * C::Q_BYTES;
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, work.b, 0, work.h);
#pragma unroll 4
    for (int e = lane; e < C::ROWS * CHUNKS; e += 32) {
        const int r = e / CHUNKS, chunk = e % CHUNKS;
        const int valid = i0 + r < a.shape.Nq && chunk * 8 < a.shape.d;
        copy_async_16(Q_smem + swizzle<C::D>(r, chunk),
                      valid ? Q + (i0 + r) * a.Q.stride[1] + chunk * 8 : Q, valid);
    }
}

/* -inf where a row may not see a key of the tile that starts at key c0. A row sees one run of keys,
 * first .. last, so two comparisons decide, and with this lane's first column taken off the run,
 * once a row, they compare with constants. */
template <class C>
static __device__ __forceinline__ void hide_keys(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                 const int2 *run, int c0)
{
    const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int2 see = run[mt * 16 + 8 * e + g];
            const int first = see.x - c0 - 2 * t, last = see.y - c0 - 2 * t;
#pragma unroll
            for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++)
                    if (n * 8 + x < first || n * 8 + x > last)
                        S_reg[mt][n][2 * e + x] = -INFINITY;
        }
}

/* Four values of the rows of a quad: this lane's own row. */
static __device__ __forceinline__ float pick_own(const float (&x)[4])
{
    const int t = lane_of_thread() % 4;
    const float low = t & 1 ? x[1] : x[0], high = t & 1 ? x[3] : x[2];
    return t & 2 ? high : low;
}

/* Four sums over the quad, of which each lane keeps that of its own row. Each of two rounds halves
 * what a lane is still responsible for: it gives away the rows of the other half and adds what it
 * gets for its own. Three shuffles, where a sum for all lanes takes eight. */
static __device__ __forceinline__ float sum_own(const float (&x)[4])
{
    const int t = lane_of_thread() % 4;
    float low = t & 1 ? x[1] : x[0], high = t & 1 ? x[3] : x[2];
    low += __shfl_xor_sync(0xffffffffu, t & 1 ? x[0] : x[1], 1);
    high += __shfl_xor_sync(0xffffffffu, t & 1 ? x[2] : x[3], 1);
    return (t & 2 ? high : low) + __shfl_xor_sync(0xffffffffu, t & 2 ? low : high, 2);
}

/* What lane `own` of this lane's quad has. */
static __device__ __forceinline__ float of_lane(float x, int own)
{
    return __shfl_sync(0xffffffffu, x, own, 4);
}

/* S = Q K^T. Half the channels at a time: unrolled in full, fragments are fetched so far ahead that
 * there are no registers for them. */
template <typename T, class C>
static __device__ __forceinline__ void multiply_scores(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                       uint32_t Q_lane, uint32_t K_lane)
{
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                S_reg[mt][n][e] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < C::D / 16; k++) {
        uint32_t Q_frag[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
            load_Q<C>(Q_frag[mt], Q_lane, mt, k);
#pragma unroll
        for (int n = 0; n < C::Bc / 16; n++) {
            uint32_t K_frag[4];
            ldmatrix_x4(K_frag, skip_chunks<C::D>(K_lane, k) + n * 16 * C::D * 2);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                mma_16816<T>(S_reg[mt][2 * n], Q_frag[mt], K_frag[0], K_frag[1]);
                mma_16816<T>(S_reg[mt][2 * n + 1], Q_frag[mt], K_frag[2], K_frag[3]);
            }
        }
    }
}

/* Online softmax, first half: the new maxima, in powers of two (2^x is one instruction, e^x is two,
 * so log2(e) is part of the scale); l and O are rescaled to them. */
template <class C>
static __device__ __forceinline__ void raise_maxima(float (&base)[4],
                                                    const float (&S_reg)[C::MT][C::Bc / 8][4],
                                                    StripRows<C> &rows, float scale_log2)
{
    float m[4], alpha[4];
#pragma unroll
    for (int row = 0; row < 4; row++) {
        const int mt = row / 2, e = row % 2;
        const float m_old = of_lane(rows.m_own, row); /* lane `row` of the quad keeps it */
        float m_new = fmaxf(S_reg[mt][0][2 * e], S_reg[mt][0][2 * e + 1]);
#pragma unroll
        for (int n = 1; n < C::Bc / 8; n++)
            m_new = fmaxf(m_new, fmaxf(S_reg[mt][n][2 * e], S_reg[mt][n][2 * e + 1]));
        /* over the quad; the scale is positive, so it may come after the maximum */
        m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 1));
        m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 2));
        m[row] = fmaxf(m_old, m_new * scale_log2);
        /* A row that has seen nothing yet: -inf - -inf would be NaN. */
        base[row] = fmaxf(m[row], -FLT_MAX);
        alpha[row] = exp2_sfu(m_old - base[row]);
#pragma unroll
        for (int n = 0; n < C::D / 8; n++) {
            rows.O_reg[mt][n][2 * e] *= alpha[row];
            rows.O_reg[mt][n][2 * e + 1] *= alpha[row];
        }
    }
    rows.m_own = pick_own(m);
    rows.l_own *= pick_own(alpha);
}

/* Second half: P = 2^(S - m), and O += P V. Sixteen keys at a time: two accumulator tiles of S side
 * by side are, rounded, the left factor, and while they are multiplied the next exponentials can be
 * made. A hidden key has S = -inf and P = 0. l is summed from the unrounded P. */
template <typename T, class C>
static __device__ __forceinline__ void add_values(StripRows<C> &rows, const float (&base)[4],
                                                  const float (&S_reg)[C::MT][C::Bc / 8][4],
                                                  uint32_t V_lane, float scale_log2)
{
    float l[4] = {};
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++) {
        uint32_t P_frag[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int e = i % 2;
                const float *S_pair = S_reg[mt][2 * k + i / 2] + 2 * e;
                const float low = exp2_sfu(fmaf(S_pair[0], scale_log2, -base[2 * mt + e]));
                const float high = exp2_sfu(fmaf(S_pair[1], scale_log2, -base[2 * mt + e]));
                l[2 * mt + e] += low;
                l[2 * mt + e] += high;
                P_frag[mt][i] = pack2<T>(low, high);
            }
#pragma unroll
        for (int n = 0; n < C::D / 16; n++) {
            uint32_t V_frag[4];
            ldmatrix_x4_trans(V_frag, skip_chunks<C::D>(V_lane, n) + k * 16 * C::D * 2);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                mma_16816<T>(rows.O_reg[mt][2 * n], P_frag[mt], V_frag[0], V_frag[1]);
                mma_16816<T>(rows.O_reg[mt][2 * n + 1], P_frag[mt], V_frag[2], V_frag[3]);
            }
        }
    }
    rows.l_own += sum_own(l);
}

template <class C> static __device__ __forceinline__ void clear_rows(StripRows<C> &rows)
{
    rows.m_own = -INFINITY;
    rows.l_own = 0.0f;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < C::D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                rows.O_reg[mt][n][e] = 0.0f;
}

/* Word i of lane t of a quad becomes word t of lane i: a 4 x 4 transpose in two rounds. In the
 * first, lanes t and t ^ 1 exchange what lies beside the diagonal of each 2 x 2 block, in the
 * second lanes t and t ^ 2 exchange whole blocks. */
static __device__ __forceinline__ void transpose_quad(uint32_t (&w)[4])
{
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = read_thread() & bit;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & bit)) {
                const uint32_t give = upper ? w[i] : w[i | bit];
                const uint32_t got = __shfl_xor_sync(0xffffffffu, give, bit);
                w[i] = upper ? got : w[i];
                w[i | bit] = upper ? w[i | bit] : got;
            }
    }
}

/* O and lse of this warp's rows. A quad holds 4 bytes a lane of each 16-byte chunk of a row: four
 * chunks change hands, and each lane stores one. Shared memory is left to the next Q. */
template <typename T, class C>
static __device__ __forceinline__ void store_strip(StripRows<C> &rows, const AttnArgs &a,
                                                   BlockWork work)
{
    const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
    const int i0 = work.i0 + strip_of_thread() * C::ROWS;
    T *O = (T *)a.O.data + tensor_offset(&a.O, work.b, 0, work.h);
    const float l = rows.l_own, inverse_own = l == 0.0f ? 0.0f : 1.0f / l; /* saw nothing: O = 0 */
    const int i_own = i0 + t * 8 + g;
    if (i_own < a.shape.Nq)
        a.lse[lse_row(a, work, i_own)] =
            l == 0.0f ? -INFINITY : rows.m_own * (1.0f / LOG2E) + logf(l);
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = i0 + mt * 16 + 8 * e + g;
            const float inverse = of_lane(inverse_own, 2 * mt + e);
#pragma unroll
            for (int n = 0; n < C::D / 8; n += 4) {
                uint32_t words[4];
#pragma unroll
                for (int c = 0; c < 4; c++)
                    words[c] = pack2<T>(rows.O_reg[mt][n + c][2 * e] * inverse,
                                        rows.O_reg[mt][n + c][2 * e + 1] * inverse);
                transpose_quad(words);
                if (i < a.shape.Nq && (n + t) * 8 < a.shape.d)
                    *reinterpret_cast<uint4 *>(O + i * a.O.stride[1] + (n + t) * 8) =
                        make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
}

#endif
