/* SPDX-License-Identifier: MIT
 *
 * test_ring_map.c: the formulas for any number of GPUs against the timetables played through, where
 * both can be had; and against the thresholds of the literature, worked out by hand.
 */
#include "oracle_case.h"

#include "planner/cost.h"

static double random_between(double low, double high)
{
    return low * pow(high / low, (double)(case_random() % 1001) / 1000);
}

static RingRates random_rates(void)
{
    RingRates r = {.flops = {random_between(1e11, 1e13), random_between(1e11, 1e13)},
                   .masked_keys = case_random() % 64,
                   .call_s = random_between(1e-8, 1e-5),
                   .memory = random_between(1e11, 1e13)};
    for (int link = 0; link < 2; link++) {
        r.latency[link] = random_between(1e-8, 1e-5);
        r.bandwidth[link] = random_between(1e9, 1e12);
    }
    r.bandwidth[RING_OUTER] = fmin(r.bandwidth[RING_OUTER], r.bandwidth[RING_INNER]);
    r.latency[RING_OUTER] = fmax(r.latency[RING_OUTER], r.latency[RING_INNER]);
    return r;
}

/* Both passes by the player. */
static void play(const RingMapCase *c, const RingRates *rates, double ms[2])
{
    const AttnSegment tokens = {0, c->n * c->ranks, 0, 0, 1};
    AttnArgs args = {.shape = {1, c->H, c->Hkv, tokens.length, tokens.length, c->d},
                     .rule = {-1, c->causal ? 0 : -1},
                     .positions_q = attn_positions(&tokens, 1),
                     .positions_k = attn_positions(&tokens, 1)};
    const RingSetup setup = {.method = c->method,
                             .layout = c->causal ? RING_ZIGZAG : RING_CONTIGUOUS,
                             .ranks = (int)c->ranks,
                             .nodes = (int)c->nodes};
    RingPrediction p;
    RingPlan plan;
    char why[256];
    args.Q.dtype = c->dtype;
    args.dO.data = &args;
    assert_int_equal(0, ring_plan_make(&plan, &args, &setup, why));
    assert_int_equal(0, ring_predict(&p, &plan, rates));
    ms[0] = p.ms[0];
    ms[1] = p.ms[1];
    ring_prediction_free(&p);
    ring_plan_free(&plan);
}

/* The same numbers, but for the all-to-alls over several nodes: there the formula has both kinds of
 * links full all the time, and in the player messages wait for each other. */
TEST(formulas_and_player)
{
    for (int n = 0; n < 1500; n++) {
        const int ranks[] = {1, 2, 4, 8, 16}, G = ranks[case_random() % 5];
        const RingMapCase c = {.method = (RingMethod)(1 + n % (RING_METHOD_RING_MINIMAL - 1)),
                               .ranks = G,
                               .nodes = 1 << case_random() % 3,
                               .n = 8 << case_random() % 6,
                               .H = 16,
                               .Hkv = 16 >> case_random() % 4,
                               .d = 16 << case_random() % 3,
                               .causal = case_random() % 3 > 0,
                               .dtype = n % 5 ? ATTN_BF16 : ATTN_F32};
        const int all_to_all = c.method == RING_METHOD_ULYSSES || c.method == RING_METHOD_ALLGATHER;
        const int apart = all_to_all && c.nodes > 1;
        const RingRates rates = random_rates();
        double ms[2];
        if (c.nodes > G)
            continue;
        play(&c, &rates, ms);
        for (int pass = 0; pass < 2; pass++) {
            const RingPass which = pass ? RING_BACKWARD : RING_FORWARD;
            const double formula = ring_map_ms(&c, &rates, which);
            if (!apart && fabs(formula / ms[pass] - 1) > 1e-9)
                fail_msg("%s, %d ranks on %d nodes, n %d, pass %d: formula %.9g ms, player %.9g",
                         ring_method_name(c.method), G, (int)c.nodes, (int)c.n, pass, formula,
                         ms[pass]);
            assert_true(formula < ms[pass] * (1 + 1e-9) && ms[pass] < 2.5 * formula);
            assert_true(formula >= ring_map_compute_ms(&c, &rates, which) * (1 - 1e-12));
        }
    }
}

/* With places for blocks and a host that takes time ranks are not alike any more. The formula takes
 * the slower of two, and knows nothing of who waits for whom: about as long as in the player. */
TEST(formulas_and_places)
{
    for (int n = 0; n < 300; n++) {
        const int G = 1 << (1 + case_random() % 3);
        const RingMethod method = (RingMethod)(1 + n % (RING_METHOD_RING_MINIMAL - 1));
        const int doubled = method == RING_METHOD_RING_DOUBLE || method == RING_METHOD_BURST_DOUBLE;
        const RingMapCase c = {.method = method,
                               .ranks = G,
                               .nodes = doubled && G > 2 ? 2 : 1,
                               .n = 1024 << case_random() % 3,
                               .H = 32,
                               .Hkv = 8,
                               .d = 128,
                               .causal = case_random() % 3 > 0,
                               .dtype = ATTN_BF16};
        RingRates rates = ring_rates_default("nccl", ATTN_BF16);
        double ms[2];
        rates.places[0] = 1 + case_random() % 300;
        rates.places[1] = 1 + case_random() % 150;
        rates.block_s = 1e-6 * (case_random() % 20);
        rates.post_s = 1e-6 * (case_random() % 50);
        play(&c, &rates, ms);
        for (int pass = 0; pass < 2; pass++) {
            const double formula = ring_map_ms(&c, &rates, pass ? RING_BACKWARD : RING_FORWARD);
            if (formula < 0.75 * ms[pass] || formula > 1.4 * ms[pass])
                fail_msg("%s, %d ranks, n %d, pass %d, places %g: formula %.9g ms, player %.9g",
                         ring_method_name(method), G, (int)c.n, pass, rates.places[pass], formula,
                         ms[pass]);
        }
    }
}

