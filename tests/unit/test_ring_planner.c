/* SPDX-License-Identifier: MIT
 *
 * test_ring_planner.c: what --method auto chooses where the answer is known, and that its words say
 * why. And the player against the thresholds of the literature, worked out by hand.
 */
#include <math.h>

#include "attn_pairs.h"
#include "oracle_case.h"

#include "planner/cost.h"

typedef struct Wish {
    const char *what;
    AttnShape shape;
    AttnRule rule;
    int ranks, nodes, backward;
    double nic; /* bytes/s between nodes, 0: as the default */
    RingMethod method;
    RingLayout layout;
    const char *words;
} Wish;

/* clang-format off */
#define NONE   {-1, -1}
#define CAUSAL {-1, 0}

static const Wish wishes[] = {
    {"one rank", {1, 4, 4, 64, 64, 8}, CAUSAL, 1, 1, 1, 0, RING_METHOD_RING, RING_CONTIGUOUS,
     "nothing travels"},
    {"GQA, causal, forward and backward",
     {1, 32, 8, 65536, 65536, 128}, CAUSAL, 8, 1, 1, 0, RING_METHOD_RING, RING_ZIGZAG, "53 %"},
    {"MHA, too few tokens to hide: queries' side is lighter",
     {1, 6, 6, 32768, 32768, 128}, CAUSAL, 8, 1, 1, 0, RING_METHOD_BURST, RING_ZIGZAG,
     "ulysses      cannot deal out these heads\n"},
    {"MHA, two ranks: never burst",
     {1, 7, 7, 65536, 65536, 128}, CAUSAL, 2, 1, 1, 0, RING_METHOD_RING, RING_ZIGZAG, "zigzag"},
    {"MHA, forward only",
     {1, 7, 7, 65536, 65536, 128}, CAUSAL, 8, 1, 0, 0, RING_METHOD_RING, RING_ZIGZAG, "206 MB"},
    {"GQA of 4: burst moves more",
     {1, 12, 3, 65536, 65536, 128}, CAUSAL, 8, 1, 1, 0, RING_METHOD_RING, RING_ZIGZAG,
     "no choice: sends more than its ring\n"},
    {"no mask", {1, 7, 7, 65536, 65536, 128}, NONE, 4, 1, 0, 0, RING_METHOD_RING, RING_CONTIGUOUS,
     "contiguous      3  100 %\n"},
    {"a small window",
     {1, 7, 7, 65536, 65536, 128}, {4096, 0}, 8, 1, 1, 0, RING_METHOD_RING, RING_CONTIGUOUS,
     "contiguous      1  "},
    {"a window to both sides",
     {1, 7, 7, 65536, 65536, 128}, {4096, 4096}, 8, 1, 0, 0, RING_METHOD_RING, RING_CONTIGUOUS,
     "contiguous      2  "},
    {"two nodes, a thin link between them",
     {1, 12, 3, 65536, 65536, 128}, CAUSAL, 8, 2, 1, 4e9, RING_METHOD_RING_DOUBLE, RING_ZIGZAG,
     "several nodes"},
};
/* clang-format on */

static RingRates link_rates(const Wish *w)
{
    RingRates rates = ring_rates_default("nccl", ATTN_BF16);
    if (w->nic > 0)
        rates.bandwidth[RING_OUTER] = w->nic;
    return rates;
}

static void choose(const Wish *w, RingSetup *setup, int free_layout, const RingRates *rates,
                   char why[RING_WHY])
{
    const AttnSegment q = {0, w->shape.Nq, 0, 0, 1}, k = {0, w->shape.Nk, 0, 0, 1};
    AttnArgs args = {.shape = w->shape,
                     .rule = w->rule,
                     .positions_q = attn_positions(&q, 1),
                     .positions_k = attn_positions(&k, 1)};
    args.Q.dtype = ATTN_BF16;
    args.dO.data = w->backward ? &args : NULL;
    setup->ranks = w->ranks;
    setup->nodes = w->nodes;
    if (ring_choose(setup, free_layout, &args, rates, why) != 0)
        fail_msg("%s: %s", w->what, why);
}

