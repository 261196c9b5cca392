/* SPDX-License-Identifier: MIT
 *
 * scores.cuh: from raw products q . k to powers of two.
 *
 * exp(score - m) = 2^(s * c - m'), where s is the raw product, c = scale * log2(e) and m' the row
 * maximum in powers of two: scale, change of base and subtraction are one fused multiply-add. That
 * needs c > 0, so that the largest s is the largest score, and scores that are linear in s. A
 * negative scale or a cap is dealt with before, in the tiles' slow loop:
 *
 *     cap:          s becomes tanh(s * scale / cap),   c = cap * log2(e)
 *     scale < 0:    s becomes -s,                      c = -scale * log2(e)
 *     scale = 0:    s becomes 0,                       c = 1
 *
 * Interface:
 * - exponent_scale: c. adjust_scores: the second column.
 */
#ifndef FLASH_FORWARD_SCORES_CUH
#define FLASH_FORWARD_SCORES_CUH

#include <float.h>

#include "attn.h"
#include "units/mma.cuh"

static __device__ __forceinline__ float exponent_scale(const AttnArgs &a)
{
    if (a.softcap > 0.0f)
        return a.softcap * (float)M_LOG2E;
    return a.scale == 0.0f ? 1.0f : fabsf(a.scale) * (float)M_LOG2E;
}

/* S_reg: raw products of q and k. Nothing to do for a positive scale without a cap. */
template <int R, int C>
static __device__ __forceinline__ void adjust_scores(float (&S_reg)[R][C], const AttnArgs &a)
{
    const bool capped = a.softcap > 0.0f;
    if (!capped && a.scale > 0.0f)
        return;
    /* Finite even for a tiny cap: 0 * infinity would be NaN. */
    const float factor = capped           ? fmaxf(-FLT_MAX, fminf(a.scale / a.softcap, FLT_MAX))
                         : a.scale < 0.0f ? -1.0f
                                          : 0.0f;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) {
            const float s = S_reg[r][c] * factor;
            S_reg[r][c] = capped ? tanhf(s) : s;
        }
}

#endif
