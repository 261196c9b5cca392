/* SPDX-License-Identifier: MIT
 *
 * test_oracle_given.c: cases too big to compute lse and delta of all rows again.
 *
 * - On small cases the walk over tiles gives what the plain oracle gives, with the same bounds, for
 *   every kind of mask, type and shape; gradients from given O and lse lie within the plain bounds,
 *   and their own are not larger.
 * Large ones: test_oracle_large.c.
 */
#include <math.h>

#include "judge_case.h"

#include "harness/oracle/oracle_core.h"

#define EVERYTHING_STREAMED                                                                        \
    {                                                                                              \
        0, 0, 1e12                                                                                 \
    }

/* --- small cases -------------------------------------------------------------------------------*/

static void expect_near(double found, double expected, double most, const char *what)
{
    if (!(fabs(found - expected) <= most))
        fail_msg("%s: %.17g, expected %.17g, may differ by %.3g", what, found, expected, most);
}

/* Row `at` of `some` is row `of` of `all`, bounds included. */
static void expect_row(const OracleArray *some, int64_t at, const OracleArray *all, int64_t of,
                       int64_t width, const char *what)
{
    for (int64_t x = 0; x < width; x++) {
        const int64_t a = at * width + x, b = of * width + x;
        if (!isfinite(all->value[b])) {
            assert_int_equal(isnan(all->value[b]), isnan(some->value[a]));
            continue;
        }
        expect_near(some->value[a], all->value[b], 1e-12 * (1 + fabs(all->value[b])), what);
        expect_near(some->fixed[a], all->fixed[b], 1e-12 + 1e-9 * all->fixed[b], what);
        expect_near(some->per_c[a], all->per_c[b], 1e-12 + 1e-9 * all->per_c[b], what);
    }
}

/* Row `at` of `given` is within the bound of row `of` of `all`, and its own bound is no larger. */
static void expect_within(const OracleArray *given, int64_t at, const OracleArray *all, int64_t of,
                          int64_t width, const char *what)
{
    for (int64_t x = 0; x < width; x++) {
        const int64_t g = at * width + x, a = of * width + x;
        expect_near(given->value[g], all->value[a], all->fixed[a] + all->per_c[a], what);
        assert_true(given->fixed[g] <= all->fixed[a] * (1 + 1e-3));
        assert_true(given->per_c[g] <= all->per_c[a] * (1 + 1e-3));
        assert_int_equal(given->copied != NULL, all->copied != NULL);
        if (given->copied)
            expect_near(given->copied[g], all->copied[a], 1e-4 + 0.01 * all->copied[a], what);
    }
}

/* O and lse as a run would leave them. */
static void write_forward(Case *c, const Oracle *all)
{
    const AttnShape *s = &c->args.shape;
    for (int64_t row = 0; row < s->B * s->H * s->Nq; row++) {
        const int64_t b = row / s->Nq / s->H, h = row / s->Nq % s->H, i = row % s->Nq;
        c->lse[row] = (float)all->lse.value[row];
        for (int64_t x = 0; x < s->d; x++)
            case_set(&c->args.O, b, i, h, x, (float)all->O.value[row * s->d + x]);
    }
}

