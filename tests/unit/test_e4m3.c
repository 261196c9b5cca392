/* SPDX-License-Identifier: MIT
 *
 * test_e4m3.c: bytes as numbers, what a block of them holds of a tensor, the model of a tensor
 * core's sum, and the bound of attention with P in e4m3, whose root mean square must refuse a
 * dropped key.
 */
#include "honest_attention.h"

#include "e4m3.h"
#include "harness/check/check.h"
#include "problem.h"
#include "simt/tensor_sum.h"

#include "../gpu/tensor_sum_cases.h"

TEST(bytes_are_numbers)
{
    float before = -1;
    for (int byte = 0; byte < 256; byte++) {
        const float x = f32_from_e4m3((uint8_t)byte);
        if ((byte & 0x7F) == 0x7F) {
            assert_true(isnan(x));
            continue;
        }
        assert_int_equal(e4m3_from_f32(x), byte);
        assert_true(f32_from_e4m3((uint8_t)(byte ^ 0x80)) == -x);
        if (byte < 0x80) {
            assert_true(x > before);
            before = x;
        }
    }
    assert_true(before == 448 && f32_from_e4m3(1) == 0x1p-9f && f32_from_e4m3(0x38) == 1);
    assert_int_equal(e4m3_from_f32(NAN), 0x7F);
    assert_int_equal(e4m3_from_f32(1e30f), 0x7E);
    assert_int_equal(e4m3_from_f32(-INFINITY), 0xFE);
}

/* Between neighbours: to the nearer, and from the middle to the even one. */
TEST(rounding_is_to_the_nearest)
{
    for (int byte = 0; byte < 0x7E; byte++) {
        const float low = f32_from_e4m3((uint8_t)byte), high = f32_from_e4m3((uint8_t)(byte + 1));
        const float middle = (low + high) / 2;
        assert_int_equal(e4m3_from_f32(nextafterf(middle, 0)), byte);
        assert_int_equal(e4m3_from_f32(nextafterf(middle, 1000)), byte + 1);
        assert_int_equal(e4m3_from_f32(middle), byte % 2 ? byte + 1 : byte);
    }
}

TEST(scale_is_the_smallest_that_cuts_nothing)
{
    for (int n = 0; n < 1000; n++) {
        const float x = ldexpf(1 + (float)(case_random() % 1000) / 1000, n % 200 - 80);
        const float scale = e4m3_scale(x);
        int exponent;
        assert_true(frexpf(scale, &exponent) == 0.5f);
        assert_true(x / scale <= 448 && x / scale > 224);
    }
    assert_true(e4m3_scale(0) == 1 && e4m3_scale(448) == 1 && e4m3_scale(449) == 2);
}

/* Rounded once, a tensor is what bytes and scales say, in any layout, and stays so. */
TEST(a_rounded_tensor_is_its_bytes)
{
    for (int layout = 0; layout < 4; layout++) {
        const int64_t B = 2, N = 1100, H = 3, d = 8, blocks = (N + E4M3_BLOCK - 1) / E4M3_BLOCK;
        Storage s;
        uint8_t bytes[2 * 1100 * 3 * 8];
        float scales[2 * 3 * 3];
        assert_int_equal(0, tensor_new(&s, ATTN_E4M3, (TensorLayout)layout, B, N, H, d));
        for (int64_t b = 0; b < B; b++)
            for (int64_t n = 0; n < N; n++)
                for (int64_t h = 0; h < H; h++)
                    for (int64_t x = 0; x < d; x++)
                        case_set(&s.view, b, n, h, x,
                                 ldexpf(case_normal(), (int)(n / E4M3_BLOCK * 3 - h * 5)));
        tensor_e4m3(&s.view, E4M3_BLOCK, NULL, NULL);
        tensor_e4m3(&s.view, E4M3_BLOCK, bytes, scales);
        assert_true(tensor_intact(&s));
        for (int64_t b = 0; b < B; b++)
            for (int64_t n = 0; n < N; n++)
                for (int64_t h = 0; h < H; h++)
                    for (int64_t x = 0; x < d; x++) {
                        const float scale = scales[(b * H + h) * blocks + n / E4M3_BLOCK];
                        const uint8_t byte = bytes[((b * N + n) * H + h) * d + x];
                        assert_true(case_get(&s.view, b, n, h, x) == f32_from_e4m3(byte) * scale);
                    }
        assert_true(scales[0] < scales[1] && scales[blocks] < scales[0]);
        tensor_free(&s);
    }
}

