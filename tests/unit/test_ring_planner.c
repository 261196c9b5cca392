/* SPDX-License-Identifier: MIT
 *
 * test_ring_planner.c: what --method auto chooses where the answer is known, and that its words say
 * why.
 */
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

/* As ring_choose. */
static int ask(const Wish *w, const uint8_t *mask, RingSetup *setup, int free_layout,
               const RingRates *rates, char why[RING_WHY])
{
    const AttnSegment q = {0, w->shape.Nq, 0, 0, 1}, k = {0, w->shape.Nk, 0, 0, 1};
    AttnArgs args = {.shape = w->shape,
                     .rule = w->rule,
                     .mask = mask,
                     .positions_q = attn_positions(&q, 1),
                     .positions_k = attn_positions(&k, 1)};
    args.Q.dtype = ATTN_BF16;
    args.dO.data = w->backward ? &args : NULL;
    setup->ranks = w->ranks;
    setup->nodes = w->nodes;
    return ring_choose(setup, free_layout, &args, rates, why);
}

static void choose(const Wish *w, RingSetup *setup, int free_layout, const RingRates *rates,
                   char why[RING_WHY])
{
    if (ask(w, NULL, setup, free_layout, rates, why) != 0)
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
    Wish w = {.shape = {1, 3, 3, 64, 64, 8}, .rule = NONE, .ranks = 4, .nodes = 3};
    RingSetup setup = {.method = RING_METHOD_AUTO};
    char why[RING_WHY] = "";
    assert_int_equal(-1, ask(&w, NULL, &setup, 1, &rates, why));
    assert_non_null(strstr(why, "--nodes"));
    w.ranks = 1000, w.nodes = 1;
    assert_int_equal(-1, ask(&w, NULL, &setup, 1, &rates, why));
    assert_non_null(strstr(why, "--ranks"));
}

/* Kernels compute what a full mask hides, and then hide it: the same choice, to the word. */
TEST(a_full_mask_changes_nothing)
{
    static const uint8_t open_to_all[64 * 64];
    static uint8_t one_pair[64 * 64];
    const RingRates rates = ring_rates_default("sim", ATTN_F32);
    const Wish w = {.shape = {1, 3, 3, 64, 64, 64}, .rule = NONE, .ranks = 4, .nodes = 1};
    const uint8_t *const masks[] = {open_to_all, one_pair, NULL};
    char why[3][RING_WHY];
    memset(one_pair, 1, sizeof one_pair); /* 1: hidden */
    one_pair[0] = 0;
    for (int m = 0; m < 3; m++) {
        RingSetup setup = {.method = RING_METHOD_AUTO};
        assert_int_equal(0, ask(&w, masks[m], &setup, 1, &rates, why[m]));
    }
    assert_string_equal(why[0], why[2]);
    assert_string_equal(why[1], why[2]);
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
