/* SPDX-License-Identifier: MIT
 *
 * test_tensor.c: 16-bit conversions bit by bit, and storage that must notice a stray access.
 *
 * Rounding is compared with a second definition that shares nothing with the bit tricks of
 * tensor.c: scale by a power of two until one unit is one, round with rint() in double (to nearest,
 * ties to even), scale back.
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fill.h"
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

static void all_patterns(void **state)
{
    uint32_t u;
    (void)state;
    for (u = 0; u < 65536; u++) {
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
static void all_halfway_cases(void **state)
{
    uint32_t u;
    (void)state;
    for (u = 0; u < 0x7C00; u++) {
        const double here = value_of((uint16_t)u, 10, 15);
        const double next = u == 0x7BFF ? 65536.0 : value_of((uint16_t)(u + 1), 10, 15);
        const float middle = (float)((here + next) / 2);
        const float probe[3] = {nextafterf(middle, 0.0f), middle, nextafterf(middle, INFINITY)};
        int t;
        for (t = 0; t < 3; t++) {
            compare(probe[t]);
            compare(-probe[t]);
        }
    }
    for (u = 0; u < 0x7F80; u++) { /* the middle of two bf16 is bit 15 */
        int t;
        for (t = -1; t <= 1; t++) {
            compare(float_of((u << 16) + 0x8000 + (uint32_t)t));
            compare(-float_of((u << 16) + 0x8000 + (uint32_t)t));
        }
    }
}

static void random_floats(void **state)
{
    uint64_t t;
    (void)state;
    for (t = 0; t < 1000000; t++) {
        const uint32_t u = (uint32_t)fill_word(7, t);
        if ((u & 0x7FFFFFFF) <= 0x7F800000)
            compare(float_of(u));
        /* and again with an exponent that f16 has */
        compare(float_of((u & 0x807FFFFF) | (100 + (u >> 23 & 0xFF) % 46) << 23));
    }
}

