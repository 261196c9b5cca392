/* SPDX-License-Identifier: MIT
 *
 * test_exp_rows.c: row_max and softmax_exp_row on every instruction set of this CPU: all short
 * lengths before a guard page, non-finite elements at every place, long sums, the choice of a copy.
 *
 * (The error of exp itself is proved in test_exp.c.)
 */
#include <math.h>

#include "unit.h"

#include "tensor.h"
#include "units/exp.h"
#include "units/exp_isa.h"
#include "units/exp_rows.h"
#include "units/vector.h"

/* Is found within the bound of exp.h? An ulp is the distance to the next float away from 0. */
static int within_bound(float found, double want)
{
    const float near = (float)want;
    const double ulp = (double)nextafterf(near, INFINITY) - (double)near;
    return fabs((double)found - want) <= EXP_F32_MAX_ULP * ulp;
}

/* A row of n floats whose last byte stands before a guard page: reading on is a crash. */
static float *guarded_row(Storage *s, int64_t n)
{
    assert_int_equal(tensor_new(s, ATTN_F32, LAYOUT_BSHD, 1, 1, 1, n), 0);
    return s->view.data;
}

static void rows_of_length(const ExpIsa *isa, int64_t n)
{
    Storage S, P;
    float *s = guarded_row(&S, n), *p = guarded_row(&P, n), max = -INFINITY, sum, again;
    double want_sum = 0.0;
    for (int64_t c = 0; c < n; c++) {
        s[c] = (float)((c * 7919 + 13) % 2003) * 0.02f - 30.0f;
        max = s[c] > max ? s[c] : max;
    }
    assert_true(isa->max(s, n) == max);
    sum = isa->exp_row(s, p, n, max);
    for (int64_t c = 0; c < n; c++) {
        const float shifted = s[c] - max;
        const double want = exp((double)shifted);
        want_sum += want;
        assert_true(within_bound(p[c], want));
    }
    assert_true(fabs(sum - want_sum) <= 4e-7 * want_sum);
    assert_true(tensor_intact(&P) && tensor_intact(&S));
    again = isa->exp_row(s, s, n, max); /* in place: the same bits */
    assert_memory_equal(s, p, (size_t)n * sizeof(float));
    assert_true(again == sum);
    tensor_free(&S);
    tensor_free(&P);
}

TEST(row_lengths)
{
    static const int64_t more[] = {127, 128, 129, 300, 1023, 1024, 1025, 1056, 2047, 2049, 5000};
    for (int t = 0; t < exp_isa_count; t++)
        if (exp_isa_usable(exp_isa_table[t])) {
            for (int64_t n = 1; n <= 100; n++)
                rows_of_length(exp_isa_table[t], n);
            for (size_t k = 0; k < sizeof more / sizeof more[0]; k++)
                rows_of_length(exp_isa_table[t], more[k]);
            assert_true(exp_isa_table[t]->max(NULL, 0) == -INFINITY);
            assert_true(exp_isa_table[t]->exp_row(NULL, NULL, 0, -INFINITY) == 0.0f);
        }
}

/* Non-finite elements at every place of a row of n. */
static void odd_elements(const ExpIsa *isa, int n)
{
    float s[200], p[200];
    assert_true(n <= 200);
    for (int at = 0; at < n; at++) {
        for (int c = 0; c < n; c++)
            s[c] = -INFINITY;
        assert_true(isa->max(s, n) == -INFINITY);
        assert_true(isa->exp_row(s, p, n, -INFINITY) == 0.0f);
        for (int c = 0; c < n; c++)
            assert_int_equal(exp_bits_of(p[c]), 0); /* zeros, never NaN */
        s[at] = -1e4f;                              /* one visible key, far from 0 */
        assert_true(isa->max(s, n) == -1e4f && isa->exp_row(s, p, n, -1e4f) == 1.0f);
        for (int c = 0; c < n; c++)
            assert_true(p[c] == (c == at ? 1.0f : 0.0f));
        s[at] = NAN;
        assert_true(isnan(isa->max(s, n)));
        assert_true(isnan(isa->exp_row(s, p, n, 0.0f)) && isnan(p[at]));
        assert_true(isnan(isa->exp_row(s, p, n, -INFINITY)));
        assert_true(isnan(isa->exp_row(s, p, n, NAN)));
        s[at] = INFINITY;
        assert_true(isa->max(s, n) == INFINITY && isnan(isa->exp_row(s, p, n, INFINITY)));
    }
}

TEST(row_corners)
{
    for (int t = 0; t < exp_isa_count; t++)
        if (exp_isa_usable(exp_isa_table[t])) {
            odd_elements(exp_isa_table[t], 1);
            odd_elements(exp_isa_table[t], 17);
            odd_elements(exp_isa_table[t], 200);
        }
}

/* One float accumulator would stop growing at 2^24; the sum of a long row must not. */
TEST(long_row_sum)
{
    const int64_t n = (INT64_C(1) << 24) + (INT64_C(1) << 22) + 5;
    float *s = malloc((size_t)n * sizeof *s);
    assert_non_null(s);
    for (int t = 0; t < exp_isa_count; t++)
        if (exp_isa_usable(exp_isa_table[t])) {
            const double want = (double)n * exp((double)-0.1f);
            for (int64_t c = 0; c < n; c++)
                s[c] = -0.1f;
            assert_true(fabs(exp_isa_table[t]->exp_row(s, s, n, 0.0f) - want) < 1e-6 * want);
        }
    free(s);
}

TEST(choice_of_isa)
{
    const char *const asked = getenv("ATTN_ISA"), *const got = exp_isa();
    const float row[] = {1.0f, 3.0f, 2.0f};
    float p[3];
    assert_string_equal(exp_isa_choose("portable")->name, "portable");
    assert_ptr_equal(exp_isa_choose("sse9"), exp_isa_choose(NULL));
    assert_ptr_equal(exp_isa_choose(""), exp_isa_choose(NULL));
    assert_true(exp_isa_usable(exp_isa_choose("avx2")));
    assert_string_not_equal(exp_isa_choose("avx2")->name, "avx512");
    assert_string_equal(got, exp_isa_choose(asked)->name);
    assert_true(row_max(row, 3) == 3.0f);
    assert_true(fabsf(softmax_exp_row(row, p, 3, 3.0f) - 1.50321472f) < 1e-6f && p[1] == 1.0f);
}
