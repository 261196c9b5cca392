/* SPDX-License-Identifier: MIT
 *
 * exp.h: exp for softmax, as a branch-free polynomial that any compiler can turn into SIMD.
 *
 * Three steps. Take the power of two out: x = k ln2 + r with k an integer and |r| <= ln2 / 2.
 * Then e^x = 2^k e^r; a polynomial of degree 6 gives e^r on that short interval. Last, multiply
 * by 2^k, which in a float is adding k to the exponent field.
 *
 * Interface:
 * - exp_f32(x): e^x for any float. Written without branches or calls, so a loop over it vectorises
 *   for whatever instruction set the file is compiled for. The error is proved over all 2^32 floats
 *   by tests/unit/test_exp.c; the bound stands below. 2^x: exp2.h. Over a row: exp_rows.h.
 */
#ifndef ATTN_EXP_H
#define ATTN_EXP_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Largest |result - exact| in units in the last place of the exact value, with and without FMA,
 * subnormal results included (where an ulp is 2^-149). Overflow gives infinity and results below
 * 2^-150 give 0 exactly where correct rounding does; exp(0) = 1; NaN gives NaN. */
#define EXP_F32_MAX_ULP 1.05

static inline uint32_t exp_bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float exp_float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Limits |x|, on the bit pattern: floats of one sign are ordered like their bits. Two comparisons
 * of floats would do the same, but gcc makes branches of them and gives up SIMD. NaN becomes the
 * limit here and is put back by exp_keep_nan. */
static inline float exp_clamp(float x, float limit)
{
    const uint32_t sign = exp_bits_of(x) & 0x80000000;
    const int32_t a = (int32_t)(exp_bits_of(x) ^ sign), most = (int32_t)exp_bits_of(limit);
    return exp_float_of((uint32_t)(a < most ? a : most) | sign);
}

/* y, or 0 if x <= limit, a negative number: its bits, unsigned, are above those of every float that
 * is larger than it. The product with 2^k would be 0 too, but on the way there the CPU takes its
 * slow path for tiny numbers, a hundred cycles for each masked-out score of -inf. */
static inline float exp_zero_below(float y, float x, float limit)
{
    const uint32_t keep = exp_bits_of(x) < exp_bits_of(limit) ? UINT32_MAX : 0;
    return exp_float_of(exp_bits_of(y) & keep);
}

/* y, or NaN (all bits set) if x is NaN. */
static inline float exp_keep_nan(float y, float x)
{
    const int32_t a = (int32_t)(exp_bits_of(x) & 0x7FFFFFFF);
    return exp_float_of(exp_bits_of(y) | (a > 0x7F800000 ? UINT32_MAX : 0));
}

/* y * 2^k for |k| <= 151, in two steps, because 2^k alone is no float at either end. The
 * first product is exact, so a subnormal result is rounded only once. */
static inline float exp_scale(float y, int32_t k)
{
    const int32_t k1 = k >> 1, k2 = k - k1;
    const float scale1 = exp_float_of((uint32_t)(k1 + 127) << 23);
    const float scale2 = exp_float_of((uint32_t)(k2 + 127) << 23);
    return y * scale1 * scale2;
}

/* 1.5 * 2^23: a float this large has no fraction bits, so adding it rounds to the nearest integer
 * and leaves that integer in the low bits. */
#define EXP_ROUNDER 12582912.0f

static inline float exp_f32(float x)
{
    float z, k, r, q;
    const float given = x; /* beyond +-104 the answer is infinity or 0 anyway */
    x = exp_clamp(x, 104.0f);
    z = x * 0x1.715476p+0f + EXP_ROUNDER; /* log2(e) */
    k = z - EXP_ROUNDER;
    /* ln2 in two parts: the first has 15 bits, so k * part is exact and so is the subtraction. */
    r = x - k * 0x1.62e4p-1f;
    r = r - k * 0x1.7f7d1cp-20f;
    /* e^r = 1 + r + r^2 q(r), minimax: relative error 3.2e-9, a tenth of half an ulp. */
    q = 0x1.6ac144p-10f;
    q = q * r + 0x1.123da6p-7f;
    q = q * r + 0x1.555858p-5f;
    q = q * r + 0x1.55548cp-3f;
    q = q * r + 0x1.fffffcp-2f;
    q = q * (r * r) + r;
    q = exp_zero_below(q + 1.0f, given, -104.0f);
    q = exp_scale(q, (int32_t)(exp_bits_of(z) - exp_bits_of(EXP_ROUNDER)));
    return exp_keep_nan(q, given);
}

#ifdef __cplusplus
}
#endif
#endif