static void expect_same(Case *c, const char *what)
{
    static const OracleLimits limits = EVERYTHING_STREAMED;
    const AttnShape *s = &c->args.shape;
    const OracleRoundings roundings = {0, s->H / s->Hkv};
    Oracle all, some, given;
    assert_int_equal(0, oracle_run_reference(&all, &c->args, 1, 1, roundings));
    assert_int_equal(0, oracle_run_within(&some, &c->args, 1, 1, roundings, &limits));
    assert_true(all.whole && !some.whole && some.given);
    assert_int_equal(0, some.dQ.count + some.dK.count + some.dV.count);
    for (int64_t head = 0; head < s->B * s->H; head++)
        for (int64_t t = 0; t < some.rows.count; t++) {
            const int64_t at = head * some.rows.count + t, of = head * s->Nq + some.rows.index[t];
            expect_row(&some.lse, at, &all.lse, of, 1, what);
            expect_row(&some.O, at, &all.O, of, s->d, what);
        }
    write_forward(c, &all);
    assert_int_equal(0, oracle_run_given(&given, &some, &c->args, 2));
    assert_int_equal(s->B * s->Hkv, given.kv_heads.count);
    for (int64_t row = 0; row < s->B * s->H * given.rows.count; row++)
        expect_within(&given.dQ, row, &all.dQ,
                      row / given.rows.count * s->Nq + given.rows.index[row % given.rows.count],
                      s->d, what);
    for (int64_t row = 0; row < s->B * s->Hkv * given.keys.count; row++) {
        const int64_t of =
            row / given.keys.count * s->Nk + given.keys.index[row % given.keys.count];
        expect_within(&given.dK, row, &all.dK, of, s->d, what);
        expect_within(&given.dV, row, &all.dV, of, s->d, what);
    }
    oracle_given_free(&given);
    oracle_free(&some);
    oracle_free(&all);
}

TEST(small_cases)
{
    static const AttnShape shapes[] = {{1, 1, 1, 600, 600, 8},
                                       {2, 4, 2, 300, 530, 5},
                                       {1, 3, 1, 700, 260, 16},
                                       {1, 2, 2, 1, 300, 4},
                                       {1, 2, 1, 270, 1, 4}};
    static const AttnRule rules[] = {{-1, -1}, {-1, 0}, {20, 0}, {300, 17}, {0, 0}};
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++)
        for (int r = 0; r < 6; r++) {
            const AttnDtype dtype = (AttnDtype)((n + (size_t)r) % 3);
            Case *c = case_new(shapes[n], dtype, (TensorLayout)(r % 4), 1);
            char what[64];
            c->args.rule = rules[r % 5];
            c->args.softcap = r == 3 ? 3.0f : 0.0f;
            if (r == 5)
                case_mask(c);
            snprintf(what, sizeof what, "shape %d, rule %d", (int)n, r);
            expect_same(c, what);
            case_free(c);
        }
}

/* Sequences in one tensor, and a zigzag shard against all keys. */
TEST(positions)
{
    const AttnShape shape = {1, 2, 1, 520, 600, 8};
    Case *c = case_new(shape, ATTN_F32, LAYOUT_BSHD, 1);
    c->args.rule = (AttnRule){-1, 0};
    c->segments_q[0] = (AttnSegment){0, 250, 0, 0, 1};
    c->segments_q[1] = (AttnSegment){250, 270, 1, 3, 1};
    c->segments_k[0] = (AttnSegment){0, 290, 0, 0, 1};
    c->segments_k[1] = (AttnSegment){290, 310, 1, 0, 1};
    c->args.positions_q.count = c->args.positions_k.count = 2;
    expect_same(c, "two sequences");
    c->segments_q[0] = (AttnSegment){0, 260, 0, 20, 1};
    c->segments_q[1] = (AttnSegment){260, 260, 0, 1180, -2};
    c->segments_k[0] = (AttnSegment){0, 600, 0, 0, 2};
    c->args.positions_k.count = 1;
    expect_same(c, "zigzag, striped keys, one run backwards");
    case_free(c);
}

/* NaN and -inf reach who sees them, in a tile or whole: in V; in the last keys; in all keys of a
 * first tile, so that a row has met no finite score when it comes to the second. */
