/* SPDX-License-Identifier: MIT
 *
 * score_factors.cuh: from Q, K, dO and V of a tile to the left factors P^T and dS^T.
 *
 *     P = exp(scale * s - lse) = 2^(s * c - lse'),  c = scale * log2(e),  lse' = lse * log2(e)
 *     dS = P * (dP - delta)
 *
 * No maximum is needed: the forward pass has it in lse. delta costs nothing: the accumulator of dP
 * starts at -delta instead of zero. So a score takes a fused multiply-add, an exponential, a
 * multiplication, and a half of two conversions: four instructions. With its half of a store of
 * dS^T that is 4.5. Where warps share keys, P^T is stored too; where four do, they exchange scores
 * before.
 *
 * With a cap, s becomes tanh(s * scale / cap), c = cap * log2(e), and dS gets the slope of the cap,
 * 1 - tanh^2. Only masked tiles know of it: a cap makes all tiles masked.
 *
 * Three kinds of tiles have code of their own. Clean ones see all. Where queries see runs of keys
 * and scores are plain, two comparisons and a selection more for each score hide what is not seen,
 * and the code is otherwise that of a clean tile: under a window a third of all tiles is masked,
 * and they should not take much longer. Words, caps and negative scales, under which -inf would not
 * hide a score, go through general code.
 *
 * Interface:
 * - PairMask: which pairs of a masked tile are seen. TileCode: which of the three kinds of code.
 * - ScoreFactors, compute_scores. meet_group: the barrier of the warps that share keys.
 */
#ifndef FLASH_BACKWARD_SCORE_FACTORS_CUH
#define FLASH_BACKWARD_SCORE_FACTORS_CUH

#include <float.h>

#include "attention/forward/cuda/key_plan.cuh"
#include "attn.h"
#include "mma_gradients.cuh"

/* P = 2^(S * exponent_factor - lse * log2(e)), S the raw product or, capped, its tanh. */
static __device__ __forceinline__ float exponent_factor(const AttnArgs &a)
{
    return (a.softcap > 0.0f ? a.softcap : a.scale) * (float)M_LOG2E;
}

/* Finite even for a tiny cap: 0 * infinity would be NaN. */
static __device__ __forceinline__ float cap_factor(const AttnArgs &a)
{
    return fmaxf(-FLT_MAX, fminf(a.scale / a.softcap, FLT_MAX));
}

/* The mask of a tile, in shared memory. Where keys stand in one run of positions, a query sees one
 * run of keys, and two comparisons tell about a pair; in the general case a bit does. */
struct PairMask {
    const uint32_t *words; /* [Bc / 32][Br]: bit c of words[w][r]: row r sees key 32w + c */
    int run_j0;            /* the tile's first key, if there are runs instead: int2 [Br], first and
                              last key that a query sees. -1: words */
};

enum TileCode { TILE_CLEAN, TILE_RUNS, TILE_GENERAL };

/* S of pairs that are not seen becomes -inf, P then 0: plain scores only. */
template <class C, int QUERIES>
static __device__ __forceinline__ void hide_by_runs(float (&S)[C::MT][QUERIES / 8][4],
                                                    const PairMask &mask, int q0)
{
    const int g = threadIdx.x / 4 % 8, group = threadIdx.x / 32 / C::KEY_WARPS;
    const int j = mask.run_j0 + group * 16 + g;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        /* x, y: first and last key of query 2t; z, w: of 2t + 1 */
        const int4 run =
            *reinterpret_cast<const int4 *>(mask.words + 2 * (q0 + n * 8 + 2 * (threadIdx.x % 4)));
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = j + mt * C::GROUPS * 16 + e / 2 * 8;
                if (key < (e % 2 ? run.z : run.x) || key > (e % 2 ? run.w : run.y))
                    S[mt][n][e] = -INFINITY;
            }
    }
}

/* Bits 0, 1: queries 2t, 2t + 1 from q on see `key` of the tile; bits 2, 3: they see key + 8. */
template <class C>
static __device__ __forceinline__ uint32_t seen_pairs(const PairMask &mask, int q, int key)
{
    if (mask.run_j0 >= 0) {
        const int4 run = *reinterpret_cast<const int4 *>(mask.words + 2 * q);
        const int j = mask.run_j0 + key;
        return (uint32_t)(j >= run.x && j <= run.y) | (uint32_t)(j >= run.z && j <= run.w) << 1 |
               (uint32_t)(j + 8 >= run.x && j + 8 <= run.y) << 2 |
               (uint32_t)(j + 8 >= run.z && j + 8 <= run.w) << 3;
    }
    const uint2 both = *reinterpret_cast<const uint2 *>(mask.words + key / 32 * C::Br + q);
    const uint32_t low = both.x >> key % 32, high = both.y >> key % 32;
    return (low & 1) | (high & 1) << 1 | (low >> 8 & 1) << 2 | (high >> 8 & 1) << 3;
}

/* Left factors of dV and dK. */
template <class C, int QUERIES> struct ScoreFactors {
    uint32_t P[QUERIES / 16][C::MT][4], dS[QUERIES / 16][C::MT][4];
};

/* A barrier of the warps that share keys. Barrier 0 is __syncthreads(), hence + 1. */
template <class C> static __device__ __forceinline__ void meet_group(void)
{
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / (32 * C::KEY_WARPS) + 1),
                 "n"(32 * C::KEY_WARPS)
                 : "memory");
}

/* S^T and dP^T where four warps share keys. To load all channels of 32 keys for 16 queries takes
 * three ldmatrix for four products. So a warp computes one of the two, S if it is even and dP if it
 * is odd, for its own 16 queries and for its neighbour's: four ldmatrix for eight products. They
 * exchange halves by way of P_smem and dS_smem, where P^T and dS^T of these keys will lie. */
