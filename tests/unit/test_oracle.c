/* SPDX-License-Identifier: MIT
 *
 * test_oracle.c: proves the code that judges everything else.
 *
 * - The forward pass equals the definition (plain_options.h), for every option.
 * - The gradients equal central finite differences of it: test_differences.c. (Closed forms, which
 *   follow from the definition, are asked of the programs: tests/stages/test_properties.py.)
 * - Sampling returns the same numbers as computing everything.
 *
 * And what the oracle expects, and the checker accepts, where inputs hold NaN or infinity:
 * - A bad value reaches the rows that see it, and no other.
 * - Keys that make every score of a row -inf are as good as hidden: the row is one that sees no
 *   key, the others are what they would be without those keys.
 * - An infinite key with the weight 0 adds nothing, at any d.
 * - Inputs that overflow float32 on the way are known as such.
 * - dO of a row without keys reaches nothing and excuses nothing.
 * - For such a row the checker accepts zeros and -inf, or NaN, and nothing else; whether it is the
 *   key that is infinite or the query.
 */
#include <math.h>

#include "attn_pairs.h"
#include "judge_case.h"
#include "plain_options.h"

static void expect_close(double found, double expected, double tolerance, const char *what)
{
    const double gap = fabs(found - expected) / (1 + fabs(expected));
    if (!(gap <= tolerance))
        fail_msg("%s: found %.17g, expected %.17g", what, found, expected);
}

/* O and lse by the definition, one output element at a time. */
TEST(forward_is_definition)
{
    for (int n = 0; n < OPTION_COUNT; n++) {
        OptionCase of = option_case_new(&options[n], ATTN_F32, 1, 1);
        const AttnShape s = of.c->args.shape;
        Oracle o = oracle_of(&of.c->args, 0, 1);
        of.c->args.options = &of.options; /* which ask for nothing */
        Plain p = plain_new(&of.c->args);
        plain_forward(&p);
        for (int64_t row = 0; row < o.lse.count; row++)
            if (o.lse.value[row] != p.lse[row])
                expect_close(o.lse.value[row], p.lse[row], 1e-13, options[n].name);
        for (int64_t e = 0; e < o.O.count; e++)
            expect_close(o.O.value[oracle_element(e, s.Nq, s.H, s.d)], p.O[e], 1e-13,
                         options[n].name);
        plain_free(&p);
        oracle_free(&o);
        option_case_free(&of);
    }
}

/* 40000^2 x 8 is above 10^10 pair-channels: the sample must agree with a smaller problem that holds
 * the same keys. A window makes the rows independent of everything far away. */
TEST(sample_equals_whole)
{
    const AttnShape big = {1, 1, 1, 40000, 40000, 8}, small = {1, 1, 1, 400, 400, 8};
    Case *b = case_new(big, ATTN_F32, LAYOUT_BSHD, 1),
         *s = case_new(small, ATTN_F32, LAYOUT_BSHD, 1);
    int compared = 0;
    b->args.rule = s->args.rule = (AttnRule){20, 20};
    for (int64_t e = 0; e < 400 * 8; e++) {
        case_set(&s->args.Q, 0, e / 8, 0, e % 8, case_get(&b->args.Q, 0, e / 8, 0, e % 8));
        case_set(&s->args.K, 0, e / 8, 0, e % 8, case_get(&b->args.K, 0, e / 8, 0, e % 8));
        case_set(&s->args.V, 0, e / 8, 0, e % 8, case_get(&b->args.V, 0, e / 8, 0, e % 8));
        case_set(&s->args.dO, 0, e / 8, 0, e % 8, case_get(&b->args.dO, 0, e / 8, 0, e % 8));
    }
    Oracle whole = oracle_of(&s->args, 1, 1);
    Oracle some = oracle_of(&b->args, 1, 1);
    assert_int_equal(400, whole.rows.count);
    assert_in_range(some.rows.count, 70, 90);
    assert_int_equal(0, some.rows.index[0]);
    assert_int_equal(39999, some.rows.index[some.rows.count - 1]);
    assert_int_equal(1, some.kv_heads.count);
    for (int64_t t = 0; t < some.rows.count && some.rows.index[t] < 300; t++, compared++)
        for (int64_t x = 0; x < 8; x++) {
            const int64_t i = some.rows.index[t];
            expect_close(some.O.value[t * 8 + x], whole.O.value[i * 8 + x], 1e-14, "O");
            expect_close(some.dQ.value[t * 8 + x], whole.dQ.value[i * 8 + x], 1e-14, "dQ");
        }
    for (int64_t t = 0; t < some.keys.count && some.keys.index[t] < 300; t++, compared++)
        for (int64_t x = 0; x < 8; x++) {
            const int64_t j = some.keys.index[t];
            expect_close(some.dK.value[t * 8 + x], whole.dK.value[j * 8 + x], 1e-14, "dK");
            expect_close(some.dV.value[t * 8 + x], whole.dV.value[j * 8 + x], 1e-14, "dV");
        }
    assert_true(compared >= 20);
    oracle_free(&whole);
    oracle_free(&some);
    case_free(b);
    case_free(s);
}

