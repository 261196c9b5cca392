/* SPDX-License-Identifier: MIT
 *
 * test_fill.c: the random input is the one it says it is, on every machine and in every order.
 *
 * The known answers are what makes a seed in a bug report worth something: they may never change.
 */
#include <math.h>

#include "unit.h"

#include "harness/bench/bench.h"
#include "harness/io/fill.h"
#include "tensor.h"

/* Made once with Python's integers, from the comments of fill.h: not by the code that is tested. */
TEST(known_answers)
{
    static const struct {
        uint64_t seed, index;
        int tensor;
        FillDist dist;
        float value;
    } known[] = {
        {UINT64_C(0), UINT64_C(0), 1, FILL_NORMAL, -141192 * 0x1p-16f},
        {UINT64_C(1), UINT64_C(0), 1, FILL_NORMAL, 10728 * 0x1p-16f},
        {UINT64_C(1), UINT64_C(1), 1, FILL_NORMAL, -49954 * 0x1p-16f},
        {UINT64_C(1), UINT64_C(0), 2, FILL_NORMAL, -80644 * 0x1p-16f},
        {UINT64_C(42), UINT64_C(1099511627783), 3, FILL_NORMAL, -97359 * 0x1p-16f},
        {UINT64_C(18446744073709551615), UINT64_C(18446744073709551615), 4, FILL_NORMAL,
         -187117 * 0x1p-16f},
        {UINT64_C(1), UINT64_C(5), 1, FILL_LARGE, -784992 * 0x1p-16f},
        {UINT64_C(1), UINT64_C(5), 1, FILL_OUTLIER, -98124 * 0x1p-16f},
        {UINT64_C(5), UINT64_C(1076), 2, FILL_NORMAL, 78627 * 0x1p-16f},
        {UINT64_C(5), UINT64_C(1076), 2, FILL_OUTLIER, 144277 * 0x1p-16f},
    };
    for (size_t t = 0; t < sizeof known / sizeof known[0]; t++)
        assert_true(fill_value(known[t].seed, known[t].tensor, known[t].index, known[t].dist) ==
                    known[t].value);
}

#define SAMPLES 1000000

/* One value in a thousand is an outlier; how large, and what the normal ones are like, follows from
 * the known answers. */
TEST(other_distributions)
{
    uint64_t t, different = 0;
    float most = 0.0f;
    for (t = 0; t < SAMPLES; t++) {
        const float normal = fill_value(1, FILL_K, t, FILL_NORMAL);
        const float value = fill_value(1, FILL_K, t, FILL_OUTLIER);
        different += value != normal;
        most = fabsf(value) > most ? fabsf(value) : most;
        assert_true(fill_value(1, FILL_K, t, FILL_LARGE) == 8.0f * normal);
    }
    assert_true(different > 840 && different < 1160 && most > 25.0f); /* 1000 +- 5 * 31.6 */
}

/* V is K and dO is Q, of N(0,1); the rest is as without. */
TEST(paired_tensors)
{
    for (uint64_t index = 0; index < 1000; index++) {
        for (int tensor = FILL_Q; tensor <= FILL_WK; tensor++) {
            const int as = tensor == FILL_V ? FILL_K : tensor == FILL_DO ? FILL_Q : tensor;
            assert_true(fill_value(5, tensor, index, FILL_PAIRED) ==
                        fill_value(5, as, index, FILL_NORMAL));
        }
    }
}

/* The tensor holds fill_value of the logical index, whatever its strides and dtype. */
TEST(tensors_of_all_layouts)
{
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
        for (int layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++) {
            Storage s;
            uint64_t index = 0;
            assert_int_equal(tensor_new(&s, (AttnDtype)dtype, (TensorLayout)layout, 2, 3, 4, 5), 0);
            fill_tensor(&s.view, FILL_V, 9, FILL_OUTLIER);
            for (int64_t b = 0; b < 2; b++)
                for (int64_t n = 0; n < 3; n++)
                    for (int64_t h = 0; h < 4; h++)
                        for (int64_t x = 0; x < 5; x++, index++)
                            assert_true(tensor_get(&s.view, tensor_offset(&s.view, b, n, h) + x) ==
                                        dtype_round((AttnDtype)dtype,
                                                    fill_value(9, FILL_V, index, FILL_OUTLIER)));
            assert_true(tensor_intact(&s));
            tensor_free(&s);
        }
}

/* Whole rows are made at once, 256 channels at a time, and each distribution in the way that suits
 * it: the values are those of fill_value all the same. */
TEST(rows_of_all_distributions)
{
    static const int64_t channels[] = {1, 7, 255, 256, 257, 600};
    for (size_t n = 0; n < sizeof channels / sizeof *channels; n++)
        for (int dist = FILL_NORMAL; dist <= FILL_PAIRED; dist++)
            for (int which = FILL_Q; which <= FILL_DO; which++) {
                const int64_t d = channels[n];
                Storage s;
                assert_int_equal(tensor_new(&s, ATTN_F32, LAYOUT_BHSD, 1, 3, 2, d), 0);
                fill_tensor(&s.view, (FillTensor)which, 5, (FillDist)dist);
                for (int64_t index = 0; index < 6 * d; index++) {
                    const int64_t at = tensor_offset(&s.view, 0, index / d / 2, index / d % 2);
                    assert_true(tensor_get(&s.view, at + index % d) ==
                                fill_value(5, which, (uint64_t)index, (FillDist)dist));
                }
                tensor_free(&s);
            }
}

/* Large enough for threads, with a number of tokens that they cannot share evenly. */
TEST(threads_change_nothing)
{
    static const int threads[] = {1, 2, 7};
    uint64_t print[3];
    for (int n = 0; n < 3; n++) {
        Storage s;
        bench_set_threads(threads[n]);
        assert_int_equal(tensor_new(&s, ATTN_BF16, LAYOUT_BSHD, 1, 4099, 8, 129), 0);
        fill_tensor(&s.view, FILL_DO, 3, FILL_PAIRED);
        print[n] = tensor_fingerprint(&s);
        tensor_free(&s);
    }
    bench_set_threads(1);
    assert_true(print[0] == print[1] && print[0] == print[2]);
}

TEST(mask_rows)
{
    static uint8_t mask[500 * 300], again[500 * 300];
    int64_t masked = 0;
    fill_mask(mask, 500, 300, 3);
    fill_mask(again, 500, 300, 3);
    assert_memory_equal(mask, again, sizeof mask);
    fill_mask(again, 500, 300, 4);
    assert_memory_not_equal(mask, again, sizeof mask);
    for (int64_t i = 0; i < 500; i++) {
        int64_t row = 0;
        for (int64_t j = 0; j < 300; j++) {
            assert_true(mask[i * 300 + j] <= 1);
            row += mask[i * 300 + j];
        }
        assert_true(i % 5 == 4 ? row == 300 : row < 300);
        masked += i % 5 == 4 ? 0 : row;
    }
    assert_true(fabs((double)masked / (400 * 300) - 0.25) < 0.00625); /* five standard errors */
}
