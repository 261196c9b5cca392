/* SPDX-License-Identifier: MIT
 *
 * weight_walk.cuh: what a thread does with the scores of a tile when weights are
 * not the probabilities themselves.
 *
 *     A = clip((high - low) P + low, 0, 1)             W = keep * A / (1 - dropout)
 *     dP = [inside the clip] (high - low) keep / (1 - dropout) * (dO . V)
 *     dS = P (dP - delta)
 *
 * Between P and dP there is one bit for each pair (kept, and not cut off by the clip) and one
 * factor for all: a thread keeps the bits of its pairs, P in registers, and nothing else.
 *
 * Interface:
 * - PairBits: which pairs of a thread count. find_kept, weigh_tile, add_sum, add_delta,
 *   finish_weighted_dS.
 */
#ifndef WINDOW_WEIGHT_WALK_CUH
#define WINDOW_WEIGHT_WALK_CUH

#include "attention/backward/cuda/owner_walk.cuh"
#include "dropout.cuh"

/* Bit c % 4 * 8 + r of word c / 4: pair (r, c) of this thread. */
template <class C> struct PairBits {
    static const int WORDS = C::COLS / 4;
    uint32_t word[WORDS];
};

/* Which pairs are kept. own0, other0: this thread's first row and column; head: of the queries. */
template <class C>
static __device__ __forceinline__ void find_kept(PairBits<C> &kept, const Weights &w,
                                                 const AttnArgs &a, int b, int head, int own0,
                                                 int other0)
{
    const int N_own = (int)a.shape.Nq, N_other = (int)a.shape.Nk;
#pragma unroll
    for (int n = 0; n < PairBits<C>::WORDS; n++)
        kept.word[n] = w.drops ? 0 : 0xffffffffu;
    if (!w.drops)
        return;
#pragma unroll
    for (int n = 0; n < PairBits<C>::WORDS; n++)
        if (C::KEYS) { /* keys side by side in rows */
#pragma unroll 1
            for (int e = 0; e < 4; e++)
#pragma unroll 1
                for (int r = 0; r < C::ROWS; r += 4) {
                    const int query = min(other0 + n * 32 + e, N_other - 1);
                    kept.word[n] |=
                        kept_of_four(w, b, head, w.queries[query], own0 + row_of(r), N_own)
                        << (e * 8 + r);
                }
        } else {
#pragma unroll 1
            for (int r = 0; r < C::ROWS; r++) {
                const int query = min(own0 + row_of(r), N_own - 1);
                const uint32_t four =
                    kept_of_four(w, b, head, w.queries[query], other0 + n * 32, N_other);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    kept.word[n] |= (four >> e & 1) << (e * 8 + r);
            }
        }
}

/* S_reg, raw products, becomes P, times the slope of the cap where dS is wanted; the weights go to
 * W_smem if a product needs them. `passes` has the kept pairs; what is not seen or is cut off by
 * the clip leaves it. masked: the tile is not clean. sum_smem: log2 of the sum of the weights 2^x;
 * a backward pass has lse alone, and cuts P off at 1. PASS_SUM: S_reg becomes x. */