/* --- NaN and infinity --------------------------------------------------------------------------*/

enum { N = 8, D = 4 };

static Case *causal_case(void)
{
    Case *c = case_new((AttnShape){1, 1, 1, N, N, D}, ATTN_F32, LAYOUT_BSHD, 1);
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    for (int64_t i = 0; i < N; i++) {
        case_set(&c->args.Q, 0, i, 0, 1, 0.5f + (float)i / 8);
        case_set(&c->args.K, 0, i, 0, 1, 0.25f);
    }
    return c;
}

TEST(nonfinite_reaches_who_sees_it)
{
    Case *c = causal_case();
    case_set(&c->args.K, 0, 5, 0, 1, NAN);
    case_set(&c->args.V, 0, 3, 0, 2, INFINITY);
    Oracle o = oracle_of(&c->args, 1, 1);
    assert_int_equal(ORACLE_TAINT_K | ORACLE_TAINT_V, o.tainted[0]);
    for (int64_t i = 0; i < N; i++) {
        assert_int_equal(i < 5, isfinite(o.lse.value[i]));
        for (int64_t x = 0; x < D; x++)
            assert_int_equal(i < 5 && (i < 3 || x != 2), isfinite(o.O.value[i * D + x]));
    }
    oracle_free(&o);
    case_free(c);
}

TEST(keys_of_minus_infinity_are_hidden)
{
    Case *c = causal_case();
    uint8_t mask[N * N];
    for (int e = 0; e < N * N; e++)
        mask[e] = e % N < 3;
    c->args.mask = mask;
    Oracle hidden = oracle_of(&c->args, 1, 1);
    c->args.mask = NULL;
    for (int64_t j = 0; j < 3; j++)
        case_set(&c->args.K, 0, j, 0, 1, -INFINITY);
    Oracle o = oracle_of(&c->args, 1, 1);
    for (int64_t i = 0; i < N; i++) {
        if (i < 3)
            assert_true(o.lse.value[i] == -INFINITY);
        else
            expect_close(o.lse.value[i], hidden.lse.value[i], 1e-14, "lse");
        for (int64_t e = D * i; e < D * i + D; e++) {
            expect_close(o.O.value[e], hidden.O.value[e], 1e-14, "O");
            expect_close(o.dK.value[e], hidden.dK.value[e], 1e-14, "dK");
            expect_close(o.dV.value[e], hidden.dV.value[e], 1e-14, "dV");
            assert_true(i >= 3 || o.dQ.value[e] == 0);
        }
    }
    oracle_free(&hidden);
    oracle_free(&o);
    case_free(c);
}

/* One query, two keys, of which the first has the score -inf: all weight is on the second. The sums
 * over channels and keys come in fours in there; d and Nk need not. */
