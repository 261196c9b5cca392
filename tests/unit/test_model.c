/* SPDX-License-Identifier: MIT
 *
 * test_model.c: the counting of visible pairs against asking every pair; the formulas of FLOPs and
 * bytes against numbers worked out by hand.
 *
 * Of stage 06: model_ring_bytes.h against the closed forms of equal blocks, and numbers worked out
 * by hand. (Against what the methods really send: test_ring_bytes.c and, for thousands of plans,
 * test_ring_cost.c.)
 */
#include "attn_pairs.h"
#include "oracle_case.h"

#include "harness/models/model.h"
#include "harness/models/model_ring_bytes.h"

TEST(pairs_of_every_option)
{
    for (int n = 0; n < OPTION_COUNT; n++)
        for (int larger = 1; larger < 8; larger++) {
            Case *c = case_option(&options[n], ATTN_F32, larger, 1);
            assert_int_equal(pairs_seen(&c->args), model_visible_pairs(&c->args));
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
        assert_int_equal(pairs_seen(&a), model_visible_pairs(&a));
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
    c->args.Q.dtype = ATTN_E4M3; /* Q, K and V are bytes, O is not */
    assert_true(model_compulsory_bytes(&c->args, 0) == 1.5 * q + k + lse);
    c->args.Q.dtype = ATTN_BF16;
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
    t = model_fa2_traffic(&c->args, 4, 16, 3);
    assert_true(t.loads == 2 * (3 * 10 * 8 + 3 * 2 * 20 * 8 + 3 * 10 * 9));
    assert_true(t.stores == 2 * (3 * 10 * 9 + 10 * 8 + 10));
    assert_true(t.load_bytes == 2 * (2 * (3 * 10 * 8 + 3 * 2 * 20 * 8) + 4 * 3 * 10 * 9));
    assert_true(t.store_bytes == 2 * (4 * 3 * 10 * 9 + 2 * 10 * 8 + 4 * 10));
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    t = model_packed_traffic(&c->args, 4, 16);
    assert_true(t.loads == 2 * (10 * 8 + 20 * 8 + 5 * 16 * 24));
    t = model_fa2_traffic(&c->args, 4, 16, 1);
    assert_true(t.loads == 2 * (10 * 8 + 2 * (16 + 20 + 20) * 8));
    c->args.Q.dtype = ATTN_E4M3;
    t = model_fa2_traffic(&c->args, 4, 16, 1);
    assert_true(t.load_bytes == t.loads && t.store_bytes == 2 * (2 * 10 * 8 + 4 * 10));
    c->args.Q.dtype = ATTN_BF16;
    case_free(c);
}

/* --- stage 06 ----------------------------------------------------------------------------------*/

static int64_t bytes_of(RingMethod method, RingPass pass, AttnShape s, int G, int nodes,
                        AttnDtype dtype, AttnDtype partials)
{
    int64_t n[64];
    RingModelCase c = {.method = method,
                       .ranks = G,
                       .nodes = nodes,
                       .hops_up = G - 1,
                       .shape = s,
                       .dtype = dtype,
                       .partials = partials,
                       .nq = n,
                       .nk = n};
    RingModelBytes b;
    int64_t first;
    for (int r = 0; r < G; r++)
        n[r] = s.Nq / G;
    b = model_ring_sent(&c, pass, 0);
    first = model_ring_total(&b);
    for (int r = 1; r < G; r++) { /* equal blocks: equal bytes */
        b = model_ring_sent(&c, pass, r);
        assert_int_equal(first, model_ring_total(&b));
    }
    return first;
}

/* The table in model_ring.c. */
TEST(closed_forms)
{
    for (int G = 1; G <= 16; G *= 2)
        for (int kv = 1; kv <= 16; kv *= 2) {
            const int64_t n = 10, d = 8, H = 16, b = 2, gb = 4, copies = kv > G ? kv / G : 1;
            const AttnShape s = {1, H, kv, n * G, n * G, d};
            const int64_t ring = 2 * (G - 1) * n * kv * d * b;
            const int64_t home = 2 * (G - 1) * n * kv * d * (b + gb);
            const int64_t burst =
                (G - 1) * n * H * (2 * d * b + 8) + (G > 1 ? G * n * H * d * gb : 0);
#define BYTES(method, pass)                                                                        \
    bytes_of(RING_METHOD_##method, RING_##pass, s, G, G > 2 ? 2 : 1, ATTN_BF16, ATTN_F32)
            assert_int_equal(ring, BYTES(RING, FORWARD));
            assert_int_equal(ring, BYTES(BURST, FORWARD));
            assert_int_equal(ring, BYTES(ALLGATHER, FORWARD));
            assert_int_equal(ring, BYTES(RING_DOUBLE, FORWARD));
            assert_int_equal(ring, BYTES(BURST_DOUBLE, FORWARD));
            assert_int_equal(home, BYTES(RING, BACKWARD));
            assert_int_equal(home, BYTES(ALLGATHER, BACKWARD));
            assert_int_equal(home, BYTES(RING_DOUBLE, BACKWARD));
            assert_int_equal(burst, BYTES(BURST, BACKWARD));
            assert_int_equal(burst, BYTES(BURST_DOUBLE, BACKWARD));
            assert_int_equal((G - 1) * n * (2 * H * d * b + 4 * H) / G +
                                 2 * (G - 1) * n * copies * d * b,
                             BYTES(ULYSSES, FORWARD));
            assert_int_equal((G - 1) * n * 2 * H * d * b / G + 2 * (G - 1) * n * copies * d * b,
                             BYTES(ULYSSES, BACKWARD));
#undef BYTES
        }
}

/* Megabytes worked out for 8192 tokens a rank, G = 8, d = 128, 32 heads, bf16. */
TEST(worked_numbers)
{
    const AttnShape mha = {1, 32, 32, 65536, 65536, 128}, gqa = {1, 32, 8, 65536, 65536, 128};
    const int64_t lse = 7 * 8192 / 8 * 32 * 4;
    const struct {
        RingMethod method;
        RingPass pass;
        AttnDtype sums;
        int64_t mha, gqa, exact_mha; /* in 0.1 MB; bytes */
    } rows[] = {
        {RING_METHOD_RING, RING_FORWARD, ATTN_F32, 9395, 2349, 939524096},
        {RING_METHOD_ULYSSES, RING_FORWARD, ATTN_F32, 2358, 1477, 234881024 + lse},
        {RING_METHOD_ULYSSES, RING_BACKWARD, ATTN_F32, 2349, 1468, 234881024},
        {RING_METHOD_RING, RING_BACKWARD, ATTN_BF16, 18790, 4698, 1879048192},
        {RING_METHOD_BURST, RING_BACKWARD, ATTN_BF16, 14911, 14911, 1491075072},
        {RING_METHOD_BURST, RING_BACKWARD, ATTN_F32, 20279, 20279, 2027945984},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const int64_t a =
            bytes_of(rows[n].method, rows[n].pass, mha, 8, 1, ATTN_BF16, rows[n].sums);
        const int64_t b =
            bytes_of(rows[n].method, rows[n].pass, gqa, 8, 1, ATTN_BF16, rows[n].sums);
        assert_int_equal(rows[n].exact_mha, a);
        assert_int_equal(rows[n].mha, (a + 50000) / 100000);
        assert_int_equal(rows[n].gqa, (b + 50000) / 100000);
    }
}

TEST(names)
{
    for (int m = 0; m < RING_METHODS; m++)
        assert_int_equal(m, ring_method_from_name(ring_method_name((RingMethod)m)));
    assert_int_equal(-1, ring_method_from_name("rings"));
    assert_string_equal("striped", ring_layout_name(RING_STRIPED));
    assert_string_equal("burst-double", ring_method_name(RING_METHOD_BURST_DOUBLE));
    assert_string_equal("dV", ring_tensor_name(RING_DV));
    assert_string_equal("delta", ring_tensor_name(RING_DELTA));
    assert_string_equal("results", ring_tensor_name(RING_TENSORS));
    assert_string_equal("?", ring_tensor_name((RingTensor)(RING_TENSORS + 1)));
}
