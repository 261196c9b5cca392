/* SPDX-License-Identifier: MIT
 *
 * gradient_f32.cuh: what a thread of the float32 kernels holds and does between two products.
 *
 * S and dP lie in registers as product_f32.cuh deals them out: row0 + row_of(r), column0 +
 * column_of(c). P and dS leave through shared memory, W [OTHER][LD_OWN], transposed as a left
 * factor has to be. lse and delta belong to queries: to rows where queries own, else to columns.
 *
 * Interface:
 * - OwnerTile<D, PASS>: sizes, the products of each pass, and the slices that a tile takes.
 * - fetch_numbers: lse and delta of a tile, in the background; the caller commits.
 * - has_empty_rows, clear_empty_rows: queries that see no key.
 * - clear. weigh: S becomes P. finish_dS: dP becomes dS. store_gradient: sums to memory.
 */
#ifndef FLASH_BACKWARD_GRADIENT_F32_CUH
#define FLASH_BACKWARD_GRADIENT_F32_CUH

#include "attention/forward/cuda/scores.cuh"
#include "two_views.cuh"
#include "units/mma.cuh"
#include "units/product_f32.cuh"

/* What a launch computes. The products of a tile, in this order:
 *
 *     SUM      S                                                        queries own
 *     OUTPUT   S            sum_dP += W V                               queries own
 *     DELTA    S                             dP                         queries own
 *     ROWS     S                             dP     sum_S += dS K       queries own
 *     KEYS     S^T          sum_dP += W^T dO dP^T   sum_S += dS^T Q     keys own
 *
 * Where the weights W are the probabilities P, stage 03 has the output, and delta needs no walk. */
enum OwnerPass { PASS_SUM, PASS_OUTPUT, PASS_DELTA, PASS_ROWS, PASS_KEYS };

/* A thread holds ROWS x COLS of S and of dP, and ROWS x OUT/8 of one gradient or of two: together
 * at most 192 of 255 registers. D = 256 with two gradients does not fit: there a block holds half
 * of the channels and computes S and dP for them alone. */
template <int D_, OwnerPass PASS_> struct OwnerTile {
    static const OwnerPass PASS = PASS_;
    static const bool KEYS = PASS == PASS_KEYS; /* keys own */
    static const bool ADDS_W = PASS == PASS_OUTPUT || PASS == PASS_KEYS;
    static const bool NEEDS_dP = PASS != PASS_SUM && PASS != PASS_OUTPUT;
    static const bool ADDS_dS = PASS == PASS_ROWS || PASS == PASS_KEYS;
    static const int D = D_, WARPS = 2, THREADS = WARPS * 32, BLOCKS = 4;
    static const int OUT = KEYS && D > 128 ? 128 : D;
    static const int ROWS = D <= (KEYS ? 64 : 128) ? 8 : 4, OWN = WARPS * 4 * ROWS;
    static const int HELD = ROWS * (OUT / 8) * (KEYS ? 2 : 1);
    static const int W_ROWS = ADDS_W ? ROWS : 4, W_COLS = ADDS_W ? OUT / 8 : 4; /* else unused */
    static const int COLS = HELD + 2 * ROWS * 8 <= 192 ? 8 : 4, OTHER = COLS * 8;
    static const int QUERIES = KEYS ? OTHER : OWN; /* of a tile */
    static const int CHANNELS = 32, ROWS_OF_SLICE = OUT <= 64 ? OTHER : OUT == 96 ? 32 : 2048 / OUT;
    static const int LD_OWN = OWN + 4, LD_OTHER = OTHER + 4; /* transposed, as in stage 03 */
    static const int PAIR_OTHER = CHANNELS * LD_OWN, PAIR = PAIR_OTHER + CHANNELS * LD_OTHER;
    static const int BAND = ROWS_OF_SLICE * OUT;
    static const int BAND_W = ROWS_OF_SLICE * LD_OWN;
    static const int SLICE = PAIR > BAND ? PAIR : BAND;
    static const int SMEM = (OTHER * LD_OWN + 2 * SLICE) * (int)sizeof(float);
    /* where the steps of each product end */
    static const int BANDS = OTHER / ROWS_OF_SLICE;
    static const int S_END = D / CHANNELS, W_END = S_END + (ADDS_W ? BANDS : 0);
    static const int DP_END = W_END + (NEEDS_dP ? D / CHANNELS : 0);
    static const int STEPS = DP_END + (ADDS_dS ? BANDS : 0);
};

/* lse and delta of queries i0 .. of a head. Behind the last one P = 2^(s - inf) = 0. */
template <class C>
static __device__ __forceinline__ void
fetch_numbers(float *lse_smem, float *delta_smem, const View &view, int b, int head, int i0, int Nq)
{
    const int64_t row = (b * view.a.shape.H + head) * Nq + i0;
    for (int r = threadIdx.x; r < C::QUERIES; r += C::THREADS)
        if (i0 + r < Nq) {
            copy_async_4(lse_smem + r, view.a.lse + row + r);
            copy_async_4(delta_smem + r, view.delta + row + r);
        } else {
            lse_smem[r] = INFINITY;
            delta_smem[r] = 0.0f;
        }
}

template <int R, int C> static __device__ __forceinline__ void clear(float (&sum)[R][C])
{
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++)
            sum[r][c] = 0.0f;
}