TEST(hidden_key_at_any_width)
{
    for (int64_t d = 1; d <= 9; d++) {
        Case *c = case_new((AttnShape){1, 1, 1, 1, 2, d}, ATTN_F32, LAYOUT_BSHD, 1);
        c->args.scale = 1;
        for (int64_t x = 0; x < d; x++) {
            case_set(&c->args.Q, 0, 0, 0, x, x == d - 1);
            case_set(&c->args.K, 0, 0, 0, x, x == d - 1 ? -INFINITY : 0.25f);
            case_set(&c->args.K, 0, 1, 0, x, 1);
            case_set(&c->args.V, 0, 0, 0, x, 1);
            case_set(&c->args.V, 0, 1, 0, x, 2);
        }
        Oracle o = oracle_of(&c->args, 0, 1);
        expect_close(o.lse.value[0], 1, 1e-14, "lse");
        for (int64_t x = 0; x < d; x++)
            expect_close(o.O.value[x], 2, 1e-14, "O");
        oracle_free(&o);
        case_free(c);
    }
}

/* What no float32 program can compute is known before any is judged. The change is made at query
 * or key 2, once seen and once hidden by a mask. */
TEST(overflow_is_foreseen)
{
    enum { IN_Q, IN_K, IN_V, IN_dO };
    static const struct {
        int tensor, backward;
        float value, other; /* other: of the tensor that it is multiplied with */
        int overflows;
    } cases[] = {
        {IN_Q, 0, 1e20f, 1e20f, 1}, {IN_Q, 0, 1e15f, 1e15f, 0}, {IN_K, 0, 3e38f, 0.5f, 0},
        {IN_K, 0, 3e38f, 4, 1},     {IN_V, 0, 3e38f, 1, 0},     {IN_V, 1, 3e38f, 1, 1},
        {IN_dO, 1, 1e38f, 1, 1},    {IN_dO, 0, 1e38f, 1, 0},    {IN_V, 0, INFINITY, 1, 0},
        {IN_dO, 1, INFINITY, 1, 0},
    };
    static const int partner[] = {IN_K, IN_Q, IN_dO, IN_V};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (int hidden = 0; hidden < 2; hidden++) {
            Case *c = case_new((AttnShape){1, 1, 1, N, N, D}, ATTN_F32, LAYOUT_BSHD, 1);
            const Tensor *t[] = {&c->args.Q, &c->args.K, &c->args.V, &c->args.dO};
            uint8_t mask[N * N] = {0};
            c->args.scale = 0.5f;
            for (int64_t e = 0; e < N * D; e++)
                for (int m = 0; m < 4; m++)
                    case_set(t[m], 0, e / D, 0, e % D,
                             m == partner[cases[n].tensor] ? cases[n].other : 0.125f);
            case_set(t[cases[n].tensor], 0, 2, 0, 1, cases[n].value);
            for (int64_t m = 0; m < N; m++)
                mask[cases[n].tensor == IN_Q || cases[n].tensor == IN_dO ? 2 * N + m : m * N + 2] =
                    1;
            c->args.mask = hidden ? mask : NULL;
            if (oracle_overflows(&c->args, cases[n].backward) != (cases[n].overflows && !hidden))
                fail_msg("case %zu, %s", n, hidden ? "hidden" : "seen");
            case_free(c);
        }
}

/* Outputs as the oracle has them. */
static void write_outputs(Case *c, const Oracle *o)
{
    for (int64_t e = 0; e < N * D; e++) {
        case_set(&c->args.O, 0, e / D, 0, e % D, (float)o->O.value[e]);
        case_set(&c->args.dQ, 0, e / D, 0, e % D, (float)o->dQ.value[e]);
        case_set(&c->args.dK, 0, e / D, 0, e % D, (float)o->dK.value[e]);
        case_set(&c->args.dV, 0, e / D, 0, e % D, (float)o->dV.value[e]);
        c->lse[e / D] = (float)o->lse.value[e / D];
    }
}

