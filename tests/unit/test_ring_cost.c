/* SPDX-License-Identifier: MIT
 *
 * test_ring_cost.c: the timetables of stage 06 against the byte formulas and against the pairs that
 * have to be computed; the player against the closed form of a balanced ring; the hidden share of
 * events whose overlap is known.
 */
#include <math.h>

#include "attn_pairs.h"
#include "oracle_case.h"

#include "planner/schedule.h"
#include "planner/shard.h"

typedef struct Setting {
    RingPlan plan;
    AttnArgs args;
    AttnSegment q[3], k[3];
    uint8_t *mask;
    int64_t nq[RING_MAX_RANKS], nk[RING_MAX_RANKS];
    RingModelCase model;
} Setting;

/* Up to three sequences behind each other. */
static AttnPositions random_map(AttnSegment *segments, int64_t *N, int64_t sequences,
                                int64_t sequence_tokens)
{
    *N = 0;
    for (int64_t s = 0; s < sequences; s++) {
        const int64_t length = 1 + case_random() % (unsigned)sequence_tokens;
        segments[s] = (AttnSegment){*N, length, s, 0, 1};
        *N += length;
    }
    return attn_positions(segments, sequences);
}

static void setting_open(Setting *c, RingSetup setup, int64_t H, int64_t Hkv, AttnRule rule,
                         int64_t sequences, int64_t tokens, int masked)
{
    char why[256];
    memset(c, 0, sizeof *c);
    c->args.shape = (AttnShape){1 + case_random() % 2, H, Hkv, 0, 0, 4};
    c->args.positions_q = random_map(c->q, &c->args.shape.Nq, sequences, tokens);
    c->args.positions_k = random_map(c->k, &c->args.shape.Nk, sequences, tokens);
    c->args.rule = rule;
    c->args.Q.dtype = (AttnDtype)(case_random() % 3);
    c->args.dO.data = c; /* a backward */
    if (masked) {
        const size_t bytes = (size_t)(c->args.shape.Nq * c->args.shape.Nk);
        c->mask = malloc(bytes);
        for (size_t e = 0; e < bytes; e++)
            c->mask[e] = case_random() % 3 == 0;
        c->args.mask = c->mask;
    }
    if (ring_plan_make(&c->plan, &c->args, &setup, why) != 0)
        fail_msg("%s", why);
    for (int r = 0; r < setup.ranks; r++) {
        c->nq[r] = c->plan.q[r].tokens;
        c->nk[r] = c->plan.k[r].tokens;
    }
    c->model = (RingModelCase){.method = setup.method,
                               .ranks = setup.ranks,
                               .nodes = setup.nodes,
                               .hops_up = c->plan.hops_up,
                               .hops_down = c->plan.hops_down,
                               .shape = c->plan.shape,
                               .dtype = c->plan.dtype,
                               .partials = setup.partials,
                               .nq = c->nq,
                               .nk = c->nk};
}

static void setting_close(Setting *c)
{
    ring_plan_free(&c->plan);
    free(c->mask);
}

