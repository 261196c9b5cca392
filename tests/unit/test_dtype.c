/* SPDX-License-Identifier: MIT
 *
 * test_dtype.c: the 16-bit conversions of dtype.c, bit by bit.
 *
 * Rounding is compared with a second definition that shares nothing with the bit tricks of
 * dtype.c: scale by a power of two until one unit is one, round with rint() in double (to nearest,
 * ties to even), scale back.
 */
#include <float.h>
#include <math.h>

#include "unit.h"

#include "dtype_f64.h"
#include "harness/io/fill.h"
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

/* x rounded to a format with `fraction` bits behind the point, smallest normal exponent `low`, and
 * largest exponent `high`; infinity beyond. */
static double rounded(double x, int fraction, int low, int high)
{
    int exponent;
    double unit, result;
    if (x == 0.0 || isinf(x))
        return x;
    (void)frexp(x, &exponent); /* x = m * 2^exponent with m in [1/2, 1) */
    exponent = exponent - 1 < low ? low : exponent - 1;
    unit = ldexp(1.0, exponent - fraction);
    result = rint(x / unit) * unit;
    return fabs(result) >= ldexp(1.0, high + 1) ? copysign(INFINITY, x) : result;
}

/* The value of a 16-bit pattern by the definition of the format. */
static double value_of(uint16_t u, int fraction, int bias)
{
    const int exponent = (u & 0x7FFF) >> fraction, top = (1 << (15 - fraction)) - 1;
    const int digits = u & ((1 << fraction) - 1);
    const double sign = u & 0x8000 ? -1.0 : 1.0;
    if (exponent == top)
        return digits ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(digits, 1 - bias - fraction);
    return sign * ldexp(digits + (1 << fraction), exponent - bias - fraction);
}

TEST(all_patterns)
{
    for (uint32_t u = 0; u < 65536; u++) {
        const uint16_t bits = (uint16_t)u;
        const double f16 = value_of(bits, 10, 15), bf16 = value_of(bits, 7, 127);
        if (isnan(f16)) { /* stays NaN with sign and payload; only the quiet bit may come on */
            assert_true(isnan(f32_from_f16(bits)));
            assert_int_equal(f16_from_f32(f32_from_f16(bits)), bits | 0x200);
        } else {
            assert_true((double)f32_from_f16(bits) == f16);
            assert_int_equal(f16_from_f32(f32_from_f16(bits)), bits); /* -0 too */
        }
        if (isnan(bf16)) {
            assert_true(isnan(f32_from_bf16(bits)));
            assert_int_equal(bf16_from_f32(f32_from_bf16(bits)), bits | 0x40);
        } else {
            assert_true((double)f32_from_bf16(bits) == bf16);
            assert_int_equal(bf16_from_f32(f32_from_bf16(bits)), bits);
        }
    }
}

static void compare(float x)
{
    const double f16 = rounded((double)x, 10, -14, 15), bf16 = rounded((double)x, 7, -126, 127);
    const float got_f16 = f32_from_f16(f16_from_f32(x)), got_bf16 = f32_from_bf16(bf16_from_f32(x));
    if ((double)got_f16 != f16 || !signbit(got_f16) != !signbit(x))
        fail_msg("f16 of %a is %a, not %a", (double)x, (double)got_f16, f16);
    if ((double)got_bf16 != bf16 || !signbit(got_bf16) != !signbit(x))
        fail_msg("bf16 of %a is %a, not %a", (double)x, (double)got_bf16, bf16);
    assert_true(bits_of(dtype_round(ATTN_F16, x)) == bits_of(got_f16));
    assert_true(bits_of(dtype_round(ATTN_BF16, x)) == bits_of(got_bf16));
    assert_true(bits_of(dtype_round(ATTN_F32, x)) == bits_of(x));
}

/* Each number of the format, the middle between it and the next, and the floats on either side of
 * that middle: every place where rounding changes its mind. */
TEST(all_halfway_cases)
{
    for (uint32_t u = 0; u < 0x7C00; u++) {
        const double here = value_of((uint16_t)u, 10, 15);
        const double next = u == 0x7BFF ? 65536.0 : value_of((uint16_t)(u + 1), 10, 15);
        const float middle = (float)((here + next) / 2);
        const float probe[3] = {nextafterf(middle, 0.0f), middle, nextafterf(middle, INFINITY)};
        for (int t = 0; t < 3; t++) {
            compare(probe[t]);
            compare(-probe[t]);
        }
    }
    for (uint32_t u = 0; u < 0x7F80; u++) { /* the middle of two bf16 is bit 15 */
        for (int t = -1; t <= 1; t++) {
            compare(float_of((u << 16) + 0x8000 + (uint32_t)t));
            compare(-float_of((u << 16) + 0x8000 + (uint32_t)t));
        }
    }
}

