/* SPDX-License-Identifier: MIT
 *
 * test_model.c: the counting of visible pairs against asking every pair; the formulas of FLOPs and
 * bytes against numbers worked out by hand.
 */
#include "oracle_case.h"

#include "models/model.h"

static int64_t count_pairs(const AttnArgs *a)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < a->shape.Nq; i++)
        for (int64_t j = 0; j < a->shape.Nk; j++)
            pairs += attn_sees(a, i, j);
    return pairs;
}

TEST(pairs_of_every_option)
{
    for (int n = 0; n < OPTION_COUNT; n++)
        for (int larger = 1; larger < 8; larger++) {
            Case *c = case_option(&options[n], ATTN_F32, larger, 1);
            assert_int_equal(count_pairs(&c->args), model_visible_pairs(&c->args));
            case_free(c);
        }
}

TEST(pairs_of_random_segments)
{
    const int64_t limits[] = {-1, 0, 1, 3, 7, 20, 1000};
    for (int n = 0; n < 5000; n++) {
        AttnSegment q[8], k[8], *const both[] = {q, k};
        AttnArgs a = {.shape = {1, 1, 1, 1 + case_random() % 30, 1 + case_random() % 30, 1}};
        uint8_t mask[900];
        for (int side = 0; side < 2; side++) {
            const int64_t N = side ? a.shape.Nk : a.shape.Nq, count = 1 + case_random() % 8;
            int64_t first = 0;
            for (int64_t s = 0; s < count; s++) {
                const int64_t left = N - first;
                const int64_t length = s == count - 1 ? left : case_random() % (unsigned)(left + 1);
                both[side][s] = (AttnSegment){first, length, case_random() % 2,
                                              (int64_t)(case_random() % 40) - 20,
                                              (int64_t)(case_random() % 7) - 3};
                first += length;
            }
            *(side ? &a.positions_k : &a.positions_q) = attn_positions(both[side], count);
        }
        a.rule = (AttnRule){limits[case_random() % 7], limits[case_random() % 7]};
        for (int64_t e = 0; e < 900; e++)
            mask[e] = case_random() % 3 == 0;
        a.mask = n % 3 == 0 ? mask : NULL;
        assert_int_equal(count_pairs(&a), model_visible_pairs(&a));
    }
}

/* 10^6 tokens: only a count without N^2 steps ends in the time of this test. */
TEST(pairs_of_a_million)
{
    const int64_t N = 1000000;
    const AttnSegment whole = {0, N, 0, 0, 1};
    AttnArgs a = {.shape = {1, 1, 1, N, N, 64}, .rule = {-1, 0}};
    a.positions_q = a.positions_k = attn_positions(&whole, 1);
    assert_int_equal(N * (N + 1) / 2, model_visible_pairs(&a));
    a.rule = (AttnRule){99, 0};
    assert_int_equal(100 * N - 99 * 100 / 2, model_visible_pairs(&a));
    a.rule = (AttnRule){-1, -1};
    assert_int_equal(N * N, model_visible_pairs(&a));
}

TEST(formulas_by_hand)
{
    Case *c = case_new((AttnShape){2, 4, 2, 10, 20, 8}, ATTN_BF16, LAYOUT_BSHD, 1);
    const double q = 2 * 10 * 4 * 8 * 2, k = 2 * 20 * 2 * 8 * 2, lse = 2 * 4 * 10 * 4;
    const double scores = 2 * 4 * 10 * 20 * 4;
    assert_true(model_flops(&c->args, 0) == 4.0 * 2 * 4 * 8 * 200);
    assert_true(model_flops(&c->args, 1) == 10.0 * 2 * 4 * 8 * 200);
    assert_true(model_compulsory_bytes(&c->args, 0) == 2 * q + 2 * k + lse);
    assert_true(model_compulsory_bytes(&c->args, 1) == 4 * q + 4 * k + lse);
    assert_true(model_materialised_bytes(&c->args, 0) == 2 * q + 2 * k + lse + 4 * scores);
    assert_true(model_materialised_bytes(&c->args, 1) == 4 * q + 4 * k + lse + 6 * scores);
    /* 10 rows in tiles of 4 are 3 tiles; each query head reads its kv head anew: H/Hkv = 2 */
    assert_true(model_row_tiles_bytes(&c->args, 4) == 2 * q + 3 * 2 * 2 * k + lse);
    assert_true(model_softmax_bytes(3, 5, 2, 4) == 120);
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    assert_int_equal(155, model_visible_pairs(&c->args)); /* 11 + 12 + ... + 20 */
    case_free(c);
}

