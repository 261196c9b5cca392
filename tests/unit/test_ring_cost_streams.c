/* SPDX-License-Identifier: MIT
 *
 * test_ring_cost_streams: halves of ring's gradients, and halves of the heads in a forward pass,
 * that share a GPU: by hand, and for many plans that nothing begins before what it comes after.
 *
 * By hand: 512 tokens on each rank, 8 heads. Half of the keys are 2 tiles of each head, and half of
 * the heads 4 tiles of 4 heads, so 16 blocks of threads, all equal; one takes ROUND seconds.
 *
 * And how blocks of threads fill a GPU, of one call or of two, and a host that sets the pace.
 */
#include <math.h>

#include "attn_pairs.h"
#include "oracle_case.h"

#include "planner/schedule.h"

#define ROUND 1e-3

typedef struct StreamCase {
    RingPlan plan;
    AttnArgs args;
    AttnSegment tokens;
} StreamCase;

static void case_open(StreamCase *c, RingSetup setup, int64_t heads, AttnDtype dtype, AttnRule rule,
                      int64_t tokens, const uint8_t *mask)
{
    char why[256];
    memset(c, 0, sizeof *c);
    c->tokens = (AttnSegment){0, setup.ranks * tokens, 0, 0, 1};
    c->args = (AttnArgs){.shape = {1, heads, heads, c->tokens.length, c->tokens.length, 4},
                         .rule = rule,
                         .mask = mask,
                         .positions_q = attn_positions(&c->tokens, 1),
                         .positions_k = attn_positions(&c->tokens, 1)};
    c->args.Q.dtype = dtype;
    c->args.dO.data = c;
    assert_int_equal(0, ring_plan_make(&c->plan, &c->args, &setup, why));
}

static RingRates rates_of(int places)
{
    const double per_product = places * 2.0 * 4 * 512 * 128 / ROUND;
    return (RingRates){.flops = {2 * per_product, 5 * per_product},
                       .places = {places, places},
                       .memory = 1e30,
                       .bandwidth = {1e30, 1e30}};
}

static double pass_s(RingPass pass, RingSetup setup, AttnDtype dtype, int64_t right,
                     const uint8_t *mask, const RingRates *rates)
{
    RingPrediction p;
    double seconds;
    StreamCase c;
    case_open(&c, setup, 8, dtype, (AttnRule){-1, right}, 512, mask);
    assert_int_equal(0, ring_predict(&p, &c.plan, rates));
    seconds = p.ms[pass == RING_BACKWARD] / 1e3;
    ring_prediction_free(&p);
    ring_plan_free(&c.plan);
    return seconds;
}

static double backward_s(RingSetup setup, AttnDtype dtype, int64_t right, const uint8_t *mask,
                         const RingRates *rates)
{
    return pass_s(RING_BACKWARD, setup, dtype, right, mask, rates);
}

static void assert_near(double found, double expected)
{
    if (fabs(found / expected - 1) > 1e-9)
        fail_msg("%g s, expected %g", found, expected);
}

/* Two steps of two halves. 32 places hold both halves; 24 one and a half, and where the second half
 * of a step ends, the first one of the next has begun; 16 one, and two streams are no use. burst
 * cuts queries: all its 32 blocks in each half, half as long. */
TEST(rounds_of_a_pass)
{
    const struct {
        int places;
        double two_streams, one_stream, burst;
    } known[] = {{32, 2, 4, 2}, {24, 3, 4, 4}, {16, 4, 4, 4}};
    uint8_t *mask = calloc(1024, 1024);
    for (int n = 0; n < 3; n++) {
        const RingRates rates = rates_of(known[n].places);
        RingSetup setup = {.method = RING_METHOD_RING, .ranks = 2, .nodes = 1};
        assert_near(backward_s(setup, ATTN_BF16, -1, NULL, &rates), known[n].two_streams * ROUND);
        assert_near(backward_s(setup, ATTN_F16, -1, NULL, &rates), known[n].two_streams * ROUND);
        assert_near(backward_s(setup, ATTN_F32, -1, NULL, &rates), known[n].one_stream * ROUND);
        assert_near(backward_s(setup, ATTN_BF16, -1, mask, &rates), known[n].one_stream * ROUND);
        setup.deterministic = 1;
        assert_near(backward_s(setup, ATTN_BF16, -1, NULL, &rates), known[n].one_stream * ROUND);
        setup = (RingSetup){.method = RING_METHOD_BURST, .ranks = 2, .nodes = 1};
        assert_near(backward_s(setup, ATTN_BF16, -1, NULL, &rates), known[n].burst * ROUND);
        setup = (RingSetup){.method = RING_METHOD_RING_DOUBLE, .ranks = 4, .nodes = 2};
        assert_near(backward_s(setup, ATTN_BF16, -1, NULL, &rates),
                    2 * known[n].two_streams * ROUND);
    }
    free(mask);
}

