/* SPDX-License-Identifier: MIT
 *
 * test_ring_rounds.c: how blocks of threads fill a GPU, of one call or of two, and a host that sets
 * the pace, for cases that can be worked out by hand.
 */
#include "oracle_case.h"

#include "planner/cost.h"

typedef struct Even {
    RingPlan plan;
    AttnArgs args;
    AttnSegment tokens;
} Even;

static void even_open(Even *c, RingSetup setup, int64_t tokens, AttnRule rule)
{
    char why[256];
    c->tokens = (AttnSegment){0, tokens, 0, 0, 1};
    c->args = (AttnArgs){.shape = {1, 2, 2, tokens, tokens, 4},
                         .rule = rule,
                         .positions_q = attn_positions(&c->tokens, 1),
                         .positions_k = attn_positions(&c->tokens, 1)};
    assert_int_equal(0, ring_plan_make(&c->plan, &c->args, &setup, why));
}

/* Places for blocks of 128 tokens, by hand. One head and no mask: n / 128 equal blocks. */
TEST(rounds)
{
    const struct {
        int64_t blocks, heads;
        double places, factor;
    } known[] = {{8, 8, 132, 132.0 / 64},
                 {16, 8, 132, 132.0 / 128},
                 {19, 7, 132, 264.0 / 133},
                 {1, 1, 1, 1},
                 {100, 20, 132, 2112.0 / 2000}};
    for (size_t n = 0; n < sizeof known / sizeof *known; n++)
        for (int pass = 0; pass < 2; pass++) {
            const RingSetup setup = {.method = RING_METHOD_RING, .ranks = 1, .nodes = 1};
            const int64_t tokens = 128 * known[n].blocks;
            const RingSpan all = {0, 0, tokens};
            RingRates rates = (RingRates){.flops = {1e9, 1e9}, .memory = 1e30};
            double factor;
            Even c;
            even_open(&c, setup, tokens, (AttnRule){-1, -1});
            rates.places[pass] = known[n].places;
            const RingCall call = {pass ? RING_BACKWARD : RING_FORWARD, all, all, known[n].heads,
                                   (double)(tokens * tokens),           1};
            factor = ring_rounds(&c.plan, &call, &rates);
            assert_true(fabs(factor / known[n].factor - 1) < 1e-12);
            /* a block's own cost: its pairs once more, so each round takes twice as long */
            rates.block_s = (double)(128 * tokens) * (pass ? 10 : 4) * 4 * known[n].places / 1e9;
            if (known[n].places > 1)
                assert_true(fabs(ring_rounds(&c.plan, &call, &rates) / (2 * known[n].factor) - 1) <
                            1e-12);
            ring_plan_free(&c.plan);
        }
}

/* A causal mask: four blocks see 1, 2, 3 and 4 tiles (the last one half of it). On 2 places in the
 * kernel's order, 4, 3, 2, 1: 4 + 1 and 3 + 2. Half of the keys are two blocks: 4, 3 tiles. */
TEST(rounds_of_unequal_blocks)
{
    const RingSetup setup = {.method = RING_METHOD_RING, .ranks = 1, .nodes = 1};
    const RingSpan all = {0, 0, 512}, first = {0, 0, 256};
    const double tile = 128.0 * 128, part = 128.0 * 129 / 2;
    RingRates rates = (RingRates){.flops = {1e9, 1e9}, .memory = 1e30};
    Even c;
    even_open(&c, setup, 512, (AttnRule){-1, 0});
    rates.places[0] = rates.places[1] = 2;
    for (int pass = 0; pass < 2; pass++) {
        const RingCall call = {
            pass ? RING_BACKWARD : RING_FORWARD, all, all, 1, 6 * tile + 4 * part, 1};
        assert_true(fabs(ring_rounds(&c.plan, &call, &rates) - 1) < 1e-12);
    }
    rates.places[1] = 4;
    const RingCall half = {RING_BACKWARD, all, first, 1, 5 * tile + 2 * part, 1};
    assert_true(fabs(ring_rounds(&c.plan, &half, &rates) -
                     4 * (3 * tile + part) / (5 * tile + 2 * part)) < 1e-12);
    ring_plan_free(&c.plan);
}