/* Loads and stores of each model on one head, as elements, worked out by hand. */
TEST(traffic_by_hand)
{
    /* 3 row tiles of 4, 2 key tiles of 16; 2 query heads share a kv head */
    Case *c = case_new((AttnShape){1, 2, 1, 10, 20, 8}, ATTN_BF16, LAYOUT_BSHD, 1);
    ModelTraffic t;
    t = model_standard_traffic(&c->args, 4);
    assert_true(t.loads == 2 * (10 * 8 + 3 * 2 * 20 * 8 + 2 * 200));
    assert_true(t.stores == 2 * (2 * 200 + 10 * 8 + 10));
    assert_true(t.load_bytes == 2 * (2 * (10 * 8 + 3 * 2 * 20 * 8) + 4 * 2 * 200));
    assert_true(t.store_bytes == 2 * (2 * 10 * 8 + 4 * (2 * 200 + 10)));
    /* packed: d = 8 becomes 16 channels of V, 20 keys become 32: 24 floats a key, 6 panels read */
    t = model_packed_traffic(&c->args, 4, 16);
    assert_true(t.loads == 2 * (10 * 8 + 20 * 8 + 6 * 16 * 24));
    assert_true(t.stores == 2 * (10 * 8 + 10) + 32 * 24);
    assert_true(t.load_bytes == 2 * (2 * (10 * 8 + 20 * 8) + 4 * 6 * 16 * 24));
    assert_true(t.store_bytes == 2 * (2 * 10 * 8 + 4 * 10) + 4 * 32 * 24);
    /* lower right: query i sees keys 0 .. i+10, so rows 0-3 (to 13) need one panel, the rest two */
    t = model_split_traffic(&c->args, 4, 16, 3);
    assert_true(t.loads == 2 * (3 * 10 * 8 + 3 * 2 * 20 * 8 + 3 * 10 * 9));
    assert_true(t.stores == 2 * (3 * 10 * 9 + 10 * 8 + 10));
    assert_true(t.load_bytes == 2 * (2 * (3 * 10 * 8 + 3 * 2 * 20 * 8) + 4 * 3 * 10 * 9));
    assert_true(t.store_bytes == 2 * (4 * 3 * 10 * 9 + 2 * 10 * 8 + 4 * 10));
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    t = model_split_traffic(&c->args, 4, 16, 1);
    assert_true(t.load_bytes == model_fa2_traffic(&c->args, 4, 16, 0).load_bytes);
    assert_true(t.store_bytes == model_fa2_traffic(&c->args, 4, 16, 0).store_bytes);
    t = model_packed_traffic(&c->args, 4, 16);
    assert_true(t.loads == 2 * (10 * 8 + 20 * 8 + 5 * 16 * 24));
    t = model_fa2_traffic(&c->args, 4, 16, 0);
    assert_true(t.loads == 2 * (10 * 8 + 2 * (16 + 20 + 20) * 8));
    case_free(c);
}

/* Row blocks of 4, tiles of 2 keys, 10 queries at positions 10 .. 19 of 20 keys, two heads. */
TEST(rolling_traffic_by_hand)
{
    Case *c = case_new((AttnShape){1, 2, 1, 10, 20, 8}, ATTN_BF16, LAYOUT_BSHD, 1);
    ModelTraffic t;
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    c->args.rule.left = 3;
    /* one run a head, from the tile of key 7 to the last key: 14 keys */
    t = model_rolling_traffic(&c->args, 4, 2, 1);
    assert_true(t.loads == 2 * (10 * 8 + 2 * 14 * 8) && t.stores == 2 * (10 * 8 + 10));
    assert_true(t.load_bytes == 2 * t.loads && t.store_bytes == 2 * (2 * 10 * 8 + 4 * 10));
    assert_true(model_rolling_traffic(&c->args, 4, 2, 2).loads == t.loads); /* a head each */
    /* shares of 1, 2, 1, 2 row blocks: rows 0-3 load keys 6 .. 13, rows 4-9 keys 10 .. 19 */
    assert_true(model_rolling_traffic(&c->args, 4, 2, 4).loads == 2 * (10 * 8 + 2 * 18 * 8));
    c->args.rule.left = 0; /* queries see themselves: keys 10 .. 19 */
    assert_true(model_rolling_traffic(&c->args, 4, 2, 1).loads == 2 * (10 * 8 + 2 * 10 * 8));
    case_align(c, ATTN_MASK_CAUSAL_UPPER_LEFT);
    c->args.rule.left = 1; /* tile -1 is not there, the last one is the third after row 8's */
    assert_true(model_rolling_traffic(&c->args, 4, 2, 1).loads == 2 * (10 * 8 + 2 * 12 * 8));
    case_free(c);
}