/* Calls of 32 blocks on 24 places, in two streams: the formula knows that no place is idle between
 * them, and rounds only the last one. One stream, and 2 rounds for each, would take 1.45 times as
 * long. */
TEST(heads_in_two_streams)
{
    const RingMethod methods[] = {RING_METHOD_RING, RING_METHOD_BURST, RING_METHOD_ALLGATHER,
                                  RING_METHOD_RING_DOUBLE, RING_METHOD_BURST_DOUBLE};
    const RingRates rates = {
        .flops = {1e12, 1e12}, .places = {24, 24}, .memory = 1e30, .bandwidth = {1e30, 1e30}};
    const double round = 1e3 * 4 * 4 * 512 * 128 * 24 / 1e12;
    for (int n = 0; n < 5; n++) {
        RingMapCase c = {methods[n], 8, 2, 512, 8, 8, 4, 0, ATTN_BF16};
        double ms[2];
        play(&c, &rates, ms);
        assert_true(fabs(ms[0] / (11 * round) - 1) < 1e-9);
        assert_true(fabs(ring_map_ms(&c, &rates, RING_FORWARD) / ms[0] - 1) < 0.04);
        c.dtype = ATTN_F32;
        assert_true(fabs(ring_map_ms(&c, &rates, RING_FORWARD) / (16 * round) - 1) < 1e-9);
    }
}

/* 256 blocks on 264 places forward, 64 on 132 backward: one round each. */
TEST(kernel_alone)
{
    const RingMapCase c = {RING_METHOD_RING, 1, 1, 1024, 32, 8, 128, 0, ATTN_BF16};
    const RingRates rates = {
        .flops = {1e12, 1e12}, .places = {264, 132}, .memory = 1e30, .pass_s = 0.5, .call_s = 0.25};
    const double pairs = 1024.0 * 1024, seconds[2] = {4 * 32 * 128.0 * pairs / 1e12 * 264 / 256,
                                                      10 * 32 * 128.0 * pairs / 1e12 * 132 / 64};
    for (int pass = 0; pass < 2; pass++)
        assert_true(fabs(ring_alone_ms(&c, &rates, pass ? RING_BACKWARD : RING_FORWARD) /
                             (1e3 * (0.75 + seconds[pass])) -
                         1) < 1e-12);
}

/* Is the pass as fast as without messages? (burst has the last way home to wait for.) */
static int is_free(RingMapCase c, double n, const RingRates *rates, RingPass pass)
{
    c.n = (int64_t)n / 16 * 16;
    return ring_map_ms(&c, rates, pass) < 1.01 * ring_map_compute_ms(&c, rates, pass);
}

/* Tokens per GPU from which nothing waits, by hand, with F = 650 TF, BW = 370 GB/s, d = 128:
 *   forward, zigzag     2 (b/2) (Hkv/H) F/BW                       3514, with 8 of 32 kv heads 878
 *   burst, float32 dQ   2 (6d + 8 + 2d) / (10 d) F/BW, F = 560     2441
 *   ring, float32 dKV   2 (12 d / 10 d) F/BW                       3632
 * A flat ring over nodes with 50 GB/s: 26000, and 6500; a double ring with 8 places: 3250, and 812
 * (if the inner ring is free too). */
TEST(thresholds)
{
    const RingRates rates = {.flops = {650e12, 560e12}, .memory = 1e30, .bandwidth = {370e9, 50e9}};
    const struct {
        RingMethod method;
        RingPass pass;
        int64_t ranks, nodes, Hkv;
        double n;
    } known[] = {{RING_METHOD_RING, RING_FORWARD, 8, 1, 32, 3514},
                 {RING_METHOD_RING, RING_FORWARD, 8, 1, 8, 878},
                 {RING_METHOD_RING, RING_BACKWARD, 8, 1, 32, 3632},
                 {RING_METHOD_BURST, RING_BACKWARD, 64, 1, 32, 2441},
                 {RING_METHOD_RING, RING_FORWARD, 64, 8, 32, 26000},
                 {RING_METHOD_RING, RING_FORWARD, 64, 8, 8, 6500},
                 {RING_METHOD_RING_DOUBLE, RING_FORWARD, 64, 8, 32, 3514},
                 {RING_METHOD_RING_DOUBLE, RING_FORWARD, 64, 8, 8, 878}};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const RingMapCase c = {
            known[k].method, known[k].ranks, known[k].nodes, 0, 32, known[k].Hkv, 128, 1,
            ATTN_BF16};
        if (!is_free(c, 1.03 * known[k].n, &rates, known[k].pass) ||
            is_free(c, 0.95 * known[k].n, &rates, known[k].pass))
            fail_msg("%s, pass %d, %d kv heads: not free from %g tokens on",
                     ring_method_name(c.method), known[k].pass, (int)c.Hkv, known[k].n);
    }
}

TEST(heads_that_cannot_be_dealt_out)
{
    const RingRates rates = ring_rates_default("nccl", ATTN_BF16);
    RingMapCase c = {RING_METHOD_ULYSSES, 64, 8, 1024, 32, 8, 128, 1, ATTN_BF16};
    assert_true(ring_map_ms(&c, &rates, RING_FORWARD) < 0);
    c.ranks = 32;
    c.nodes = 4;
    assert_true(ring_map_ms(&c, &rates, RING_FORWARD) > 0);
}

int main(void)
{
    return RUN_TESTS(formulas_and_player, formulas_and_places, heads_in_two_streams, kernel_alone,
                     thresholds, heads_that_cannot_be_dealt_out);
}
