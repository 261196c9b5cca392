/* SPDX-License-Identifier: MIT
 *
 * dtype.c: rounding to 16 bits by hand.
 *
 * The rounding works on bit patterns because there a carry does the right thing by itself: adding
 * one unit to the largest fraction runs over into the exponent, which is exactly the next float.
 *
 * Interface: tensor.h (f16_..., bf16_..., dtype_...), dtype_f64.h.
 */
#include <math.h>
#include <string.h>

#include "dtype_f64.h"
#include "tensor.h"

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* a without its lowest `shift` bits, rounded to nearest; a tie goes to the even result. */
static uint32_t shift_round_even(uint32_t a, int shift)
{
    uint32_t half_minus_one = (UINT32_C(1) << (shift - 1)) - 1;
    return (a + half_minus_one + (a >> shift & 1)) >> shift;
}

uint16_t f16_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;
    if (a > 0x7F800000) /* NaN: quiet, with the upper bits of its payload */
        return (uint16_t)(sign | 0x7E00 | (a >> 13 & 0x1FF));
    if (a >= 0x477FF000) /* 65520 and above: nearer to 2^16, which f16 does not have */
        return (uint16_t)(sign | 0x7C00);
    if (a >= 0x38800000) /* 2^-14: normal in f16. The exponent bias goes from 127 to 15. */
        return (uint16_t)(sign | shift_round_even(a - (UINT32_C(112) << 23), 13));
    if (a <= 0x33000000) /* 2^-25 and below: half of the smallest subnormal ties to 0 */
        return (uint16_t)sign;
    /* Subnormal: count units of 2^-24. x = fraction * 2^(exponent - 150). */
    return (uint16_t)(sign | shift_round_even((a & 0x7FFFFF) | 0x800000, 126 - (int)(a >> 23)));
}

float f32_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, a = bits & 0x7FFF;
    if (a >= 0x7C00) /* infinity or NaN; a signalling NaN becomes quiet */
        return float_of(sign | 0x7F800000 | (a & 0x3FF) << 13 | (a > 0x7C00 ? 0x400000 : 0));
    /* Placed in float's fields the number is 2^112 too small; the product is exact. */
    return float_of(sign | bits_of(float_of(a << 13) * 0x1p112f));
}

uint16_t bf16_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;
    if (a > 0x7F800000) /* rounding could carry a NaN over into infinity */
        return (uint16_t)(sign | 0x7FC0 | (a >> 16 & 0x3F));
    return (uint16_t)(sign | shift_round_even(a, 16)); /* carries into infinity by itself */
}

float f32_from_bf16(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    return float_of((u & 0x7FFFFFFF) > 0x7F800000 ? u | 0x400000 : u);
}

float dtype_round(AttnDtype dtype, float x)
{
    if (dtype == ATTN_F16)
        return f32_from_f16(f16_from_f32(x));
    if (dtype == ATTN_BF16 || dtype == ATTN_E4M3)
        return f32_from_bf16(bf16_from_f32(x));
    return x;
}

/* A float between may land on a tie that x is not on. So the float of an inexact x gets the odd one
 * of its two neighbours' last bits: it lies on no tie of 16 bits, and on the same side as x. */
float dtype_round_f64(AttnDtype dtype, double x)
{
    const float nearest = (float)x;
    const double above = fabs((double)nearest) - fabs(x);
    const uint32_t u = bits_of(nearest);
    if (dtype == ATTN_F32 || (u & 1) || !(above < 0 || above > 0))
        return dtype_round(dtype, nearest);
    return dtype_round(dtype, float_of(above > 0 ? u - 1 : u + 1));
}

size_t dtype_size(AttnDtype dtype)
{
    return dtype == ATTN_F32 ? 4 : 2;
}

const char *dtype_name(AttnDtype dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16", "e4m3"};
    return names[dtype];
}