/* Eight steps of 32 blocks, on 24 places: a call by itself leaves a third of them idle, 2 rounds
 * for each step. In two streams no place is ever idle: 256 blocks are 10 rounds and two thirds. One
 * rank, and Ulysses, which has all tokens of one head, have one call. (ring-minimal waits for the
 * messages of each step, and has no GPU.) */
TEST(no_place_is_idle_forward)
{
    const RingRates rates = rates_of(24);
    uint8_t *mask = calloc((size_t)4096 * 4096, 1);
    for (int method = RING_METHOD_RING; method < RING_METHOD_RING_MINIMAL; method++) {
        RingSetup setup = {.method = (RingMethod)method, .ranks = 8, .nodes = 2};
        const int ulysses = method == RING_METHOD_ULYSSES;
        const double two_streams = ulysses ? 16 : 11, one_stream = 16;
        const RingPass pass = RING_FORWARD;
        assert_near(pass_s(pass, setup, ATTN_BF16, -1, NULL, &rates), two_streams * ROUND);
        assert_near(pass_s(pass, setup, ATTN_F16, -1, NULL, &rates), two_streams * ROUND);
        assert_near(pass_s(pass, setup, ATTN_F32, -1, NULL, &rates), one_stream * ROUND);
        assert_near(pass_s(pass, setup, ATTN_BF16, -1, mask, &rates), one_stream * ROUND);
        setup.deterministic = 1;
        assert_near(pass_s(pass, setup, ATTN_BF16, -1, NULL, &rates), one_stream * ROUND);
        setup = (RingSetup){.method = (RingMethod)method, .ranks = 1, .nodes = 1};
        assert_near(pass_s(pass, setup, ATTN_BF16, -1, NULL, &rates), 2 * ROUND);
    }
    free(mask);
}

/* Both halves are asked for before the host hands over the step's messages: K and V, two ends each
 * of ROUND. The halves of step 0 share a round of 32 places; step 1 begins when the messages are
 * there. What is beside a half's blocks is not cut into blocks: each call takes ROUND / 10. Of
 * passes over memory step 0 has 0.1 for each half, since it reads no state; step 1, where half 0
 * begins at 1.1 and half 1 finds no idle place before 1.25, has 0.15: O is written rounded. */
TEST(what_halves_of_heads_wait_for)
{
    const RingSetup setup = {.method = RING_METHOD_RING, .ranks = 2, .nodes = 1};
    RingRates rates = rates_of(32);
    rates.post_s = ROUND;
    assert_near(pass_s(RING_FORWARD, setup, ATTN_BF16, -1, NULL, &rates), 5 * ROUND);
    rates.call_s = ROUND / 10;
    assert_near(pass_s(RING_FORWARD, setup, ATTN_BF16, -1, NULL, &rates), 5.2 * ROUND);
    rates.call_s = rates.post_s = 0;
    rates.memory = 2 * 512 * 8 * 4 / (ROUND / 10);
    assert_near(pass_s(RING_FORWARD, setup, ATTN_BF16, -1, NULL, &rates), 2.4 * ROUND);
}

/* Messages of ROUND / 10, dK and then dV: a half waits for its own. */
TEST(each_half_waits_for_its_sums)
{
    const struct {
        int places;
        double ends[4]; /* step 0: half 0, half 1; step 1 */
    } known[] = {{32, {1, 1, 2.2, 2.4}}, {24, {1, 2, 2.2, 3.2}}, {16, {1, 2, 3, 4}}};
    for (int n = 0; n < 3; n++) {
        const RingSetup setup = {.method = RING_METHOD_RING, .ranks = 2, .nodes = 1};
        RingRates rates = rates_of(known[n].places);
        RingSchedule s;
        StreamCase c;
        rates.latency[RING_INNER] = ROUND / 10;
        case_open(&c, setup, 8, ATTN_BF16, (AttnRule){-1, -1}, 512, NULL);
        assert_int_equal(0, ring_schedule_make(&s, &c.plan, RING_BACKWARD));
        assert_true(ring_schedule_run(&s, &rates) > 0);
        for (int r = 0; r < 2; r++) {
            int calls = 0;
            for (int64_t i = 0; i < s.count[r]; i++)
                if (s.actions[r][i].kind == RING_ACT_COMPUTE)
                    assert_near(s.actions[r][i].end, known[n].ends[calls++] * ROUND);
            assert_int_equal(4, calls);
        }
        ring_schedule_free(&s);
        ring_plan_free(&c.plan);
    }
}

