/* SPDX-License-Identifier: MIT
 *
 * test_differences.c: the oracle's gradients are central finite differences of its forward pass,
 * which test_oracle.c compares with the definition.
 *
 * Inputs are multiples of 2^-8 and steps 2^-10, so a step is exact although tensors are float32,
 * and two step sizes combine into an error of order h^4. Every element of Q, K and V is moved.
 *
 * Cases: the full product of the options that decide who sees whom, and all pairs of these and the
 * others. The pairs are counted in the cases that were really run, and an option that had no effect
 * in any of them is a failure: a window that hides nothing proves nothing.
 */
#include <math.h>

#include "oracle_case.h"

/* One row per option; value 0 is the ordinary one. */
enum { MASK, WINDOW, SOFTCAP, SCALE, POSITIONS, HEADS, SIZES, WIDTH, BATCH, LAYOUT, KINDS };

static const AttnMask masks[] = {ATTN_MASK_NONE, ATTN_MASK_FULL, ATTN_MASK_CAUSAL_UPPER_LEFT,
                                 ATTN_MASK_CAUSAL_LOWER_RIGHT};
static const AttnRule windows[] = {{-1, -1}, {0, 0}, {2, 1}, {-1, 1}, {2, -1}};
static const float softcaps[] = {0, 1.5f};
static const float scales[] = {0, -0.75f, 1.25f}; /* 0: 1/sqrt(d) */
enum { ONE_SEGMENT, VARLEN, ZIGZAG, POSITION_COUNT };
static const int64_t heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}};
static const int64_t sizes[][2] = {{6, 6}, {4, 7}, {7, 4}, {1, 5}, {5, 1}};
static const int64_t widths[] = {3, 1};
static const int64_t batches[] = {1, 2};

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define MOST     5 /* values of one option */

static const int counts[KINDS] = {
    COUNT(masks), COUNT(windows), COUNT(softcaps), COUNT(scales),  POSITION_COUNT,
    COUNT(heads), COUNT(sizes),   COUNT(widths),   COUNT(batches), 4};

static double largest_gap;

static double loss(const Case *c)
{
    const AttnShape s = c->args.shape;
    double sum = 0;
    int64_t e = 0;
    Oracle o = oracle_of(&c->args, 0, 1);
    for (int64_t b = 0; b < s.B; b++)
        for (int64_t h = 0; h < s.H; h++)
            for (int64_t i = 0; i < s.Nq; i++)
                for (int64_t x = 0; x < s.d; x++)
                    sum += case_get(&c->args.dO, b, i, h, x) * o.O.value[e++];
    oracle_free(&o);
    return sum;
}

static double slope_at(const Case *c, const Tensor *t, int64_t element)
{
    const float step = 0x1p-10f, at = tensor_get(t, element);
    double L[5];
    for (int k = -2; k <= 2; k++) {
        tensor_set(t, element, at + (float)k * step);
        L[k + 2] = k ? loss(c) : 0;
    }
    tensor_set(t, element, at);
    return (8 * (L[3] - L[1]) - (L[4] - L[0])) / (12 * (double)step);
}

static void compare_gradient(const Case *c, const Tensor *t, const OracleArray *g, const char *what)
{
    int64_t e = 0;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[2]; h++)
            for (int64_t n = 0; n < t->shape[1]; n++)
                for (int64_t x = 0; x < t->shape[3]; x++, e++) {
                    const double expected = slope_at(c, t, tensor_offset(t, b, n, h) + x);
                    const double gap = fabs(g->value[e] - expected) / (1 + fabs(expected));
                    largest_gap = fmax(largest_gap, gap);
                    if (!(gap <= 2e-10))
                        fail_msg("%s: found %.17g, expected %.17g", what, g->value[e], expected);
                }
    assert_int_equal(e, g->count);
}

/* All of dQ, dK, dV; returns how many queries see no key, whose dQ is exactly zero. */
static int compare_gradients(const Case *c, const char *what)
{
    const AttnShape s = c->args.shape;
    int empty = 0;
    Oracle o = oracle_of(&c->args, 1, 1);
    compare_gradient(c, &c->args.Q, &o.dQ, what);
    compare_gradient(c, &c->args.K, &o.dK, what);
    compare_gradient(c, &c->args.V, &o.dV, what);
    for (int64_t row = 0; row < s.B * s.H * s.Nq; row++) {
        if (o.lse.value[row] != -INFINITY)
            continue;
        empty++;
        for (int64_t x = 0; x < s.d; x++)
            assert_true(o.dQ.value[row * s.d + x] == 0);
    }
    oracle_free(&o);
    return empty;
}

/* Three sequences, the second without queries; or the halves of a zigzag shard, which sees keys
 * that run backwards. */