/* Messages as the model says, every pair computed once, everything waited for, no deadlock. */
static void check_schedule(Setting *c, RingPass pass, const RingRates *rates)
{
    const int G = c->plan.setup.ranks;
    double pairs = 0;
    RingSchedule s;
    assert_int_equal(0, ring_schedule_make(&s, &c->plan, pass));
    assert_true(ring_schedule_run(&s, rates) >= 0);
    for (int r = 0; r < G; r++) {
        const RingModelBytes model = model_ring_sent(&c->model, pass, r);
        const int node = G / c->plan.setup.nodes;
        int64_t sent[RING_TENSORS] = {0}, links[2] = {0};
        for (int64_t n = 0; n < s.message_count; n++)
            if (s.messages[n].from == r) {
                sent[s.messages[n].tensor] += s.messages[n].bytes;
                links[r / node != s.messages[n].to / node] += s.messages[n].bytes;
            }
        assert_memory_equal(sent, model.sent, sizeof sent);
        assert_int_equal(model.inner, links[RING_INNER]);
        assert_int_equal(model.outer, links[RING_OUTER]);
        int64_t open = 0; /* what is started is waited for */
        for (int64_t n = 0; n < s.count[r]; n++) {
            open +=
                (s.actions[r][n].kind == RING_ACT_START) - (s.actions[r][n].kind == RING_ACT_WAIT);
            pairs += (double)s.actions[r][n].work.pairs * s.actions[r][n].heads;
            assert_true(n == s.count[r] - 1 || s.actions[r][n].end <= s.actions[r][n + 1].start);
            const RingAction *a = &s.actions[r][n];
            if (a->kind == RING_ACT_START) /* after all that was computed before */
                assert_true(s.messages[a->message].start >= a->start);
            if (a->kind == RING_ACT_WAIT)
                assert_true(s.messages[a->message].end <= a->end);
        }
        assert_int_equal(0, open);
    }
    for (int64_t n = 0; n < s.message_count; n++)
        assert_int_equal(2, s.messages[n].ends_ready);
    assert_true(fabs(pairs - (double)pairs_seen(&c->args)) < 1e-6 * pairs + 1e-9);
    ring_schedule_free(&s);
}

TEST(every_timetable)
{
    const AttnRule rules[] = {{-1, -1}, {-1, 0}, {5, 0}, {3, 2}, {-1, 4}};
    const RingRates rates = ring_rates_default("sim", ATTN_F32);
    for (int n = 0; n < 3000; n++) {
        RingSetup setup = {.method = (RingMethod)(1 + n % (RING_METHODS - 1)),
                           .layout = (RingLayout)(case_random() % RING_LAYOUTS),
                           .ranks = 1 + (int)(case_random() % (n % 8 ? 8 : 16)),
                           .partials = case_random() % 2 ? ATTN_F32 : ATTN_BF16};
        int64_t Hkv = 1 + case_random() % 2;
        Setting c;
        if (setup.method == RING_METHOD_ULYSSES)
            Hkv = setup.ranks;
        do
            setup.nodes = 1 + (int)(case_random() % (unsigned)setup.ranks);
        while (setup.ranks % setup.nodes);
        setting_open(&c, setup, Hkv * (1 + case_random() % 2), Hkv, rules[case_random() % 5],
                     1 + case_random() % 3, 30, case_random() % 4 == 0);
        check_schedule(&c, RING_FORWARD, &rates);
        check_schedule(&c, RING_BACKWARD, &rates);
        setting_close(&c);
    }
}

/* Parts of blocks: the halves of a pair of blocks make the whole. */
TEST(work_of_parts)
{
    const AttnRule rules[] = {{-1, -1}, {-1, 0}, {5, 0}, {3, 2}, {-1, 4}};
    for (int n = 0; n < 500; n++) {
        const RingSetup setup = {.method = RING_METHOD_RING,
                                 .layout = (RingLayout)(case_random() % RING_LAYOUTS),
                                 .ranks = 1 + (int)(case_random() % 5),
                                 .nodes = 1};
        int64_t all = 0;
        Setting c;
        setting_open(&c, setup, 1, 1, rules[case_random() % 5], 1 + case_random() % 3, 40, n % 2);
        for (int q = 0; q < setup.ranks; q++)
            for (int k = 0; k < setup.ranks; k++) {
                const int64_t nq = c.nq[q], nk = c.nk[k];
                const int64_t i = case_random() % (unsigned)(nq + 1);
                const int64_t j = case_random() % (unsigned)(nk + 1);
                const RingWork whole = ring_pair_work(&c.plan, q, k);
                assert_int_equal(whole.pairs,
                                 ring_block_work(&c.plan, q, 0, i, k, 0, j).pairs +
                                     ring_block_work(&c.plan, q, i, nq - i, k, 0, j).pairs +
                                     ring_block_work(&c.plan, q, 0, i, k, j, nk - j).pairs +
                                     ring_block_work(&c.plan, q, i, nq - i, k, j, nk - j).pairs);
                assert_int_equal(whole.pairs == 0, whole.tile == ATTN_TILE_SKIP);
                assert_int_equal(nq && nk && whole.pairs == nq * nk, whole.tile == ATTN_TILE_CLEAN);
                if (!c.mask)
                    assert_true(ring_pair_class(&c.plan, q, k) != ATTN_TILE_SKIP ||
                                whole.pairs == 0);
                all += whole.pairs;
            }
        assert_int_equal(pairs_seen(&c.args), all);
        setting_close(&c);
    }
}

