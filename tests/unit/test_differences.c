/* SPDX-License-Identifier: MIT
 *
 * test_differences.c: the oracle's gradients are central finite differences of its forward pass,
 * which test_oracle.c compares with the definition.
 *
 * Inputs are multiples of 2^-8 and steps 2^-10, so a step is exact although tensors are float32,
 * and two step sizes combine into an error of order h^4. Every element of Q, K and V is moved.
 *
 * Cases: the options of oracle_case.h; an all-pairs table of the options below; the full product of
 * those that decide who sees whom. The pairs are counted in the cases that were really run, and
 * an option that had no effect in any of them is a failure: a window that hides nothing proves
 * nothing.
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

#define COUNT(a)   ((int)(sizeof(a) / sizeof *(a)))
#define MOST       5 /* values of one option */
#define CASE_LIMIT 200

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

TEST(named_options)
{
    for (int n = 0; n < OPTION_COUNT; n++) {
        Case *c = case_option(&options[n], ATTN_F32, 1, 1);
        compare_gradients(c, options[n].name);
        case_free(c);
    }
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

/* Pairs of values of the case that are not marked yet; marks them if asked to. */
static int new_pairs(PairTable seen, const int *choice, int mark)
{
    int found = 0;
    for (int a = 0; a < KINDS; a++)
        for (int b = a + 1; b < KINDS; b++) {
            char *pair = &seen[a][choice[a]][b][choice[b]];
            found += !*pair;
            *pair |= (char)mark;
        }
    return found;
}

/* A list of cases with all pairs: of 30 random candidates the one with most new pairs, again and
 * again. Returns their number. */
static int choose_cases(int cases[][KINDS])
{
    static PairTable seen;
    int count = 0, best;
    memset(seen, 0, sizeof seen);
    case_state = 4;
    do {
        int *choice = cases[count];
        best = 0;
        for (int t = 0; t < 30 || (best == 0 && t < 20000); t++) {
            int candidate[KINDS], gain;
            for (int k = 0; k < KINDS; k++)
                candidate[k] = (int)(case_random() % (uint32_t)counts[k]);
            gain = new_pairs(seen, candidate, 0);
            if (gain > best) {
                best = gain;
                memcpy(choice, candidate, sizeof candidate);
            }
        }
        if (best > 0)
            count += new_pairs(seen, choice, 1) > 0;
    } while (best > 0 && count < CASE_LIMIT);
    return count;
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

TEST(all_pairs_of_options)
{
    static int cases[CASE_LIMIT][KINDS];
    static PairTable run;
    char effect[KINDS][MOST] = {{0}};
    const int count = choose_cases(cases);
    int pairs = 0, missing = 0, empty = 0;
    for (int n = 0; n < count; n++) {
        const int *choice = cases[n];
        Case *c = make_case(choice, 100 + (uint64_t)n);
        char what[80];
        snprintf(what, sizeof what, "mask %d window %d cap %d scale %d positions %d heads %d",
                 choice[0], choice[1], choice[2], choice[3], choice[4], choice[5]);
        note_effects(choice, 100 + (uint64_t)n, loss(c), effect);
        empty += compare_gradients(c, what);
        new_pairs(run, choice, 1);
        case_free(c);
    }
    for (int a = 0; a < KINDS; a++)
        for (int b = a + 1; b < KINDS; b++)
            for (int v = 0; v < counts[a] * counts[b]; v++, pairs++)
                missing += !run[a][v / counts[b]][b][v % counts[b]];
    print_message("# %d pairs of options in %d cases, %d empty rows\n", pairs, count, empty);
    assert_int_equal(0, missing);
    assert_true(empty > 20);
    for (int k = 0; k <= POSITIONS; k++)
        for (int v = 1; v < counts[k]; v++)
            assert_true(effect[k][v]);
}

/* Who sees whom has interactions of more than two options, and each of them meets a cap. */
TEST(product_of_visibility)
{
    int empty = 0, count = 0;
    for (int n = 0; n < counts[MASK] * counts[WINDOW] * counts[POSITIONS] * counts[SIZES]; n++) {
        int choice[KINDS] = {0}, rest = n;
        choice[MASK] = rest % counts[MASK], rest /= counts[MASK];
        choice[WINDOW] = rest % counts[WINDOW], rest /= counts[WINDOW];
        choice[POSITIONS] = rest % counts[POSITIONS], rest /= counts[POSITIONS];
        choice[SIZES] = rest;
        choice[SCALE] = n % counts[SCALE];
        for (int cap = 0; cap < 2; cap++, count++) {
            choice[SOFTCAP] = cap;
            Case *c = make_case(choice, 1000 + (uint64_t)n);
            empty += compare_gradients(c, "product of masks, windows, positions, sizes and caps");
            case_free(c);
        }
    }
    print_message("# %d cases, %d empty rows\n", count, empty);
    assert_true(empty > 100);
}

TEST(report)
{
    print_message("# largest gap to a finite difference, relative: %.1e\n", largest_gap);
    assert_true(largest_gap > 0);
}