/* --- the model of a sum ------------------------------------------------------------------------*/

static float sum_of(const float *a, const float *b, int count, float C)
{
    TensorSumNumber A[32], B[32];
    for (int k = 0; k < 32; k++) {
        A[k] = tensor_sum_number(k < count ? e4m3_from_f32(a[k]) : 0);
        B[k] = tensor_sum_number(k < count ? e4m3_from_f32(b[k]) : 0);
    }
    return tensor_sum(A, B, C);
}

TEST(a_short_sum_is_exact)
{
    const float a[] = {1, -2, 0.5f, 448}, b[] = {3, 1.5f, -8, 2};
    assert_true(sum_of(a, b, 3, 0) == 3 - 3 - 4);
    assert_true(sum_of(a, b, 4, 8) == 3 - 3 - 4 + 896 + 8);
    assert_true(sum_of(a, b, 0, 5) == 5);
}

/* Beside 2^k only multiples of 2^(k - 13) are left: what is cut off goes towards zero. */
TEST(low_bits_fall_off)
{
    const float one[] = {1, 1}, small[] = {0x1p-6f, 0x1p-7f}, minus[] = {-1, -1};
    assert_true(sum_of(one, small, 1, 0x1p7f) == 0x1p7f + 0x1p-6f);
    assert_true(sum_of(one, small, 1, 0x1p8f) == 0x1p8f);
    assert_true(sum_of(minus, small, 1, 0x1p8f) == 0x1p8f);
    assert_true(sum_of(one, small, 2, 0x1p7f) == 0x1p7f + 0x1p-6f); /* each is cut by itself */
    assert_true(sum_of(one, small, 0, 1 + 0x1p-13f + 0x1p-14f) == 1 + 0x1p-13f);
    assert_true(sum_of(one, one, 1, 1 + 0x1p-13f) == 2); /* the sum is cut, too */
    assert_true(sum_of(minus, one, 1, -1 - 0x1p-13f) == -2);
}

/* tests/gpu/record_tensor_sum.cu recorded what an H200 answers. */
TEST(model_is_the_card_bit_by_bit)
{
    static uint8_t words[4 * TENSOR_SUM_CASES];
    FILE *from = fopen(SOURCE_ROOT "/tests/gpu/tensor_sum_h200.u32", "rb");
    assert_non_null(from);
    assert_int_equal(fread(words, 4, TENSOR_SUM_CASES, from), TENSOR_SUM_CASES);
    assert_int_equal(fgetc(from), EOF);
    fclose(from);
    for (int i = 0; i < TENSOR_SUM_CASES; i++) {
        uint8_t a[32], b[32];
        TensorSumNumber A[32], B[32];
        float C;
        tensor_sum_case(i, a, b, &C);
        for (int k = 0; k < 32; k++) {
            A[k] = tensor_sum_number(a[k]);
            B[k] = tensor_sum_number(b[k]);
        }
        const float sum = tensor_sum(A, B, C);
        uint32_t bits, card = 0;
        memcpy(&bits, &sum, sizeof bits);
        for (int byte = 3; byte >= 0; byte--)
            card = card << 8 | words[4 * i + byte];
        if (bits != card)
            fail_msg("case %d (kind %d): the model says %08x, the card %08x", i, i % 8, bits, card);
    }
}

/* --- the bound ---------------------------------------------------------------------------------*/

/* The score of a pair as a card's steps of 32 channels sum it up. scale: of Q's, K's bytes. */
static float card_score(const AttnArgs *a, int64_t h, int64_t i, int64_t j, const float *scale)
{
    float sum = 0;
    for (int64_t x = 0; x < a->shape.d; x += 32) {
        TensorSumNumber A[32], B[32];
        for (int k = 0; k < 32; k++) {
            A[k] = tensor_sum_number(e4m3_from_f32(case_get(&a->Q, 0, i, h, x + k) / scale[0]));
            B[k] = tensor_sum_number(e4m3_from_f32(case_get(&a->K, 0, j, h, x + k) / scale[1]));
        }
        sum = tensor_sum(A, B, sum);
    }
    return sum * scale[0] * scale[1] * a->scale;
}

