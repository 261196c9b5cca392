/* SPDX-License-Identifier: MIT
 *
 * exp2.h: 2^x in the steps of exp.h, for who keeps scores in powers of two: no log2(e), and r needs
 * no correction.
 *
 * Interface: exp2_f32(x).
 */
#ifndef ATTN_EXP2_H
#define ATTN_EXP2_H

#include "units/exp.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EXP2_F32_MAX_ULP 1.10 /* as EXP_F32_MAX_ULP */

static inline float exp2_f32(float x)
{
    float z, r, q;
    const float given = x;
    x = exp_clamp(x, 151.0f);
    z = x + EXP_ROUNDER;
    r = x - (z - EXP_ROUNDER); /* exact, |r| <= 1/2 */
    /* 2^r = 1 + r q(r), relative error 5.3e-9 */
    q = 0x1.4bc274p-13f;
    q = q * r + 0x1.5fc048p-10f;
    q = q * r + 0x1.3b21c6p-7f;
    q = q * r + 0x1.c6ada6p-5f;
    q = q * r + 0x1.ebfbe6p-3f;
    q = q * r + 0x1.62e432p-1f;
    q = exp_zero_below(q * r + 1.0f, given, -151.0f);
    q = exp_scale(q, (int32_t)(exp_bits_of(z) - exp_bits_of(EXP_ROUNDER)));
    return exp_keep_nan(q, given);
}

#ifdef __cplusplus
}
#endif
#endif