/* What comes before the first call holds up both streams, and what comes last waits for both.
 * Between them a call's own passes: those of the first half of a step, while nothing is
 * computed, and those of the second half before its blocks; the first half has begun by then.
 * Causal: rank 0 has nothing to compute until rank 1 has sent it the sums of its keys. Of these
 * the first tile is the longest, so half 0 ends last. */
TEST(passes_over_memory)
{
    const RingSetup setup = {.method = RING_METHOD_RING, .ranks = 2, .nodes = 1};
    const double q = 512 * 8 * 4, kv = 2 * q;
    const double before = 10 * q + 4 * kv, half = 16 * kv / 4, after = 6 * (q + kv);
    RingRates rates = rates_of(32);
    rates.memory = 1e9;
    assert_near(backward_s(setup, ATTN_BF16, -1, NULL, &rates),
                2 * ROUND + (before + 3 * half + after) / rates.memory);
    assert_near(backward_s(setup, ATTN_F32, -1, NULL, &rates),
                4 * ROUND + (before + 6 * q + 4 * half + after + 2 * (q + kv)) / rates.memory);
    assert_near(backward_s(setup, ATTN_BF16, 0, NULL, &rates),
                (2 - 127.0 / 1024) * ROUND + (2 * before + 2 * half + after) / rates.memory);
}

/* Of a rank: nothing begins before what it comes after in its stream, or before its messages; sums
 * are a stream's, keys are both streams'. */
static void check_order(const RingSchedule *s, int rank)
{
    for (int64_t n = 0; n < s->count[rank]; n++) {
        const RingAction *a = &s->actions[rank][n];
        if (a->message >= 0) {
            const RingTensor tensor = s->messages[a->message].tensor;
            assert_int_equal(tensor == RING_DK || tensor == RING_DV, a->stream >= 0);
        }
        for (int64_t e = 0; e < n && a->kind == RING_ACT_COMPUTE; e++) {
            const RingAction *b = &s->actions[rank][e];
            if (b->stream >= 0 && a->stream >= 0 && b->stream != a->stream)
                continue;
            if (b->kind == RING_ACT_COMPUTE)
                assert_true(b->end <= a->start);
            if (b->kind == RING_ACT_WAIT)
                assert_true(s->messages[b->message].end <= a->start);
        }
    }
}

/* Faster than with one stream, on an average and up to what a greedy order of blocks may lose, and
 * never faster than all places can be. (Half 1 of a causal block is shorter: its sums would leave
 * first, and those of half 0 come late, if messages were not in a queue.) */
TEST(many_plans)
{
    const AttnRule rules[] = {{-1, -1}, {-1, 0}, {300, 0}, {200, 100}};
    double saved = 0;
    for (int n = 0; n < 200; n++) {
        const int ranks = 2 << case_random() % 2;
        static const RingMethod methods[] = {RING_METHOD_RING, RING_METHOD_RING_DOUBLE,
                                             RING_METHOD_ALLGATHER};
        RingSetup setup = {.method = methods[n % 3],
                           .layout = (RingLayout)(case_random() % RING_LAYOUTS),
                           .ranks = ranks,
                           .nodes = ranks / 2};
        const AttnRule rule = rules[case_random() % 4];
        const int64_t tokens = 100 + case_random() % 700;
        RingRates rates = rates_of(2 + (int)(case_random() % 60));
        double seconds[2];
        rates.latency[RING_INNER] = rates.latency[RING_OUTER] = 1e-5 * (case_random() % 20);
        rates.post_s = 1e-6 * (case_random() % 50);
        rates.call_s = 1e-6 * (case_random() % 10);
        for (int streams = 1; streams <= 2; streams++) {
            RingSchedule s;
            StreamCase c;
            setup.deterministic = streams == 1;
            case_open(&c, setup, 8, ATTN_BF16, rule, tokens, NULL);
            assert_int_equal(0, ring_schedule_make(&s, &c.plan, RING_BACKWARD));
            seconds[streams - 1] = ring_schedule_run(&s, &rates);
            for (int r = 0; r < ranks; r++) {
                double pairs = 0;
                for (int k = 0; k < ranks; k++)
                    pairs += (double)ring_pair_work(&c.plan, r, k).pairs;
                assert_true(seconds[streams - 1] >= 10 * 8 * 4 * pairs / rates.flops[1]);
                check_order(&s, r);
            }
            ring_schedule_free(&s);
            ring_plan_free(&c.plan);
        }
        assert_true(seconds[1] <= 1.02 * seconds[0]);
        saved += 1 - seconds[1] / seconds[0];
    }
    assert_true(saved / 200 > 0.1);
}