static RingRates even_rates(double flops, double bandwidth, double latency)
{
    return (RingRates){.flops = {flops, flops},
                       .memory = 1e30,
                       .latency = {latency, latency},
                       .bandwidth = {bandwidth, bandwidth}};
}

static void setting_even(Setting *c, RingSetup setup, int64_t tokens, AttnRule rule)
{
    char why[256];
    memset(c, 0, sizeof *c);
    c->q[0] = c->k[0] = (AttnSegment){0, tokens, 0, 0, 1};
    c->args = (AttnArgs){.shape = {1, 2, 2, tokens, tokens, 4},
                         .rule = rule,
                         .positions_q = attn_positions(c->q, 1),
                         .positions_k = attn_positions(c->k, 1)};
    c->args.dO.data = c;
    assert_int_equal(0, ring_plan_make(&c->plan, &c->args, &setup, why));
}

/* T = t_comp(0) + sum of max(t_comp, a + bytes/BW): all ranks alike, messages fast or slow. */
TEST(closed_form)
{
    const double slow[] = {0, 1e-9, 1e-6, 1e-3};
    for (int G = 1; G <= 9; G++)
        for (int n = 0; n < 4; n++) {
            const RingSetup setup = {.method = RING_METHOD_RING, .ranks = G, .nodes = 1};
            const int64_t tokens = 16 * G;
            const RingRates rates = even_rates(1e9, n % 2 ? 1e9 : 1e7, slow[n]);
            const double block = 4.0 * 2 * 4 * 16 * 16 / 1e9;
            const double travel = 2 * (slow[n] + 16.0 * 2 * 4 * 4 / rates.bandwidth[0]);
            Setting c;
            RingPrediction p;
            setting_even(&c, setup, tokens, (AttnRule){-1, -1});
            assert_int_equal(0, ring_predict(&p, &c.plan, &rates));
            assert_true(fabs(p.ms[0] - 1e3 * (block + (G - 1) * fmax(block, travel))) <
                        1e-9 * p.ms[0]);
            if (G > 1)
                assert_true(fabs(p.hidden[0] - fmin(1, block / travel)) < 1e-9);
            ring_prediction_free(&p);
            setting_close(&c);
        }
}

/* Useful share of a causal pass of G equal blocks of n tokens, whose ranks wait for each other
 * after every step: contiguous 8/15 of eight ranks, striped nearly 1. */
static double useful_share(RingLayout layout, double G, double n)
{
    return layout == RING_ZIGZAG    ? 1
           : layout == RING_STRIPED ? (G * n + 1) / (G * (n + 1))
                                    : (G * n + 1) / (n + 1 + 2 * (G - 1) * n);
}

/* Causal: contiguous waits for the fullest block at every step, zigzag for nobody. */
TEST(balance)
{
    for (int G = 2; G <= 8; G += 2)
        for (int layout = 0; layout < RING_LAYOUTS; layout++) {
            const RingSetup setup = {
                .method = RING_METHOD_RING, .layout = (RingLayout)layout, .ranks = G, .nodes = 1};
            const int64_t n = 32;
            const double useful = 4.0 * 2 * 4 * (double)(G * n * (G * n + 1) / 2) / G / 1e9;
            const double bound = useful_share((RingLayout)layout, G, (double)n);
            Setting c;
            RingPrediction p;
            const RingRates rates = even_rates(1e9, 1e30, 0);
            setting_even(&c, setup, G * n, (AttnRule){-1, 0});
            assert_true(fabs(ring_plan_efficiency(&c.plan) - bound) < 1e-12);
            assert_int_equal(0, ring_predict(&p, &c.plan, &rates));
            /* a rank that is early may run ahead by as many steps as it has buffers */
            assert_true(1e3 * useful / p.ms[0] > bound - 1e-9);
            assert_true(1e3 * useful / p.ms[0] < (layout == RING_ZIGZAG ? 1 : bound + 0.13) + 1e-9);
            ring_prediction_free(&p);
            setting_close(&c);
        }
}