template <typename T, class C>
static __device__ __forceinline__ void
multiply_in_pairs(float (&S)[C::MT][2][4], float (&dP)[C::MT][2][4], const LaneAddresses &at,
                  unsigned char *P_smem, unsigned char *dS_smem)
{
    typedef GradientBytes<C> Bytes;
    const int warp = threadIdx.x / 32, odd = warp % 2, neighbour = 16 * C::D * 2;
    float sum[C::MT][4][4] = {};
    multiply_rows<T, C, 32>(sum, at.left + odd * (Bytes::V - Bytes::K), Bytes::K,
                            at.right + odd * Bytes::dO, Bytes::STAGES,
                            odd ? -neighbour : neighbour);
    /* 512 bytes for each of the 4 * MT tiles of 16 keys and 8 queries that two warps send: four of
     * them fill the place of 16 keys */
    static_assert(C::KEY_WARPS == 4 && 16 * C::Br * 2 == 4 * 512, "places do not fit");
    unsigned char *buffer = (warp % 4 < 2 ? P_smem : dS_smem) + threadIdx.x % 32 * 16;
    auto place = [&](int sender, int tile) {
        const int slot = sender * 2 * C::MT + tile;
        return (float4 *)(buffer + (slot / 4 * C::GROUPS + warp / 4) * (16 * C::Br * 2) +
                          slot % 4 * 512);
    };
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float(&theirs)[4] = sum[mt][2 + n];
            *place(odd, mt * 2 + n) = make_float4(theirs[0], theirs[1], theirs[2], theirs[3]);
        }
    meet_group<C>();
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float4 other = *place(1 - odd, mt * 2 + n);
            const float received[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                S[mt][n][e] += odd ? received[e] : sum[mt][n][e];
                dP[mt][n][e] += odd ? sum[mt][n][e] : received[e];
            }
        }
    meet_group<C>(); /* all have read: P and dS may be written */
}

/* P^T and dS^T of this warp's keys and of QUERIES queries of the tile from q0 on. at.right points
 * to Q of the stage, to this warp's part of the tile if warps share keys; `down` is how many
 * bytes q0 lies below that. P_smem, dS_smem: see multiply_in_pairs. False: none of these pairs is
 * seen, all is zero; where four warps share keys it is never false, since all must come to their
 * barriers. */
template <typename T, class C, TileCode CODE, int QUERIES>
static __device__ __forceinline__ bool
compute_scores(ScoreFactors<C, QUERIES> &f, const AttnArgs &a, const LaneAddresses &at,
               const float2 *stats, PairMask mask, int q0, int down, unsigned char *P_smem,
               unsigned char *dS_smem)
{
    typedef GradientBytes<C> Bytes;
    const bool MASKED = CODE == TILE_GENERAL;
    const int t = threadIdx.x % 4;
    float S[C::MT][QUERIES / 8][4], dP[C::MT][QUERIES / 8][4];
    uint32_t seen[C::MT][QUERIES / 8];
    if (MASKED) {
        const int g = threadIdx.x / 4 % 8, group = threadIdx.x / 32 / C::KEY_WARPS;
        uint32_t any = 0;
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                seen[mt][n] =
                    seen_pairs<C>(mask, q0 + n * 8 + 2 * t, (mt * C::GROUPS + group) * 16 + g);
                any |= seen[mt][n];
            }
        if (C::KEY_WARPS < 4 && !any_lane_bits(any)) {
#pragma unroll
            for (int k = 0; k < QUERIES / 16; k++)
#pragma unroll
                for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        f.P[k][mt][e] = f.dS[k][mt][e] = 0;
            return false;
        }
    }
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        /* x, y: lse' and delta of query 2t; z, w: of 2t + 1 */
        const float4 pair = *reinterpret_cast<const float4 *>(stats + q0 + n * 8 + 2 * t);
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                S[mt][n][e] = 0.0f;
                dP[mt][n][e] = e % 2 ? -pair.w : -pair.y;
            }
    }
    if constexpr (C::KEY_WARPS == 4)
        multiply_in_pairs<T, C>(S, dP, at, P_smem, dS_smem);
    else
        multiply_rows<T, C, QUERIES>(S, at.left, Bytes::K, at.right, Bytes::STAGES + down);
    if (CODE == TILE_RUNS)
        hide_by_runs<C, QUERIES>(S, mask, q0);
    if constexpr (C::KEY_WARPS < 4)
        multiply_rows<T, C, QUERIES>(dP, at.left, Bytes::V, at.right,
                                     Bytes::STAGES + Bytes::dO + down);
    const float scale_log2 = exponent_factor(a);
    if (MASKED && a.softcap > 0.0f) { /* apart, so that the loop below has no branches */
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    S[mt][n][e] = tanhf(S[mt][n][e] * cap_factor(a));
                    dP[mt][n][e] *= 1.0f - S[mt][n][e] * S[mt][n][e];
                }
    }
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const float4 pair = *reinterpret_cast<const float4 *>(stats + q0 + n * 8 + 2 * t);
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = exp2_sfu(fmaf(S[mt][n][e], scale_log2, e % 2 ? -pair.z : -pair.x));
                if (MASKED && !(seen[mt][n] >> e & 1))
                    p = 0.0f;
                S[mt][n][e] = p;
                dP[mt][n][e] *= p;
            }
    }
    pack_factor<T, C::MT, QUERIES>(f.P, S);
    pack_factor<T, C::MT, QUERIES>(f.dS, dP);
    return true;
}

#endif
