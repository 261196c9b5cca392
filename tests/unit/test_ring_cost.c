/* SPDX-License-Identifier: MIT
 *
 * test_ring_cost.c: the timetables of stage 06 against the byte formulas and against the pairs that
 * have to be computed; the player against the closed form of a balanced ring, and against the
 * thresholds of the literature, worked out by hand; the hidden share of events whose overlap is
 * known.
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
    const RingModelCase formulas = ring_model_case(&c->plan);
    double pairs = 0;
    RingSchedule s;
    assert_int_equal(0, ring_schedule_make(&s, &c->plan, pass));
    assert_true(ring_schedule_run(&s, rates) >= 0);
    for (int r = 0; r < G; r++) {
        const RingModelBytes model = model_ring_sent(&formulas, pass, r);
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
            const RingAction *a = &s.actions[r][n];
            open += (a->kind == RING_ACT_START) - (a->kind == RING_ACT_WAIT);
            pairs += (double)a->work.pairs * a->heads;
            assert_true(n == s.count[r] - 1 || a->end <= a[1].start);
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

static const AttnRule rules[] = {{-1, -1}, {-1, 0}, {5, 0}, {3, 2}, {-1, 4}};

TEST(every_timetable)
{
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
                const int64_t nq = c.plan.nq[q], nk = c.plan.nk[k];
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

/* --- the player --------------------------------------------------------------------------------*/

/* One sequence of N tokens that attends to itself. */
typedef struct Even {
    RingMethod method;
    RingLayout layout;
    int ranks, nodes;
    int64_t N, H, Hkv, d;
    AttnRule rule;
    AttnDtype dtype;
    const uint8_t *mask;
    float softcap;
} Even;

typedef struct Times {
    double ms[2], hidden[2], efficiency;
} Times;

static Times play(const Even *e, const RingRates *rates)
{
    const AttnSegment tokens = {0, e->N, 0, 0, 1};
    AttnArgs args = {.shape = {1, e->H, e->Hkv, e->N, e->N, e->d},
                     .rule = e->rule,
                     .mask = e->mask,
                     .softcap = e->softcap,
                     .positions_q = attn_positions(&tokens, 1),
                     .positions_k = attn_positions(&tokens, 1)};
    const RingSetup setup = {
        .method = e->method, .layout = e->layout, .ranks = e->ranks, .nodes = e->nodes};
    RingPrediction p;
    RingPlan plan;
    char why[256];
    args.Q.dtype = e->dtype;
    args.dO.data = &args; /* a backward pass */
    assert_int_equal(0, ring_plan_make(&plan, &args, &setup, why));
    assert_int_equal(0, ring_predict(&p, &plan, rates));
    const Times times = {
        {p.ms[0], p.ms[1]}, {p.hidden[0], p.hidden[1]}, ring_plan_efficiency(&plan)};
    ring_prediction_free(&p);
    ring_plan_free(&plan);
    return times;
}

static RingRates even_rates(double flops, double bandwidth, double latency)
{
    return (RingRates){.flops = {flops, flops},
                       .memory = 1e30,
                       .latency = {latency, latency},
                       .bandwidth = {bandwidth, bandwidth}};
}

/* T = t_comp(0) + sum of max(t_comp, a + bytes/BW): all ranks alike, messages fast or slow. */
TEST(closed_form)
{
    const double slow[] = {0, 1e-9, 1e-6, 1e-3};
    for (int G = 1; G <= 9; G++)
        for (int n = 0; n < 4; n++) {
            const RingRates rates = even_rates(1e9, n % 2 ? 1e9 : 1e7, slow[n]);
            const double block = 4.0 * 2 * 4 * 16 * 16 / 1e9;
            const double travel = 2 * (slow[n] + 16.0 * 2 * 4 * 4 / rates.bandwidth[0]);
            const Even e = {
                RING_METHOD_RING, RING_CONTIGUOUS, G, 1, 16 * G, 2, 2, 4, {-1, -1}, 0, NULL, 0};
            const Times t = play(&e, &rates);
            assert_true(fabs(t.ms[0] - 1e3 * (block + (G - 1) * fmax(block, travel))) <
                        1e-9 * t.ms[0]);
            if (G > 1)
                assert_true(fabs(t.hidden[0] - fmin(1, block / travel)) < 1e-9);
        }
}

/* Useful share of a causal pass of G equal blocks of n tokens, whose ranks wait for each other
 * after every step: contiguous 8/15 of eight ranks, striped nearly 1. */
static double useful_share(int layout, double G, double n)
{
    return layout == RING_ZIGZAG    ? 1
           : layout == RING_STRIPED ? (G * n + 1) / (G * (n + 1))
                                    : (G * n + 1) / (n + 1 + 2 * (G - 1) * n);
}