/* Padding: row 2 is masked out and its dO is NaN or infinite. */
TEST(padded_gradients_reach_nothing)
{
    static const float paddings[] = {NAN, INFINITY};
    for (int n = 0; n < 2; n++) {
        Case *c = causal_case();
        uint8_t mask[N * N] = {0};
        memset(mask + 2 * N, 1, N);
        c->args.mask = mask;
        for (int64_t x = 0; x < D; x++)
            case_set(&c->args.dO, 0, 2, 0, x, paddings[n]);
        Oracle o = oracle_of(&c->args, 1, 1);
        assert_int_equal(0, o.tainted[0]);
        for (int64_t e = 0; e < N * D; e++)
            assert_true(isfinite(o.dQ.value[e]) && isfinite(o.dK.value[e]) &&
                        isfinite(o.dV.value[e]) && isfinite(o.dV.fixed[e]));
        write_outputs(c, &o);
        assert_true(case_agrees(c, &o, 1, 4, NULL));
        case_set(&c->args.dQ, 0, 2, 0, 1, NAN);
        assert_false(case_agrees(c, &o, 1, 4, NULL));
        case_set(&c->args.dQ, 0, 2, 0, 1, 0);
        case_set(&c->args.dV, 0, 5, 0, 1, NAN);
        assert_false(case_agrees(c, &o, 1, 4, NULL));
        oracle_free(&o);
        case_free(c);
    }
}

/* Row 2 has scores of -inf only: from its three keys, or from its query. */
TEST(empty_or_nan_and_nothing_else)
{
    for (int in_query = 0; in_query < 2; in_query++) {
        Case *c = causal_case();
        for (int64_t j = 0; j < 3; j++)
            case_set(in_query ? &c->args.Q : &c->args.K, 0, in_query ? 2 : j, 0, 1, -INFINITY);
        Oracle o = oracle_of(&c->args, 1, 1);
        write_outputs(c, &o);
        assert_true(c->lse[2] == -INFINITY && case_get(&c->args.O, 0, 2, 0, 1) == 0);
        assert_true(case_agrees(c, &o, 1, 4, NULL));
        c->lse[2] = -9;
        assert_false(case_agrees(c, &o, 1, 4, NULL));
        c->lse[2] = NAN;
        assert_true(case_agrees(c, &o, 1, 4, NULL));
        case_set(&c->args.O, 0, 2, 0, 1, NAN);
        case_set(&c->args.dQ, 0, 2, 0, 1, NAN);
        assert_true(case_agrees(c, &o, 1, 4, NULL));
        case_set(&c->args.O, 0, 2, 0, 1, 1e-3f);
        assert_false(case_agrees(c, &o, 1, 4, NULL));
        case_set(&c->args.O, 0, 2, 0, 1, 0);
        case_set(&c->args.dQ, 0, 2, 0, 1, 1e-3f);
        assert_false(case_agrees(c, &o, 1, 4, NULL));
        oracle_free(&o);
        case_free(c);
    }
}

/* Rows are looked through by their bits: each value at each place of a row, and what stands in the
 * neighbouring rows does not count. */
TEST(rows_by_their_bits)
{
    static const struct {
        float value;
        int nonfinite, nan;
    } values[] = {{0.0f, 0, 0},     {-0.0f, 0, 0},     {1e-7f, 0, 0}, {-60000.0f, 0, 0},
                  {INFINITY, 1, 0}, {-INFINITY, 1, 0}, {NAN, 1, 1},   {-NAN, 1, 1}};
    for (int dtype = 0; dtype < 3; dtype++)
        for (size_t n = 0; n < sizeof values / sizeof *values; n++) {
            Storage s;
            assert_int_equal(0, tensor_new(&s, (AttnDtype)dtype, LAYOUT_ODD, 1, 3, 2, 37));
            for (int64_t x = 0; x < 37; x++) {
                for (int64_t y = 0; y < 37; y++)
                    case_set(&s.view, 0, 1, 1, y, (float)y);
                case_set(&s.view, 0, 1, 1, x, values[n].value);
                assert_int_equal(values[n].nonfinite, row_nonfinite(&s.view, 0, 1, 1));
                assert_int_equal(values[n].nan, row_nan(&s.view, 0, 1, 1));
            }
            assert_int_equal(37, row_nan(&s.view, 0, 1, 0)); /* poison */
            tensor_free(&s);
        }
}