/* Attention with P in e4m3, m 4 powers of two below the maximum, as v15 does it; without one key of
 * each row: -1, none. scales: of Q and K, [2] each; or NULL, scores are honest. */
static void bytes_run(const Case *c, int64_t dropped, float (*scales)[2])
{
    const AttnArgs *a = &c->args;
    const Honest way = {1, 0, 0, 0};
    for (int64_t h = 0; h < a->shape.H; h++)
        for (int64_t i = 0; i < a->shape.Nq; i++) {
            double O[128] = {0}, l = 0, m = -INFINITY;
            float S[400], slope;
            for (int64_t j = 0; j < a->shape.Nk; j++) {
                const float scale[2] = {scales ? scales[0][h] : 1, scales ? scales[1][h] : 1};
                S[j] = scales ? card_score(a, h, i, j, scale)
                              : honest_score(&way, a, 0, h, i, j, &slope);
                m = fmax(m, S[j]);
            }
            for (int64_t j = 0; j < a->shape.Nk; j++) {
                const double P = j == dropped ? 0 : 16 * exp(S[j] - m);
                l += P;
                for (int64_t x = 0; x < a->shape.d; x++)
                    O[x] += f32_from_e4m3(e4m3_from_f32((float)P)) * case_get(&a->V, 0, j, h, x);
            }
            a->lse[h * a->shape.Nq + i] = (float)(m + log(l / 16));
            for (int64_t x = 0; x < a->shape.d; x++)
                case_set(&a->O, 0, i, h, x, (float)(O[x] / l));
        }
}

TEST(root_mean_square_refuses_a_dropped_key)
{
    Case *c = case_new((AttnShape){1, 2, 2, 120, 250, 128}, ATTN_E4M3, LAYOUT_BSHD, 1);
    const Tensor *all[] = {&c->args.Q, &c->args.K, &c->args.V};
    for (int t = 0; t < 3; t++) {
        for (int64_t n = 0; n < all[t]->shape[1]; n++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t x = 0; x < 128; x++)
                    case_set(all[t], 0, n, h, x, case_normal());
        tensor_e4m3(all[t], E4M3_BLOCK, NULL, NULL);
    }
    Oracle o = oracle_of(&c->args, 0, 1);
    bytes_run(c, -1, NULL);
    Check check = check_of(&c->args, &o, 0, 16);
    assert_true(check.pass && check.array[CHECK_O].rms_ratio > 0.3);
    bytes_run(c, 200, NULL);
    check = check_of(&c->args, &o, 0, 16);
    assert_false(check.pass);
    assert_true(check.array[CHECK_O].rms_ratio > 1);
    assert_int_equal(check.array[CHECK_O].off, 0); /* element by element it would pass */
    oracle_free(&o);
    case_free(c);
}

/* The first 32 channels sum up to 1.53 * 2^22. Beside that each later product, 480, is lost, all in
 * one direction. */
TEST(bound_holds_where_all_small_products_are_lost)
{
    static uint8_t bytes[250 * 2 * 128];
    Case *c = case_new((AttnShape){1, 2, 2, 60, 250, 128}, ATTN_E4M3, LAYOUT_BSHD, 1);
    const Tensor *all[] = {&c->args.Q, &c->args.K, &c->args.V};
    float scales[3][2];
    for (int t = 0; t < 3; t++) {
        for (int64_t n = 0; n < all[t]->shape[1]; n++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t x = 0; x < 128; x++)
                    case_set(all[t], 0, n, h, x,
                             t == 2   ? case_normal()
                             : x < 32 ? 448 * 0x1p-9f
                                      : (float)(20 + 4 * t) * 0x1p-9f);
        tensor_e4m3(all[t], E4M3_BLOCK, NULL, NULL);
        tensor_e4m3(all[t], E4M3_BLOCK, bytes, scales[t]);
    }
    Oracle o = oracle_of(&c->args, 0, 1);
    bytes_run(c, -1, scales);
    const Check check = check_of(&c->args, &o, 0, 16);
    assert_true(check.pass && check.array[CHECK_LSE].worst_ratio > 0.3);
    oracle_free(&o);
    case_free(c);
}