template <class C>
static __device__ __forceinline__ void
weigh_tile(float (&S_reg)[C::ROWS][C::COLS], PairBits<C> &passes, const AttnArgs &a,
           const Weights &w, const RowMask<C::OWN, C::OTHER> &mask, const float *lse_smem,
           const float *sum_smem, float *W_smem, int row0, int column0, int j, bool masked)
{
    const float scale_log2 = exponent_scale(a);
    const bool slopes = C::ADDS_dS && a.softcap > 0.0f;
    float base[C::KEYS ? C::COLS : C::ROWS];
    load_numbers<C>(base, lse_smem);
#pragma unroll
    for (int n = 0; n < (C::KEYS ? C::COLS : C::ROWS); n++) /* no key seen: P = 2^(-inf - 0) = 0 */
        base[n] = base[n] == -INFINITY ? 0.0f : base[n] * (float)M_LOG2E;
    if (masked)
        adjust_scores(S_reg, a);
#pragma unroll
    for (int n = 0; n < PairBits<C>::WORDS; n++) {
        uint32_t seen[C::ROWS];
#pragma unroll
        for (int r = 0; r < C::ROWS; r++)
            seen[r] = masked ? row_bits(mask, row0 + row_of(r), n, j, 0) >> column0 : 0xffffffffu;
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int r4 = 0; r4 < C::ROWS; r4 += 4) {
                const int c = n * 4 + e;
                float W[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int r = r4 + k;
                    const uint32_t bit = 1u << (e * 8 + r);
                    const float s = S_reg[r][c];
                    const float x = fmaf(s, scale_log2, -base[C::KEYS ? c : r]);
                    if (C::PASS == PASS_SUM) {
                        S_reg[r][c] = seen[r] >> e & 1 ? x : -INFINITY;
                        continue;
                    }
                    const float x1 = C::PASS == PASS_OUTPUT ? x - sum_smem[row_of(r)] : x;
                    const float P = !(seen[r] >> e & 1) ? 0.0f : x1 > 0.0f ? 1.0f : exp2_sfu(x1);
                    const float A = w.clips ? fmaf(w.clip_span, P, w.clip_low) : P;
                    const bool low = w.clips && A < 0.0f, high = w.clips && A > 1.0f;
                    W[k] = passes.word[n] & bit ? w.kept * (low ? 0.0f : high ? 1.0f : A) : 0.0f;
                    if (!(seen[r] >> e & 1) || low || high)
                        passes.word[n] &= ~bit;
                    S_reg[r][c] = slopes ? P * (1.0f - s * s) : P; /* s: the tanh */
                }
                if (C::ADDS_W)
                    store_fours<C>(W_smem, r4, c, W);
            }
    }
}

/* dP of a pair from dO . V. */
template <class C>
static __device__ __forceinline__ float dP_of_pair(float dO_V, const PairBits<C> &passes,
                                                   float factor, int r, int c)
{
    return passes.word[c / 4] >> (c % 4 * 8 + r) & 1 ? factor * dO_V : 0.0f;
}

/* sum 2^top gains the 2^x of the tile. */
template <class C>
static __device__ __forceinline__ void add_sum(float (&top)[C::ROWS], float (&sum)[C::ROWS],
                                               const float (&x_reg)[C::ROWS][C::COLS])
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const float before = sum[r] == 0.0f ? -INFINITY : top[r];
        top[r] = before;
#pragma unroll
        for (int c = 0; c < C::COLS; c++)
            top[r] = fmaxf(top[r], x_reg[r][c]);
        if (top[r] == -INFINITY)
            continue;
        sum[r] *= exp2_sfu(before - top[r]);
#pragma unroll
        for (int c = 0; c < C::COLS; c++)
            sum[r] += exp2_sfu(x_reg[r][c] - top[r]);
    }
}

/* delta_i += sum over the tile of P dP */
template <class C>
static __device__ __forceinline__ void
add_delta(float (&delta)[C::ROWS], const float (&P_reg)[C::ROWS][C::COLS],
          const float (&dP_reg)[C::ROWS][C::COLS], const PairBits<C> &passes, float factor)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++)
#pragma unroll
        for (int c = 0; c < C::COLS; c++)
            delta[r] =
                fmaf(P_reg[r][c], dP_of_pair<C>(dP_reg[r][c], passes, factor, r, c), delta[r]);
}

/* dS = P (dP - delta) to W_smem. P_reg has the slope of the cap in it. */
template <class C>
static __device__ __forceinline__ void
finish_weighted_dS(const float (&P_reg)[C::ROWS][C::COLS], const float (&dP_reg)[C::ROWS][C::COLS],
                   const PairBits<C> &passes, float factor, const float *delta_smem, float *W_smem)
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
                dS[n] = P_reg[r4 + n][c] *
                        (dP_of_pair<C>(dP_reg[r4 + n][c], passes, factor, r4 + n, c) -
                         delta[C::KEYS ? c : r4 + n]);
            store_fours<C>(W_smem, r4, c, dS);
        }
}

#endif