static void compare_f64(double x)
{
    const double f16 = rounded(x, 10, -14, 15), bf16 = rounded(x, 7, -126, 127);
    const double got_f16 = (double)dtype_round_f64(ATTN_F16, x),
                 got_bf16 = (double)dtype_round_f64(ATTN_BF16, x);
    if (got_f16 != f16 || !signbit(got_f16) != !signbit(x))
        fail_msg("f16 of %a is %a, not %a", x, got_f16, f16);
    if (got_bf16 != bf16 || !signbit(got_bf16) != !signbit(x))
        fail_msg("bf16 of %a is %a, not %a", x, got_bf16, bf16);
    assert_true(bits_of(dtype_round_f64(ATTN_F32, x)) == bits_of((float)x));
}

/* The same places, but so near to the middle that a float falls on it. */
TEST(doubles_are_rounded_once)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (uint32_t u = 0; u < (bf16 ? 0x7F80 : 0x7C00); u++) {
            const int fraction = bf16 ? 7 : 10, bias = bf16 ? 127 : 15;
            const uint32_t last = bf16 ? 0x7F7F : 0x7BFF;
            const double here = value_of((uint16_t)u, fraction, bias);
            const double next =
                u == last ? ldexp(1.0, bias + 1) : value_of((uint16_t)(u + 1), fraction, bias);
            const double middle = (here + next) / 2;
            const double probe[] = {nextafter(middle, 0.0), middle, nextafter(middle, 1e300),
                                    middle * (1 - 0x1p-30), middle * (1 + 0x1p-30)};
            for (size_t t = 0; t < sizeof probe / sizeof *probe; t++) {
                compare_f64(probe[t]);
                compare_f64(-probe[t]);
            }
        }
    for (uint64_t t = 0; t < 1000000; t++) {
        double x;
        const uint64_t word = fill_word(8, t);
        memcpy(&x, &word, sizeof x);
        if (!isnan(x))
            compare_f64(x);
        compare_f64(ldexp(1 + (double)(word >> 12) * 0x1p-52, (int)(word & 63) - 40));
    }
    const double edge[] = {0.0,       -0.0,
                           INFINITY,  -INFINITY,
                           0x1p-1074, -0x1p-1074,
                           1.7e308,   -1.7e308,
                           FLT_MAX,   (double)FLT_MAX + 1e30,
                           65520.0,   nextafter(65520.0, 0.0)};
    for (size_t t = 0; t < sizeof edge / sizeof *edge; t++)
        compare_f64(edge[t]);
    assert_true(isnan(dtype_round_f64(ATTN_F16, NAN)) && isnan(dtype_round_f64(ATTN_BF16, NAN)));
}

TEST(random_floats)
{
    uint64_t t;
    for (t = 0; t < 1000000; t++) {
        const uint32_t u = (uint32_t)fill_word(7, t);
        if ((u & 0x7FFFFFFF) <= 0x7F800000)
            compare(float_of(u));
        /* and again with an exponent that f16 has */
        compare(float_of((u & 0x807FFFFF) | (100 + (u >> 23 & 0xFF) % 46) << 23));
    }
}

/* Where compare() cannot look. */
TEST(nan_keeps_its_sign_and_what_fits_of_its_payload)
{
    static const struct {
        uint32_t f32;
        uint16_t f16, bf16;
    } corner[] = {
        {0x7FC00000, 0x7E00, 0x7FC0}, {0xFFC00000, 0xFE00, 0xFFC0},
        {0x7F800001, 0x7E00, 0x7FC0}, /* a payload that falls off must not leave infinity */
        {0x7FFFFFFF, 0x7FFF, 0x7FFF}, {0xFFFFFFFF, 0xFFFF, 0xFFFF}, /* poison */
    };
    for (size_t t = 0; t < sizeof corner / sizeof corner[0]; t++) {
        const float x = float_of(corner[t].f32);
        if (f16_from_f32(x) != corner[t].f16 || bf16_from_f32(x) != corner[t].bf16)
            fail_msg("%08x: f16 %04x bf16 %04x", corner[t].f32, f16_from_f32(x), bf16_from_f32(x));
    }
    assert_true(dtype_size(ATTN_F32) == 4 && dtype_size(ATTN_F16) == 2 &&
                dtype_size(ATTN_BF16) == 2);
    assert_string_equal(dtype_name(ATTN_F32), "f32");
    assert_string_equal(dtype_name(ATTN_F16), "f16");
    assert_string_equal(dtype_name(ATTN_BF16), "bf16");
}