/* Of a rank, forward: no call begins before its keys are there, and no message leaves before both
 * halves of all calls before it are done. */
static void check_heads(const RingSchedule *s, int rank)
{
    for (int64_t n = 0; n < s->count[rank]; n++)
        for (int64_t e = 0; e < n; e++) {
            const RingAction *a = &s->actions[rank][n], *b = &s->actions[rank][e];
            if (a->kind == RING_ACT_COMPUTE && b->kind == RING_ACT_WAIT)
                assert_true(a->end == a->start || s->messages[b->message].end <= a->start);
            if (a->kind == RING_ACT_START && b->kind == RING_ACT_COMPUTE)
                assert_true(b->end <= s->messages[a->message].start);
        }
}

/* Calls of 16 bits against those of float32 and the same work: never slower by more than what the
 * order may lose (half 1's long blocks come behind half 0's short ones) and a call more for each
 * step, and never faster than all places can be. */
TEST(many_forward_passes)
{
    double saved = 0;
    for (int n = 0; n < 200; n++) {
        const int methods = RING_METHOD_RING_MINIMAL - 1;
        const RingMethod method = (RingMethod)(RING_METHOD_RING + n % methods);
        const RingSetup setup = {.method = method,
                                 .layout = (RingLayout)(case_random() % RING_LAYOUTS),
                                 .ranks = 4,
                                 .nodes = 2};
        const AttnRule rule = {-1, case_random() % 2 ? 0 : -1};
        const int64_t tokens = 100 + case_random() % 700;
        RingRates rates = rates_of(2 + (int)(case_random() % 60));
        double seconds[2];
        rates.post_s = 1e-6 * (case_random() % 50);
        rates.call_s = 1e-6 * (case_random() % 10);
        for (int streams = 1; streams <= 2; streams++) {
            RingSchedule s;
            StreamCase c;
            case_open(&c, setup, 8, streams == 2 ? ATTN_BF16 : ATTN_F32, rule, tokens, NULL);
            assert_int_equal(0, ring_schedule_make(&s, &c.plan, RING_FORWARD));
            seconds[streams - 1] = ring_schedule_run(&s, &rates);
            for (int r = 0; r < setup.ranks; r++) {
                double pairs = 0;
                for (int k = 0; k < setup.ranks; k++)
                    pairs += (double)ring_pair_work(&c.plan, r, k).pairs;
                assert_true(method == RING_METHOD_ULYSSES ||
                            seconds[streams - 1] >= 4 * 8 * 4 * pairs / rates.flops[0]);
                check_heads(&s, r);
            }
            ring_schedule_free(&s);
            ring_plan_free(&c.plan);
        }
        assert_true(seconds[1] <= 1.08 * seconds[0] + 4 * rates.call_s); /* one case: 1.073 */
        saved += 1 - seconds[1] / seconds[0];
    }
    assert_true(saved / 200 > 0.04);
}

/* --- rounds ------------------------------------------------------------------------------------*/

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
            StreamCase c;
            case_open(&c, setup, 2, ATTN_F32, (AttnRule){-1, -1}, tokens, NULL);
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
    StreamCase c;
    case_open(&c, setup, 2, ATTN_F32, (AttnRule){-1, 0}, 512, NULL);
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
        StreamCase c;
        case_open(&c, setup, 2, ATTN_F32, (AttnRule){-1, -1}, tokens, NULL);
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
    StreamCase c;
    case_open(&c, setup, 2, ATTN_F32, (AttnRule){-1, -1}, 1024, NULL);
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
        StreamCase c;
        RingPrediction p;
        case_open(&c, setup, 2, ATTN_F32, (AttnRule){-1, -1}, 16, NULL);
        rates.post_s = 1e-5;
        rates.pass_s = 3e-6;
        assert_int_equal(0, ring_predict(&p, &c.plan, &rates));
        assert_true(fabs(p.ms[0] - 1e3 * (4e-5 * (G - 1) + 1e-6 + 3e-6)) < 1e-9);
        ring_prediction_free(&p);
        ring_plan_free(&c.plan);
    }
}
