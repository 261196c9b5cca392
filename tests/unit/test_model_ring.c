/* SPDX-License-Identifier: MIT
 *
 * test_model_ring.c: model_ring_bytes.h against the closed forms of equal blocks, and numbers
 * worked out by hand. (Against what the methods really send: test_ring_bytes.c and, for thousands
 * of plans, test_ring_cost.c.)
 */
#include "oracle_case.h"

#include "models/model_ring_bytes.h"

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
    for (int l = 0; l < RING_LAYOUTS; l++)
        assert_int_equal(l, ring_layout_from_name(ring_layout_name((RingLayout)l)));
    assert_int_equal(-1, ring_method_from_name("rings"));
    assert_int_equal(-1, ring_layout_from_name(""));
    assert_string_equal("burst-double", ring_method_name(RING_METHOD_BURST_DOUBLE));
    assert_string_equal("dV", ring_tensor_name(RING_DV));
    assert_string_equal("delta", ring_tensor_name(RING_DELTA));
    assert_string_equal("?", ring_tensor_name(RING_TENSORS));
}