/* One number for each query of the tile: a row of the own queries, or a column of the others. */
template <class C>
static __device__ __forceinline__ void load_numbers(float (&numbers)[C::KEYS ? C::COLS : C::ROWS],
                                                    const float *from_smem)
{
#pragma unroll
    for (int n = 0; n < (C::KEYS ? C::COLS : C::ROWS); n++)
        numbers[n] = from_smem[C::KEYS ? column_of(n) : row_of(n)];
}

/* Four rows of column c to W_smem, this thread's place in [OTHER][LD_OWN]. */
template <class C>
static __device__ __forceinline__ void store_fours(float *W_smem, int r, int c, const float (&w)[4])
{
    *reinterpret_cast<float4 *>(W_smem + column_of(c) * C::LD_OWN + row_of(r)) =
        make_float4(w[0], w[1], w[2], w[3]);
}

/* S_reg, raw products, becomes P times the slope of the cap, and P goes to W_smem if dV needs it.
 * lse_smem: from this thread's first query on. ASK: the tile is not clean. */
template <class C, bool ASK>
static __device__ __forceinline__ void
weigh(float (&S_reg)[C::ROWS][C::COLS], const AttnArgs &a, const RowMask<C::OWN, C::OTHER> &mask,
      const float *lse_smem, float *W_smem, int row0, int column0, int j)
{
    const float scale_log2 = exponent_scale(a);
    const bool capped = ASK && a.softcap > 0.0f;
    float base[C::KEYS ? C::COLS : C::ROWS];
    load_numbers<C>(base, lse_smem);
#pragma unroll
    for (int n = 0; n < (C::KEYS ? C::COLS : C::ROWS); n++) /* no key seen: P = 2^(-inf - 0) = 0 */
        base[n] = base[n] == -INFINITY ? 0.0f : base[n] * (float)M_LOG2E;
    if (ASK)
        adjust_scores(S_reg, a);
#pragma unroll
    for (int word = 0; word < C::OTHER / 32; word++) {
        uint32_t bits[C::ROWS];
#pragma unroll
        for (int r = 0; ASK && r < C::ROWS; r++)
            bits[r] = row_bits(mask, row0 + row_of(r), word, j, 0) >> column0;
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int r4 = 0; r4 < C::ROWS; r4 += 4) {
                const int c = word * 4 + e;
                float P[4];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const int r = r4 + n;
                    const float s = S_reg[r][c];
                    /* lse is rounded: P stays at most 1. fminf would lose a NaN. */
                    const float x = fmaf(s, scale_log2, -base[C::KEYS ? c : r]);
                    P[n] = exp2_sfu(x > 0.0f ? 0.0f : x);
                    if (ASK && !(bits[r] >> e & 1))
                        P[n] = 0.0f;
                    S_reg[r][c] = capped ? P[n] * (1.0f - s * s) : P[n]; /* s: the tanh */
                }
                if (C::KEYS)
                    store_fours<C>(W_smem, r4, c, P);
            }
    }
}

/* Does any query of the tile see no key? For a warp. lse_smem: of the tile. */
template <class C> static __device__ __forceinline__ bool has_empty_rows(const float *lse_smem)
{
    bool empty = false;
    for (int r = threadIdx.x % 32; r < C::QUERIES; r += 32)
        empty |= lse_smem[r] == -INFINITY;
    return __any_sync(0xffffffffu, empty);
}

/* Zeros for what such queries have in a slice of dO: their P is 0, but 0 * NaN is NaN. lse_smem: of
 * the slice's first query. */
template <class C>
static __device__ __forceinline__ void clear_empty_rows(float *slice, const float *lse_smem)
{
    for (int e = threadIdx.x; e < C::BAND; e += C::THREADS)
        if (lse_smem[e / C::OUT] == -INFINITY)
            slice[e] = 0.0f;
    __syncthreads();
}

/* dS = weight * (dP - delta) to W_smem. */
template <class C>
static __device__ __forceinline__ void finish_dS(const float (&weight)[C::ROWS][C::COLS],
                                                 const float (&dP_reg)[C::ROWS][C::COLS],
                                                 const float *delta_smem, float *W_smem)
{
    float delta[C::KEYS ? C::COLS : C::ROWS];
    load_numbers<C>(delta, delta_smem);
#pragma unroll
    for (int c = 0; c < C::COLS; c++)
#pragma unroll
        for (int r4 = 0; r4 < C::ROWS; r4 += 4) {
            float dS[4];
#pragma unroll
            for (int n = 0; n < 4; n++)
                /* P = 0 hides whatever dO holds: 0 * NaN would be NaN */
                dS[n] = weight[r4 + n][c] == 0.0f
                            ? 0.0f
                            : weight[r4 + n][c] * (dP_reg[r4 + n][c] - delta[C::KEYS ? c : r4 + n]);
            store_fours<C>(W_smem, r4, c, dS);
        }
}

/* factor * sums, stored or added: the own rows of head own_head, channels from out0 on. */
template <class C>
static __device__ __forceinline__ void store_gradient(const float (&sum)[C::ROWS][C::OUT / 8],
                                                      const Tensor &to, BlockWork work, int out0,
                                                      int row0, int column0, float factor, bool add)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const int row = work.i0 + row0 + row_of(r);
        if (row >= to.shape[1])
            continue;
        float *to_row = (float *)to.data + tensor_offset(&to, work.b, row, work.h);
#pragma unroll
        for (int x = 0; x < C::OUT / 8; x++) {
            const int channel = out0 + column0 + column_of(x);
            if (channel < to.shape[3])
                to_row[channel] = (add ? to_row[channel] : 0.0f) + factor * sum[r][x];
        }
    }
}

#endif