static void expect_same_reach(float in_K, int64_t first, int64_t last, float in_V)
{
    const AttnShape shape = {1, 1, 1, 400, 400, 4};
    static const OracleLimits limits = EVERYTHING_STREAMED;
    Case *c = case_new(shape, ATTN_F32, LAYOUT_BSHD, 1);
    Oracle some;
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    for (int64_t i = 0; i < 400; i++)
        case_set(&c->args.Q, 0, i, 0, 1, 1);
    for (int64_t j = first; j <= last; j++)
        case_set(&c->args.K, 0, j, 0, 1, in_K);
    case_set(&c->args.V, 0, 3, 0, 2, in_V);
    Oracle all = oracle_of(&c->args, 1, 1);
    assert_int_equal(0, oracle_run_within(&some, &c->args, 1, 1, (OracleRoundings){0}, &limits));
    assert_int_equal(ORACLE_TAINT_K | (isfinite(in_V) ? 0 : ORACLE_TAINT_V), some.tainted[0]);
    for (int64_t t = 0; t < some.rows.count; t++) {
        const int64_t i = some.rows.index[t];
        assert_true(all.lse.value[i] == some.lse.value[t] || isfinite(all.lse.value[i]) ||
                    (isnan(all.lse.value[i]) && isnan(some.lse.value[t])));
        for (int64_t x = 0; x < 4; x++)
            assert_int_equal(isfinite(all.O.value[i * 4 + x]), isfinite(some.O.value[t * 4 + x]));
    }
    oracle_free(&all);
    oracle_free(&some);
    case_free(c);
}

TEST(nonfinite)
{
    expect_same_reach(-INFINITY, 370, 370, NAN);
    expect_same_reach(-INFINITY, 0, 299, 1);
    expect_same_reach(NAN, 0, 299, 1);
    expect_same_reach(NAN, 395, 399, 1);
}

/* Outside of the sample too, a NaN of V excuses one in its channel of O and of its head, and no
 * other. A NaN of K may have reached any row there. */
TEST(nonfinite_outside_of_the_sample)
{
    static const OracleLimits limits = EVERYTHING_STREAMED;
    Case *c = case_new((AttnShape){1, 2, 2, 400, 400, 4}, ATTN_F32, LAYOUT_BSHD, 1);
    int64_t row = 70;
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    for (int in_K = 0; in_K < 2; in_K++) {
        Oracle some;
        case_set(in_K ? &c->args.K : &c->args.V, 0, 399, 0, 1, NAN);
        Oracle all = oracle_of(&c->args, 0, 1);
        for (int64_t e = 0; e < all.O.count; e++)
            case_set(&c->args.O, 0, e / 4 % 400, e / 1600, e % 4, (float)all.O.value[e]);
        for (int64_t e = 0; e < all.lse.count; e++)
            c->lse[e] = (float)all.lse.value[e];
        assert_int_equal(0,
                         oracle_run_within(&some, &c->args, 0, 1, (OracleRoundings){0}, &limits));
        while (oracle_sample_find(&some.rows, row) >= 0)
            row++;
        for (int64_t h = 0; h < 2; h++)
            for (int64_t x = 0; x <= 4; x++) { /* 4: lse */
                float *at =
                    x == 4 ? &c->lse[h * 400 + row]
                           : (float *)c->args.O.data + tensor_offset(&c->args.O, 0, row, h) + x;
                const float kept = *at;
                *at = NAN;
                assert_int_equal(h == 0 && (in_K || x == 1), case_agrees(c, &some, 0, 4, NULL));
                *at = kept;
            }
        oracle_free(&all);
        oracle_free(&some);
    }
    case_free(c);
}

/* Other rows in every run, unless the environment says which. */
TEST(seeds)
{
    uint64_t first;
    setenv("ATTN_SAMPLE_SEED", "5", 1);
    assert_int_equal(5, oracle_sample_seed());
    unsetenv("ATTN_SAMPLE_SEED");
    first = oracle_sample_seed();
    assert_true(first != 0 && first == oracle_sample_seed());
    setenv("ATTN_SAMPLE_SEED", "5", 1);
}

int main(void)
{
    setenv("ATTN_SAMPLE_SEED", "5", 1);
    return unit_tests();
}