TEST(known_answers)
{
    for (size_t n = 0; n < sizeof wishes / sizeof *wishes; n++) {
        const Wish *w = &wishes[n];
        const RingRates rates = link_rates(w);
        RingSetup setup = {.method = RING_METHOD_AUTO};
        char why[RING_WHY];
        choose(w, &setup, 1, &rates, why);
        if (setup.method != w->method || setup.layout != w->layout || !strstr(why, w->words))
            print_message("%s: %s\n", w->what, why);
        assert_int_equal(w->method, setup.method);
        assert_int_equal(w->layout, setup.layout);
        assert_non_null(strstr(why, w->words));
        for (const char *line = why; *line; line = strchr(line, '\n') + 1)
            assert_in_range(strcspn(line, "\n"), 10, 98);
    }
}

/* The layout that the user asked for stays. */
TEST(wishes_are_kept)
{
    const RingRates rates = ring_rates_default("nccl", ATTN_BF16);
    for (int l = 0; l < RING_LAYOUTS; l++) {
        RingSetup setup = {.method = RING_METHOD_AUTO, .layout = (RingLayout)l};
        char why[RING_WHY];
        choose(&wishes[1], &setup, 0, &rates, why);
        assert_int_equal(l, setup.layout);
        assert_int_not_equal(RING_METHOD_AUTO, setup.method);
        assert_non_null(strstr(why, "was asked for"));
    }
}

TEST(what_nothing_can_compute)
{
    const RingRates rates = ring_rates_default("nccl", ATTN_BF16);
    const AttnSegment tokens = {0, 64, 0, 0, 1};
    const AttnArgs args = {.shape = {1, 3, 3, 64, 64, 8},
                           .rule = {-1, -1},
                           .positions_q = attn_positions(&tokens, 1),
                           .positions_k = attn_positions(&tokens, 1)};
    RingSetup setup = {.method = RING_METHOD_AUTO, .ranks = 4, .nodes = 3};
    char why[RING_WHY] = "";
    assert_int_equal(-1, ring_choose(&setup, 1, &args, &rates, why));
    assert_non_null(strstr(why, "--nodes"));
    setup = (RingSetup){.method = RING_METHOD_AUTO, .ranks = 1000, .nodes = 1};
    assert_int_equal(-1, ring_choose(&setup, 1, &args, &rates, why));
    assert_non_null(strstr(why, "--ranks"));
}

/* Kernels compute what a full mask hides, and then hide it: the same choice, to the word. */
TEST(a_full_mask_changes_nothing)
{
    static const uint8_t open_to_all[64 * 64];
    static uint8_t one_pair[64 * 64];
    const RingRates rates = ring_rates_default("sim", ATTN_F32);
    const AttnSegment tokens = {0, 64, 0, 0, 1};
    AttnArgs args = {.shape = {1, 3, 3, 64, 64, 64},
                     .rule = {-1, -1},
                     .positions_q = attn_positions(&tokens, 1),
                     .positions_k = attn_positions(&tokens, 1)};
    const uint8_t *const masks[] = {open_to_all, one_pair, NULL};
    char why[3][RING_WHY];
    memset(one_pair, 1, sizeof one_pair); /* 1: hidden */
    one_pair[0] = 0;
    for (int m = 0; m < 3; m++) {
        RingSetup setup = {.method = RING_METHOD_AUTO, .ranks = 4, .nodes = 1};
        args.mask = masks[m];
        assert_int_equal(0, ring_choose(&setup, 1, &args, &rates, why[m]));
    }
    assert_string_equal(why[0], why[2]);
    assert_string_equal(why[1], why[2]);
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

static double both_ms(RingMethod method, RingLayout layout, const uint8_t *mask, float softcap,
                      double scattered)
{
    const AttnSegment tokens = {0, 64, 0, 0, 1};
    AttnArgs args = {.shape = {1, 4, 4, 64, 64, 8},
                     .rule = {-1, 0},
                     .mask = mask,
                     .softcap = softcap,
                     .positions_q = attn_positions(&tokens, 1),
                     .positions_k = attn_positions(&tokens, 1)};
    const RingSetup setup = {.method = method, .layout = layout, .ranks = 4, .nodes = 1};
    const RingRates rates = {.flops = {1e12, 1e12},
                             .scattered = scattered,
                             .memory = INFINITY,
                             .bandwidth = {INFINITY, INFINITY}};
    RingPrediction p;
    RingPlan plan;
    char why[256];
    args.Q.dtype = ATTN_BF16;
    args.dO.data = &args;
    assert_int_equal(0, ring_plan_make(&plan, &args, &setup, why));
    assert_int_equal(0, ring_predict(&p, &plan, &rates));
    const double ms = p.ms[0] + p.ms[1];
    ring_prediction_free(&p);
    ring_plan_free(&plan);
    return ms;
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
        double ms[4];
        for (int scattered = 0; scattered < 4; scattered++)
            ms[scattered] =
                both_ms(known[k].method, known[k].layout, known[k].mask, known[k].cap, scattered);
        assert_true(ms[1] > 0 && ms[0] == ms[1]);
        assert_true(fabs(ms[3] / ms[1] - known[k].times) < 1e-9);
    }
}