/* Causal: contiguous waits for the fullest block at every step, zigzag for nobody. */
TEST(balance)
{
    const RingRates rates = even_rates(1e9, 1e30, 0);
    for (int G = 2; G <= 8; G += 2)
        for (int layout = 0; layout < RING_LAYOUTS; layout++) {
            const int64_t n = 32, N = G * n;
            const double useful = 4.0 * 2 * 4 * (double)(N * (N + 1) / 2) / G / 1e9;
            const double bound = useful_share(layout, G, (double)n);
            const Even e = {
                RING_METHOD_RING, (RingLayout)layout, G, 1, N, 2, 2, 4, {-1, 0}, 0, NULL, 0};
            const Times t = play(&e, &rates);
            assert_true(fabs(t.efficiency - bound) < 1e-12);
            /* a rank that is early may run ahead by as many steps as it has buffers */
            assert_true(1e3 * useful / t.ms[0] > bound - 1e-9);
            assert_true(1e3 * useful / t.ms[0] < (layout == RING_ZIGZAG ? 1 : bound + 0.13) + 1e-9);
        }
}

/* Hopper's kernels take all blocks of a ring, but not the tokens of all ranks one behind the other,
 * if these are out of order, no mask array, and no cap. */
TEST(what_hopper_does_not_take)
{
    static const uint8_t open_to_all[64 * 64];
    const struct {
        RingMethod method;
        RingLayout layout;
        const uint8_t *mask;
        float cap;
        double times;
    } known[] = {{RING_METHOD_RING, RING_ZIGZAG, NULL, 0, 1},
                 {RING_METHOD_BURST, RING_STRIPED, NULL, 0, 1},
                 {RING_METHOD_ULYSSES, RING_CONTIGUOUS, NULL, 0, 1},
                 {RING_METHOD_ULYSSES, RING_ZIGZAG, NULL, 0, 3},
                 {RING_METHOD_ULYSSES, RING_STRIPED, NULL, 0, 3},
                 {RING_METHOD_RING, RING_ZIGZAG, open_to_all, 0, 3},
                 {RING_METHOD_RING, RING_ZIGZAG, NULL, 5, 3}};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const Even e = {known[k].method, known[k].layout, 4,           1, 64, 4, 4, 8, {-1, 0},
                        ATTN_BF16,       known[k].mask,   known[k].cap};
        double ms[4];
        for (int scattered = 0; scattered < 4; scattered++) {
            const RingRates rates = {.flops = {1e12, 1e12},
                                     .scattered = scattered,
                                     .memory = INFINITY,
                                     .bandwidth = {INFINITY, INFINITY}};
            const Times t = play(&e, &rates);
            ms[scattered] = t.ms[0] + t.ms[1];
        }
        assert_true(ms[1] > 0 && ms[0] == ms[1]);
        assert_true(fabs(ms[3] / ms[1] - known[k].times) < 1e-9);
    }
}

/* Is the pass as fast as without messages? (burst has the last way home to wait for.) */
static int is_free(Even e, double n, const RingRates *rates, RingPass pass)
{
    RingRates r = *rates;
    e.N = (int64_t)n / 16 * 16 * e.ranks;
    const Times t = play(&e, &r);
    for (int link = 0; link < 2; link++) {
        r.latency[link] = 0;
        r.bandwidth[link] = INFINITY;
    }
    return t.ms[pass == RING_BACKWARD] < 1.01 * play(&e, &r).ms[pass == RING_BACKWARD];
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
        int ranks, nodes, Hkv;
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
        const Even e = {known[k].method, RING_ZIGZAG, known[k].ranks, known[k].nodes, 0,    32,
                        known[k].Hkv,    128,         {-1, 0},        ATTN_BF16,      NULL, 0};
        if (!is_free(e, 1.03 * known[k].n, &rates, known[k].pass) ||
            is_free(e, 0.95 * known[k].n, &rates, known[k].pass))
            fail_msg("%s, pass %d, %d kv heads: not free from %g tokens on",
                     ring_method_name(e.method), known[k].pass, known[k].Hkv, known[k].n);
    }
}

/* --- events and rates --------------------------------------------------------------------------*/

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

/* What the lab notes say of the recorded speeds: copy engines are quicker than NCCL's kernels, and
 * only 16-bit types have tensor cores. */
TEST(rates_of_links_and_types)
{
    const RingRates nccl = ring_rates_default("nccl", ATTN_BF16);
    const RingRates copy = ring_rates_default("copy", ATTN_BF16);
    const RingRates f32 = ring_rates_default("nccl", ATTN_F32);
    const RingRates cpu = ring_rates_default("mpi", ATTN_BF16);
    assert_true(copy.bandwidth[RING_INNER] > 1.3 * nccl.bandwidth[RING_INNER]);
    assert_true(copy.bandwidth[RING_OUTER] == nccl.bandwidth[RING_OUTER]);
    for (int pass = 0; pass < 2; pass++) {
        assert_true(f32.flops[pass] < 0.2 * nccl.flops[pass]);
        assert_true(cpu.flops[pass] < 0.1 * f32.flops[pass]);
    }
    assert_true(f32.bandwidth[RING_INNER] == nccl.bandwidth[RING_INNER]);
}