static void set_positions(Case *c, int kind)
{
    const int64_t Nq = c->args.shape.Nq, Nk = c->args.shape.Nk, q = Nq / 2, k = Nk / 2;
    const int64_t middle = Nk > 4 ? 1 : 0;
    const AttnSegment of_q[] = {{0, q, 0, 0, 1}, {q, 0, 1, 0, 1}, {q, Nq - q, 2, 0, 1}};
    const AttnSegment of_k[] = {
        {0, k, 0, 0, 1}, {k, middle, 1, 0, 1}, {k + middle, Nk - k - middle, 2, 0, 1}};
    const AttnSegment halves[] = {{0, q, 0, Nk, 1}, {q, Nq - q, 0, 0, 1}};
    const AttnSegment backwards = {0, Nk, 0, Nk - 1, -1};
    if (kind == VARLEN) {
        memcpy(c->segments_q, of_q, sizeof of_q);
        memcpy(c->segments_k, of_k, sizeof of_k);
        c->args.positions_q.count = c->args.positions_k.count = 3;
    } else if (kind == ZIGZAG) {
        memcpy(c->segments_q, halves, sizeof halves);
        c->segments_k[0] = backwards;
        c->args.positions_q.count = 2;
    }
}

/* The same numbers for the same seed, whatever the options that are not sizes. */
static Case *make_case(const int *choice, uint64_t seed)
{
    const AttnShape s = {batches[choice[BATCH]],  heads[choice[HEADS]][0], heads[choice[HEADS]][1],
                         sizes[choice[SIZES]][0], sizes[choice[SIZES]][1], widths[choice[WIDTH]]};
    const uint64_t before = case_state;
    Case *c;
    case_state = seed;
    c = case_new(s, ATTN_F32, (TensorLayout)choice[LAYOUT], 1);
    c->args.softcap = softcaps[choice[SOFTCAP]];
    c->args.scale = choice[SCALE] ? scales[choice[SCALE]] : c->args.scale;
    c->args.rule = windows[choice[WINDOW]];
    case_align(c, masks[choice[MASK]]);
    if (masks[choice[MASK]] == ATTN_MASK_FULL)
        case_mask(c);
    set_positions(c, choice[POSITIONS]);
    case_state = before;
    return c;
}

typedef char PairTable[KINDS][MOST][KINDS][MOST];

static void mark_pairs(PairTable seen, const int *choice)
{
    for (int a = 0; a < KINDS; a++)
        for (int b = a + 1; b < KINDS; b++)
            seen[a][choice[a]][b][choice[b]] = 1;
}

/* Marks the values of the case that change its loss. */
static void note_effects(const int *choice, uint64_t seed, double with, char effect[KINDS][MOST])
{
    for (int k = 0; k <= POSITIONS; k++) {
        int without[KINDS];
        Case *c;
        memcpy(without, choice, sizeof without);
        without[k] = 0;
        c = make_case(without, seed);
        effect[k][choice[k]] |= (char)(loss(c) != with);
        case_free(c);
    }
}

/* Who sees whom has interactions of more than two options, and each of them meets a cap: the full
 * product. In every second case the other options have values of their own, at random. */
TEST(gradients_are_differences)
{
    static PairTable run;
    char effect[KINDS][MOST] = {{0}};
    int pairs = 0, missing = 0, empty = 0, count = 0;
    for (int n = 0; n < 2 * counts[MASK] * counts[WINDOW] * counts[POSITIONS] * counts[SIZES];
         n++) {
        static const int product[] = {MASK, WINDOW, POSITIONS, SIZES, SOFTCAP};
        int choice[KINDS] = {[SCALE] = n % counts[SCALE]}, rest = n;
        char what[80];
        for (int k = 0; k < COUNT(product); rest /= counts[product[k++]])
            choice[product[k]] = rest % counts[product[k]];
        const int others = case_random() % 2 == 0;
        for (int k = HEADS; others && k < KINDS; k++)
            choice[k] = k == SIZES ? choice[k] : (int)(case_random() % (uint32_t)counts[k]);
        snprintf(what, sizeof what, "mask %d window %d cap %d scale %d positions %d heads %d",
                 choice[0], choice[1], choice[2], choice[3], choice[4], choice[5]);
        Case *c = make_case(choice, 1000 + (uint64_t)n);
        if (others)
            note_effects(choice, 1000 + (uint64_t)n, loss(c), effect);
        empty += compare_gradients(c, what);
        mark_pairs(run, choice);
        count++;
        case_free(c);
    }
    for (int a = 0; a < KINDS; a++)
        for (int b = a + 1; b < KINDS; b++)
            for (int v = 0; v < counts[a] * counts[b]; v++, pairs++)
                missing += !run[a][v / counts[b]][b][v % counts[b]];
    print_message("# %d pairs of options in %d cases, %d empty rows\n", pairs, count, empty);
    print_message("# largest gap to a finite difference, relative: %.1e\n", largest_gap);
    assert_int_equal(0, missing);
    assert_true(empty > 100 && largest_gap > 0);
    for (int k = 0; k <= POSITIONS; k++)
        for (int v = 1; v < counts[k]; v++)
            assert_true(effect[k][v]);
}