/* Small, ragged, packed: something is chosen for everything, and burst never against the rules. */
TEST(always_an_answer)
{
    for (int n = 0; n < (quick() ? 100 : 400); n++) {
        const int64_t Hkv = 1 + case_random() % 4, group = 1 + case_random() % 3;
        const Wish w = {
            .what = "random",
            .shape = {1, Hkv * group, Hkv, 1 + case_random() % 40, 1 + case_random() % 40, 4},
            .rule = {n % 3 ? -1 : 5, n % 2 ? -1 : 0},
            .ranks = 1 + (int)(case_random() % 9),
            .nodes = 1,
            .backward = n % 5 > 0};
        const RingRates rates = ring_rates_default(n % 2 ? "sim" : "nccl", ATTN_BF16);
        RingSetup setup = {.method = RING_METHOD_AUTO};
        char why[RING_WHY];
        choose(&w, &setup, 1, &rates, why);
        assert_in_range(setup.method, RING_METHOD_RING, RING_METHOD_ULYSSES);
        if (setup.method == RING_METHOD_BURST)
            assert_true(w.backward && w.ranks > 2);
        if (setup.method == RING_METHOD_ULYSSES)
            assert_true(w.shape.H % w.ranks == 0);
        assert_true(strlen(why) < RING_WHY - 1);
    }
}

/* --- the player -------------------------------------------------------------------------------*/

/* Self-attention of G n tokens, batch 1, zigzag if causal. */
typedef struct EqualBlocks {
    RingMethod method;
    int64_t ranks, nodes, n; /* n tokens on each rank */
    int64_t H, Hkv, d;
    int causal;
    AttnDtype dtype;
} EqualBlocks;

/* Both passes by the player. */
static void play(const EqualBlocks *c, const RingRates *rates, double ms[2])
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

/* Is the pass as fast as without messages? (burst has the last way home to wait for.) */
static int is_free(EqualBlocks c, double n, const RingRates *rates, RingPass pass)
{
    RingRates r = *rates;
    double ms[2], free_ms[2];
    c.n = (int64_t)n / 16 * 16;
    play(&c, &r, ms);
    for (int link = 0; link < 2; link++) {
        r.latency[link] = 0;
        r.bandwidth[link] = INFINITY;
    }
    play(&c, &r, free_ms);
    return ms[pass == RING_BACKWARD] < 1.01 * free_ms[pass == RING_BACKWARD];
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
        const EqualBlocks c = {
            known[k].method, known[k].ranks, known[k].nodes, 0, 32, known[k].Hkv, 128, 1,
            ATTN_BF16};
        if (!is_free(c, 1.03 * known[k].n, &rates, known[k].pass) ||
            is_free(c, 0.95 * known[k].n, &rates, known[k].pass))
            fail_msg("%s, pass %d, %d kv heads: not free from %g tokens on",
                     ring_method_name(c.method), known[k].pass, (int)c.Hkv, known[k].n);
    }
}