static void corner_table(void **state)
{
    static const struct {
        uint32_t f32;
        uint16_t f16, bf16;
    } corner[] =
        {
            {0x00000000, 0x0000, 0x0000}, /* 0 */
            {0x80000000, 0x8000, 0x8000}, /* -0 */
            {0x3F800000, 0x3C00, 0x3F80}, /* 1 */
            {0x3F801000, 0x3C00, 0x3F80}, /* 1 + 2^-11: a tie in f16, to even */
            {0x3F803000, 0x3C02, 0x3F80}, /* 1 + 3*2^-11: the tie above, up to even */
            {0x3F808000, 0x3C04, 0x3F80}, /* 1 + 2^-8: a tie in bf16 */
            {0x3F818000, 0x3C0C, 0x3F82}, /* 1 + 3*2^-8 */
            {0x477FE000, 0x7BFF, 0x4780}, /* 65504, the largest f16 */
            {0x477FEFFF, 0x7BFF, 0x4780}, /* just below 65520 */
            {0x477FF000, 0x7C00, 0x4780}, /* 65520: to infinity */
            {0xC77FF000, 0xFC00, 0xC780},
            {0x38800000, 0x0400, 0x3880}, /* 2^-14, the smallest normal */
            {0x387FE000, 0x0400, 0x3880}, /* between the largest subnormal and it: a tie, to even */
            {0x387FC000, 0x03FF, 0x3880}, /* the largest subnormal */
            {0x33800000, 0x0001, 0x3380}, /* 2^-24, the smallest */
            {0x33000000, 0x0000, 0x3300}, /* 2^-25: a tie with 0 */
            {0x33000001, 0x0001, 0x3300},
            {0x33C00000, 0x0002, 0x33C0}, /* 1.5 units: up to even */
            {0x34200000, 0x0002, 0x3420}, /* 2.5 units: down to even */
            {0x00000001, 0x0000, 0x0000}, /* the smallest float */
            {0x00008000, 0x0000, 0x0000}, /* half of the smallest bf16 */
            {0x00008001, 0x0000, 0x0001},
            {0x007FFFFF, 0x0000, 0x0080}, /* subnormal up to normal */
            {0x7F7FFFFF, 0x7C00, 0x7F80}, /* the largest float: infinity in both */
            {0x7F7F7FFF, 0x7C00, 0x7F7F},
            {0x7F7F8000, 0x7C00, 0x7F80}, /* a tie with infinity */
            {0x7F800000, 0x7C00, 0x7F80},
            {0xFF800000, 0xFC00, 0xFF80},
            {0x7FC00000, 0x7E00, 0x7FC0},
            {0xFFC00000, 0xFE00, 0xFFC0},
            {0x7F800001, 0x7E00, 0x7FC0}, /* a payload that falls off must not leave infinity */
            {0x7FFFFFFF, 0x7FFF, 0x7FFF},
            {0xFFFFFFFF, 0xFFFF, 0xFFFF}, /* poison */
        };
    size_t t;
    (void)state;
    for (t = 0; t < sizeof corner / sizeof corner[0]; t++) {
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

/* Writes every row, reads it back, and looks at what lies around. */
static void exercise_storage(AttnDtype dtype, TensorLayout layout, const int64_t n[4])
{
    Storage s;
    float row[8], back[8];
    int64_t b, i, h, x, written = 0, largest = 0, end;
    uint64_t before;
    assert_int_equal(tensor_new(&s, dtype, layout, n[0], n[1], n[2], n[3]), 0);
    assert_true(tensor_count(&s.view) == n[0] * n[1] * n[2] * n[3] && s.view.stride[3] == 1);
    assert_true(((uintptr_t)s.base + s.bytes) % (uintptr_t)sysconf(_SC_PAGESIZE) == 0);
    if (layout == LAYOUT_ODD) /* on the host and, from a well aligned base, on the device */
        assert_true((uintptr_t)s.view.data / dtype_size(dtype) % 2 == 1 &&
                    (size_t)((unsigned char *)s.view.data - s.base) == dtype_size(dtype));
    before = tensor_fingerprint(&s);
    for (b = 0; b < n[0]; b++)
        for (i = 0; i < n[1]; i++)
            for (h = 0; h < n[2]; h++) {
                const int64_t first = tensor_offset(&s.view, b, i, h);
                largest = first > largest ? first : largest;
                tensor_read_row(&s.view, b, i, h, back);
                for (x = 0; x < n[3]; x++) {
                    assert_true(isnan(back[x])); /* nobody wrote here before: rows are disjoint */
                    row[x] = (float)(++written % 2048);
                }
                tensor_write_row(&s.view, b, i, h, row);
                tensor_read_row(&s.view, b, i, h, back);
                for (x = 0; x < n[3]; x++) {
                    assert_true(back[x] == dtype_round(dtype, row[x]));
                    assert_true(tensor_get(&s.view, first + x) == back[x]);
                    tensor_set(&s.view, first + x, back[x]);
                }
            }
    assert_true(tensor_intact(&s) && tensor_fingerprint(&s) != before);
    /* the last element ends at the guard page; ODD may leave one */
    end = (int64_t)(s.base + s.bytes - (unsigned char *)s.view.data) -
          (largest + n[3]) * (int64_t)dtype_size(dtype);
    assert_true(end >= 0 && end <= (layout == LAYOUT_ODD ? (int64_t)dtype_size(dtype) : 0));
    s.base[-1] = 0; /* a byte in front of everything */
    assert_false(tensor_intact(&s));
    tensor_poison(&s);
    assert_true(tensor_intact(&s) && tensor_fingerprint(&s) == before);
    tensor_free(&s);
    assert_null(s.mapping);
}

static void storage_of_all_layouts(void **state)
{
    static const int64_t size[3] = {1, 2, 5};
    int dtype, layout, t;
    (void)state;
    for (dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
        for (layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++)
            for (t = 0; t < 81; t++) {
                const int64_t n[4] = {size[t % 3], size[t / 3 % 3], size[t / 9 % 3],
                                      size[t / 27] + t % 4};
                exercise_storage((AttnDtype)dtype, (TensorLayout)layout, n);
            }
}

static void strides_of_layouts(void **state)
{
    static const int64_t stride[4][3] = {
        [LAYOUT_BSHD] = {3 * 4 * 8, 4 * 8, 8}, /* B=2 N=3 H=4 d=8 */
        [LAYOUT_SBHD] = {4 * 8, 2 * 4 * 8, 8},
        [LAYOUT_BHSD] = {4 * 3 * 8, 8, 3 * 8},
        [LAYOUT_ODD] = {3 * 4 * 11, 4 * 11, 11},
    };
    int layout;
    (void)state;
    for (layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++) {
        Storage s;
        assert_int_equal(tensor_new(&s, ATTN_F32, (TensorLayout)layout, 2, 3, 4, 8), 0);
        assert_memory_equal(s.view.stride, stride[layout], sizeof stride[layout]);
        tensor_free(&s);
    }
}

/* Any one byte that belongs to no element must be missed; any byte at all changes the print. */
static void every_byte_is_watched(void **state)
{
    Storage s;
    size_t at, gaps = 0;
    uint64_t print;
    (void)state;
    assert_int_equal(tensor_new(&s, ATTN_F16, LAYOUT_ODD, 2, 3, 2, 6), 0);
    print = tensor_fingerprint(&s);
    for (at = 0; at < s.bytes; at++) {
        s.base[at] ^= 0x10;
        gaps += (size_t)!tensor_intact(&s);
        assert_true(tensor_fingerprint(&s) != print);
        s.base[at] ^= 0x10;
    }
    assert_true(tensor_intact(&s) && tensor_fingerprint(&s) == print);
    assert_int_equal(gaps, s.bytes - (size_t)tensor_count(&s.view) * 2);
    tensor_free(&s);
}

/* Does reading or writing this byte kill the process? Asked of a child. */
static int touch_faults(volatile unsigned char *p, int write_it)
{
    int status = 0;
    pid_t child;
    fflush(NULL);
    child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* neither cmocka nor a sanitizer may catch it */
        signal(SIGBUS, SIG_DFL);
        if (write_it)
            *p = 1;
        else
            (void)*p;
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : WIFSIGNALED(status) ? 1 : -1;
}

static void guard_pages(void **state)
{
    Storage s;
    (void)state;
    assert_int_equal(tensor_new(&s, ATTN_BF16, LAYOUT_BSHD, 1, 7, 1, 3), 0);
    assert_int_equal(touch_faults(s.base + s.bytes - 1, 1), 0);
    assert_int_equal(touch_faults(s.base + s.bytes, 0), 1);
    assert_int_equal(touch_faults(s.base + s.bytes, 1), 1);
    assert_int_equal(touch_faults(s.base - 1, 0), 0); /* the canary may be read; writing shows */
    assert_int_equal(touch_faults(s.mapping, 0), 1);
    tensor_free(&s);
}

static void impossible_sizes(void **state)
{
    static const int64_t big = INT64_MAX, half = INT64_C(1) << 62, root = INT64_C(1) << 32;
    const int64_t size[][4] = {
        {0, 1, 1, 1},         {1, 0, 1, 1},
        {1, 1, -1, 1},        {1, 1, 1, 0},
        {big, 1, 1, 1},       {1, 1, 1, big},
        {big, big, big, big}, {root, root, 1, 1},
        {1, root, 1, root},   {half, 2, 1, 1},
        {1, 1, 2, half},      {1, 1, half, 1},
        {1, big / 4, 1, 1},   {1, 1, 1, big - 1},
        {-1, -1, 1, 1},       {half, 4, 1, 1},
        {INT64_MIN, 1, 1, 1}, {1 << 20, 1 << 20, 64, 1}, /* 2^46 elements: no such memory */
    };
    size_t t;
    int layout;
    (void)state;
    for (t = 0; t < sizeof size / sizeof size[0]; t++)
        for (layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++) {
            Storage s;
            assert_int_equal(tensor_new(&s, ATTN_F32, (TensorLayout)layout, size[t][0], size[t][1],
                                        size[t][2], size[t][3]),
                             -1);
            assert_true(s.mapping == NULL && s.view.data == NULL);
            tensor_free(&s); /* harmless */
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_patterns),           cmocka_unit_test(all_halfway_cases),
        cmocka_unit_test(random_floats),          cmocka_unit_test(corner_table),
        cmocka_unit_test(storage_of_all_layouts), cmocka_unit_test(strides_of_layouts),
        cmocka_unit_test(every_byte_is_watched),  cmocka_unit_test(guard_pages),
        cmocka_unit_test(impossible_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