/* A double ring needs the slow link once in g steps. */
TEST(double_ring_hides_the_slow_link)
{
    double ms[2][2];
    for (int doubled = 0; doubled < 2; doubled++) {
        const RingSetup setup = {
            .method = doubled ? RING_METHOD_RING_DOUBLE : RING_METHOD_RING, .ranks = 8, .nodes = 2};
        RingRates rates = even_rates(1e9, 1e30, 0);
        Setting c;
        RingPrediction p;
        rates.bandwidth[RING_OUTER] = 0.05e9; /* K and V take 20 us, a step 8 us */
        setting_even(&c, setup, 8 * 16, (AttnRule){-1, -1});
        assert_int_equal(0, ring_predict(&p, &c.plan, &rates));
        ms[doubled][0] = p.ms[0];
        ms[doubled][1] = p.ms[1];
        ring_prediction_free(&p);
        setting_close(&c);
    }
    assert_true(ms[1][0] < ms[0][0]);
    assert_true(ms[1][1] < ms[0][1]);
}

TEST(hidden_share)
{
#define COMPUTE(from, to)                                                                          \
    {                                                                                              \
        .kind = RING_EVENT_COMPUTE, .pass = RING_FORWARD, .start_ms = (from), .end_ms = (to)       \
    }
#define SEND(from, to)                                                                             \
    {                                                                                              \
        .kind = RING_EVENT_SEND, .pass = RING_FORWARD, .start_ms = (from), .end_ms = (to)          \
    }
    const RingEvent events[] = {SEND(3, 5),      COMPUTE(0, 4), SEND(10, 14),
                                COMPUTE(11, 12), SEND(4, 6),    COMPUTE(11.5, 13)};
    /* messages: 3..6 and 10..14; of these computed: 3..4, 11..13 */
    assert_true(fabs(ring_hidden_share(events, 6, RING_FORWARD) - 3.0 / 7) < 1e-12);
    assert_true(ring_hidden_share(events, 6, RING_BACKWARD) == 1);
    assert_true(ring_hidden_share(events, 2, RING_FORWARD) == 0.5);
    assert_true(ring_hidden_share(NULL, 0, RING_FORWARD) == 1);
}

TEST(rates_from_a_file)
{
    char path[] = "/tmp/ring_rates_XXXXXX", why[256] = "";
    RingRates rates = ring_rates_default("nccl", ATTN_BF16);
    FILE *f = fdopen(mkstemp(path), "w");
    fprintf(f, "#%600s\nflops_forward 5e14\n\nbandwidth_inner 3.5e11\nlatency_outer 0\n", "fitted");
    fclose(f);
    assert_int_equal(0, ring_rates_read(&rates, path, why));
    assert_true(rates.flops[0] == 5e14 && rates.bandwidth[0] == 3.5e11 && rates.latency[1] == 0);
    assert_true(rates.flops[1] == ring_rates_default("nccl", ATTN_BF16).flops[1]);
    for (int bad = 0; bad < 6; bad++) {
        const char *const lines[] = {"flops 5\n",    "flops_forward\n", "memory 0\n",
                                     "memory 5 6\n", "memory inf\n",    "call_s 1e31\n"};
        const RingRates before = rates;
        f = fopen(path, "w");
        fprintf(f, "call_s 1\n%s", lines[bad]);
        fclose(f);
        assert_int_equal(-1, ring_rates_read(&rates, path, why));
        assert_non_null(strstr(why, "line 2"));
        assert_memory_equal(&before, &rates, sizeof rates);
    }
    remove(path);
    assert_int_equal(-1, ring_rates_read(&rates, path, why));
    assert_non_null(strstr(why, "no such file"));
}