/* Two calls one after the other: the second takes the places that the first leaves idle. Of as many
 * blocks that they cannot matter one by one each place gets as much. */
TEST(places_that_are_left)
{
    const struct {
        int64_t blocks, heads, places;
        double start, ends[2]; /* in rounds */
    } known[] = {{8, 8, 132, 0, {1, 1}}, {16, 8, 132, 0, {1, 2}},
                 {8, 8, 64, 0, {1, 2}},  {8, 8, 132, 0.5, {1, 1.5}},
                 {8, 8, 64, 3, {1, 4}},  {64, 8, 3, 0, {512. / 3, 1024. / 3}}};
    const RingSetup setup = {.method = RING_METHOD_RING, .ranks = 1, .nodes = 1};
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        const int64_t tokens = 128 * known[n].blocks;
        const double round =
            2.0 * (double)(known[n].blocks * known[n].heads) / (double)known[n].places;
        const RingSpan all = {0, 0, tokens};
        const RingCall call = {RING_BACKWARD, all, all, known[n].heads, (double)(tokens * tokens),
                               round};
        const RingRates rates = {
            .flops = {1e9, 1e9}, .memory = 1e30, .places = {1, (double)known[n].places}};
        double load[RING_MOST_PLACES] = {0};
        Even c;
        even_open(&c, setup, tokens, (AttnRule){-1, -1});
        for (int k = 0; k < 2; k++)
            assert_true(fabs(ring_fill(&c.plan, &call, &rates, k * 2 * known[n].start, load) /
                                 (2 * known[n].ends[k]) -
                             1) < 1e-12);
        ring_plan_free(&c.plan);
    }
}

/* A call is done when its own blocks are, whatever else is under way: 64 blocks of a round, then as
 * many of half a round beside them, on the 68 places that are left of 132. */
TEST(done_when_its_own_blocks_are)
{
    const RingSetup setup = {.method = RING_METHOD_RING, .ranks = 1, .nodes = 1};
    const RingSpan all = {0, 0, 1024};
    const RingRates rates = {.flops = {1e9, 1e9}, .memory = 1e30, .places = {1, 132}};
    RingCall call = {RING_BACKWARD, all, all, 8, 1024 * 1024, 64.0 / 132};
    double load[RING_MOST_PLACES] = {0};
    Even c;
    even_open(&c, setup, 1024, (AttnRule){-1, -1});
    assert_true(fabs(ring_fill(&c.plan, &call, &rates, 0, load) - 1) < 1e-12);
    call.seconds /= 2;
    assert_true(fabs(ring_fill(&c.plan, &call, &rates, 0, load) - 0.5) < 1e-12);
    ring_plan_free(&c.plan);
}

/* Blocks of 1 us and a host that needs 10 us for each end of a message: it sets the pace. K and V,
 * sent and received, are 4 ends, handed over behind the first kernel; the last kernel is asked for
 * after the exchange of step G - 2. A pass costs what it costs. */
TEST(slow_host)
{
    for (int G = 1; G <= 4; G++) {
        const RingSetup setup = {.method = RING_METHOD_RING, .ranks = G, .nodes = 1};
        RingRates rates = {.flops = {4.0 * 2 * 4 * 16 * 16 / 1e-6, 1e9},
                           .memory = 1e30,
                           .bandwidth = {1e30, 1e30}};
        Even c;
        RingPrediction p;
        even_open(&c, setup, 16 * G, (AttnRule){-1, -1});
        rates.post_s = 1e-5;
        rates.pass_s = 3e-6;
        assert_int_equal(0, ring_predict(&p, &c.plan, &rates));
        assert_true(fabs(p.ms[0] - 1e3 * (4e-5 * (G - 1) + 1e-6 + 3e-6)) < 1e-9);
        ring_prediction_free(&p);
        ring_plan_free(&c.plan);
    }
}
