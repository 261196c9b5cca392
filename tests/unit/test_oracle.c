/* SPDX-License-Identifier: MIT
 *
 * test_oracle.c: proves the code that judges everything else.
 *
 * - The forward pass equals the definition (plain_options.h), for every option.
 * - The gradients equal central finite differences of it: test_differences.c.
 * - Closed forms: cases whose answer is known without computing attention.
 * - Sampling returns the same numbers as computing everything.
 * NaN and infinity in the inputs: test_oracle_nonfinite.c.
 */
#include "plain_options.h"

#include "check/check.h"

static void expect_close(double found, double expected, double tolerance, const char *what)
{
    const double gap = fabs(found - expected) / (1 + fabs(expected));
    if (!(gap <= tolerance))
        fail_msg("%s: found %.17g, expected %.17g", what, found, expected);
}

static Oracle run(const Case *c, int backward)
{
    Oracle o = oracle_of(&c->args, backward, 1);
    return o;
}

/* O and lse by the definition, one output element at a time. */
TEST(forward_is_definition)
{
    for (int n = 0; n < OPTION_COUNT; n++) {
        OptionCase of = option_case_new(&options[n], ATTN_F32, 1, 1);
        const AttnShape s = of.c->args.shape;
        Oracle o = run(of.c, 0);
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

TEST(constant_V)
{
    for (int n = 0; n < OPTION_COUNT; n++) {
        Case *c = case_option(&options[n], ATTN_F32, 3, 1);
        const Tensor *V = &c->args.V;
        Oracle o;
        for (int64_t e = 0; e < V->shape[0] * V->shape[1] * V->shape[2] * V->shape[3]; e++) {
            const int64_t x = e % V->shape[3], h = e / V->shape[3] % V->shape[2];
            const int64_t j = e / (V->shape[3] * V->shape[2]) % V->shape[1];
            const int64_t b = e / (V->shape[3] * V->shape[2] * V->shape[1]);
            case_set(V, b, j, h, x, 0.75f);
        }
        o = run(c, 0);
        for (int64_t e = 0; e < o.O.count; e++)
            expect_close(o.O.value[e], isinf(o.lse.value[e / V->shape[3]]) ? 0 : 0.75, 1e-14,
                         "constant V");
        oracle_free(&o);
        case_free(c);
    }
}

/* Q = 0: every visible key weighs the same. */
TEST(zero_Q)
{
    for (int n = 0; n < OPTION_COUNT; n++) {
        Case *c = case_option(&options[n], ATTN_F32, 2, 1);
        const AttnShape s = c->args.shape;
        Oracle o;
        case_fill(&c->args.Q, 0);
        o = run(c, 0);
        for (int64_t row = 0; row < s.B * s.H * s.Nq; row++) {
            const int64_t b = row / (s.H * s.Nq), h = row / s.Nq % s.H, i = row % s.Nq;
            int64_t count = 0;
            double sum = 0;
            for (int64_t j = 0; j < s.Nk; j++)
                if (attn_sees(&c->args, i, j)) {
                    count++;
                    sum += case_get(&c->args.V, b, j, h / (s.H / s.Hkv), 0);
                }
            if (count == 0)
                continue;
            expect_close(o.lse.value[row], log((double)count), 1e-14, "log(count)");
            expect_close(o.O.value[row * s.d], sum / (double)count, 1e-14, "mean of V");
        }
        oracle_free(&o);
        case_free(c);
    }
}

/* Window (0,0): O_i = V at i + Nk - Nq, whatever Q and K. */
TEST(window_of_one)
{
    Case *c = case_new((AttnShape){2, 2, 2, 9, 13, 4}, ATTN_F32, LAYOUT_ODD, 1);
    Oracle o;
    c->args.rule = (AttnRule){0, 0};
    o = run(c, 0);
    for (int64_t e = 0; e < o.O.count; e++) {
        const int64_t x = e % 4, i = e / 4 % 9, h = e / 36 % 2, b = e / 72;
        assert_true(o.O.value[e] == case_get(&c->args.V, b, i + 4, h, x));
    }
    oracle_free(&o);
    case_free(c);
}

/* Reversing the keys together with their values changes nothing without a mask. */
TEST(permuted_keys)
{
    Case *c = case_new((AttnShape){1, 2, 1, 7, 12, 5}, ATTN_F32, LAYOUT_BSHD, 1);
    Oracle before, after;
    before = run(c, 1);
    for (int64_t j = 0; j < 6; j++)
        for (int64_t x = 0; x < 5; x++) {
            const float k = case_get(&c->args.K, 0, j, 0, x), v = case_get(&c->args.V, 0, j, 0, x);
            case_set(&c->args.K, 0, j, 0, x, case_get(&c->args.K, 0, 11 - j, 0, x));
            case_set(&c->args.V, 0, j, 0, x, case_get(&c->args.V, 0, 11 - j, 0, x));
            case_set(&c->args.K, 0, 11 - j, 0, x, k);
            case_set(&c->args.V, 0, 11 - j, 0, x, v);
        }
    after = run(c, 1);
    for (int64_t e = 0; e < before.O.count; e++) {
        expect_close(after.O.value[e], before.O.value[e], 1e-14, "O of permuted keys");
        expect_close(after.dQ.value[e], before.dQ.value[e], 1e-13, "dQ of permuted keys");
    }
    for (int64_t e = 0; e < before.dK.count; e++)
        expect_close(after.dK.value[(11 - e / 5) * 5 + e % 5], before.dK.value[e], 1e-13, "dK");
    oracle_free(&before);
    oracle_free(&after);
    case_free(c);
}

/* K_j + shift for all j: O stays, lse_i moves by scale q_i . shift. */
TEST(shifted_keys)
{
    Case *c = case_new((AttnShape){1, 1, 1, 6, 9, 4}, ATTN_F32, LAYOUT_BSHD, 1);
    const float shift[] = {0.5f, -1.25f, 2, 0.25f};
    Oracle before, after;
    before = run(c, 0);
    for (int64_t e = 0; e < 36; e++)
        case_set(&c->args.K, 0, e / 4, 0, e % 4,
                 case_get(&c->args.K, 0, e / 4, 0, e % 4) + shift[e % 4]);
    after = run(c, 0);
    for (int64_t i = 0; i < 6; i++) {
        double by = 0;
        for (int64_t x = 0; x < 4; x++) {
            by += (double)c->args.scale * case_get(&c->args.Q, 0, i, 0, x) * shift[x];
            expect_close(after.O.value[i * 4 + x], before.O.value[i * 4 + x], 1e-14,
                         "O of shifted keys");
        }
        expect_close(after.lse.value[i], before.lse.value[i] + by, 1e-14, "lse of shifted keys");
    }
    oracle_free(&before);
    oracle_free(&after);
    case_free(c);
}

/* GQA equals MHA with every kv head repeated; dK and dV are sums over the copies. */
TEST(gqa_is_repeated_mha)
{
    Case *gqa = case_new((AttnShape){2, 6, 2, 5, 8, 3}, ATTN_F32, LAYOUT_BSHD, 1);
    Case *mha = case_new((AttnShape){2, 6, 6, 5, 8, 3}, ATTN_F32, LAYOUT_BSHD, 1);
    Oracle g, m;
    for (int64_t e = 0; e < 2 * 6 * 8 * 3; e++) {
        const int64_t x = e % 3, j = e / 3 % 8, h = e / 24 % 6, b = e / 144;
        case_set(&mha->args.K, b, j, h, x, case_get(&gqa->args.K, b, j, h / 3, x));
        case_set(&mha->args.V, b, j, h, x, case_get(&gqa->args.V, b, j, h / 3, x));
    }
    for (int64_t e = 0; e < 2 * 6 * 5 * 3; e++) {
        const int64_t x = e % 3, i = e / 3 % 5, h = e / 15 % 6, b = e / 90;
        case_set(&mha->args.Q, b, i, h, x, case_get(&gqa->args.Q, b, i, h, x));
        case_set(&mha->args.dO, b, i, h, x, case_get(&gqa->args.dO, b, i, h, x));
    }
    g = run(gqa, 1);
    m = run(mha, 1);
    for (int64_t e = 0; e < g.O.count; e++) {
        expect_close(g.O.value[e], m.O.value[e], 1e-14, "O");
        expect_close(g.dQ.value[e], m.dQ.value[e], 1e-14, "dQ");
    }
    for (int64_t e = 0; e < g.dK.count; e++) {
        const int64_t kv = e / 24, at = e % 24;
        double dK = 0, dV = 0;
        for (int64_t copy = 0; copy < 3; copy++) {
            dK += m.dK.value[(kv * 3 + copy) * 24 + at];
            dV += m.dV.value[(kv * 3 + copy) * 24 + at];
        }
        expect_close(g.dK.value[e], dK, 1e-13, "dK");
        expect_close(g.dV.value[e], dV, 1e-13, "dV");
    }
    oracle_free(&g);
    oracle_free(&m);
    case_free(gqa);
    case_free(mha);
}

/* 40000^2 x 8 is above 10^10 pair-channels: the sample must agree with a smaller problem that holds
 * the same keys. A window makes the rows independent of everything far away. */
TEST(sample_equals_whole)
{
    const AttnShape big = {1, 1, 1, 40000, 40000, 8}, small = {1, 1, 1, 400, 400, 8};
    Case *b = case_new(big, ATTN_F32, LAYOUT_BSHD, 1),
         *s = case_new(small, ATTN_F32, LAYOUT_BSHD, 1);
    Oracle whole, some;
    int compared = 0;
    b->args.rule = s->args.rule = (AttnRule){20, 20};
    for (int64_t e = 0; e < 400 * 8; e++) {
        case_set(&s->args.Q, 0, e / 8, 0, e % 8, case_get(&b->args.Q, 0, e / 8, 0, e % 8));
        case_set(&s->args.K, 0, e / 8, 0, e % 8, case_get(&b->args.K, 0, e / 8, 0, e % 8));
        case_set(&s->args.V, 0, e / 8, 0, e % 8, case_get(&b->args.V, 0, e / 8, 0, e % 8));
        case_set(&s->args.dO, 0, e / 8, 0, e % 8, case_get(&b->args.dO, 0, e / 8, 0, e % 8));
    }
    whole = run(s, 1);
    some = run(b, 1);
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
