/* SPDX-License-Identifier: MIT
 *
 * test_options.c: what surrounds the values and bounds of stage 05's options. Options that ask for
 * nothing change no bit; the checker refuses wrong gradients of the normalisation's weights; a
 * sample of a big case equals the same rows computed alone.
 */
#include <math.h>

#include "attn_pairs.h"
#include "honest_options.h"
#include "plain_options.h"

static int same(const OracleArray *a, const OracleArray *b)
{
    const size_t bytes = sizeof(double) * (size_t)a->count;
    return a->count == b->count && memcmp(a->value, b->value, bytes) == 0 &&
           memcmp(a->fixed, b->fixed, bytes) == 0 && memcmp(a->per_c, b->per_c, bytes) == 0;
}

/* but for the order of sums */
static int near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * (1 + fabs(a));
}

TEST(options_that_ask_for_nothing)
{
    for (int n = 0; n < OPTION_COUNT; n++)
        for (int dtype = 0; dtype < 3; dtype++) {
            OptionCase o = option_case_new(&options[n], (AttnDtype)dtype, 4, 1);
            Oracle without = oracle_of(&o.c->args, 1, 1);
            o.c->args.options = &o.options;
            if (o.c->args.softcap > 0)
                o.options.temperature = 3; /* the cap wins */
            Oracle with = oracle_of(&o.c->args, 1, 1);
            assert_true(same(&without.O, &with.O) && same(&without.lse, &with.lse));
            assert_true(same(&without.dQ, &with.dQ) && same(&without.dK, &with.dK));
            assert_true(same(&without.dV, &with.dV));
            assert_true(with.dwq.count == 0 && with.dwk.count == 0);
            oracle_free(&without);
            oracle_free(&with);
            option_case_free(&o);
        }
}

/* A case with a normalisation, and who computes it right. */
static const Option norm_place = {"", {2, 4, 2, 20, 24, 16}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
static const HonestOptions right = {{1, 0, 0, 0}, RIGHT, 0};

static OptionCase norm_case(void)
{
    OptionCase o = option_case_new(&norm_place, ATTN_BF16, 1, 1);
    o.options.norm_group = 8;
    return o;
}

static Check judge(OptionCase *o, const Oracle *oracle, int backward)
{
    o->c->args.options = &o->options;
    return check_of(&o->c->args, oracle, backward, 4);
}

TEST(wrong_weight_gradients_fail)
{
    for (int which = CHECK_DWQ; which <= CHECK_DWK; which++)
        for (int way = 0; way < 7; way++) {
            Oracle oracle;
            OptionCase o = norm_case();
            float **const place = which == CHECK_DWQ ? &o.options.dwq : &o.options.dwk;
            const int64_t heads = which == CHECK_DWQ ? 4 : 2, at = (heads - 1) * 16 + 5;
            const OracleArray *e = which == CHECK_DWQ ? &oracle.dwq : &oracle.dwk;
            Check check;
            o.c->args.options = &o.options;
            assert_int_equal(0, oracle_run(&oracle, &o.c->args, 1, 1));
            honest_options_run(&right, &o.c->args);
            assert_true(judge(&o, &oracle, 1).pass);
            if (way == 0) /* one element, twice its bound */
                (*place)[at] = (float)(e->value[at] + 2 * (e->fixed[at] + 4 * e->per_c[at]));
            else if (way == 1)
                (*place)[at] = NAN;
            else if (way == 2)
                memset(*place, 0xFF, sizeof(float) * (size_t)(heads * 16));
            else if (way == 5) /* nothing to compare */
                *place = NULL;
            else
                for (int64_t x = 0; x < heads * 16; x++)
                    (*place)[x] = way == 3 ? -(*place)[x] : way == 4 ? 0 : (*place)[x] * 2;
            check = judge(&o, &oracle, 1);
            assert_false(check.pass);
            assert_true(check.array[which].checked);
            assert_true(way == 5 || check.array[which].off > 0);
            assert_int_equal(0, check.array[CHECK_DWQ + CHECK_DWK - which].off);
            const char *text = explanation(&check, &o.c->args);
            assert_non_null(strstr(text, which == CHECK_DWQ ? "dwq" : "dwk"));
            if (way == 0) {
                assert_int_equal(heads - 1, check.array[which].h);
                assert_int_equal(5, check.array[which].x);
                assert_non_null(strstr(text, heads == 4 ? "(h=3, x=5)" : "(h=1, x=5)"));
                assert_non_null(strstr(text, heads == 4 ? "1 of 4 heads" : "1 of 2 heads"));
            }
            assert_true(way != 2 || strstr(text, "never written"));
            assert_true(way != 3 || strstr(text, "the sign is flipped"));
            assert_true(way != 4 || strstr(text, "all zeros"));
            assert_true(way != 5 || strstr(text, "nothing of"));
            check = judge(&o, &oracle, 0); /* a forward run has none */
            assert_true(check.pass && !check.array[which].checked);
            oracle_free(&oracle);
            option_case_free(&o);
        }
}

/* A NaN in one batch's K reaches dwk of its kv head and dwq of that one's query heads. */
TEST(taint_reaches_weight_gradients)
{
    OptionCase o = norm_case();
    Check check;
    case_set(&o.c->args.K, 1, 3, 1, 2, NAN);
    o.c->args.options = &o.options;
    Oracle oracle = oracle_of(&o.c->args, 1, 1);
    honest_options_run(&right, &o.c->args);
    check = judge(&o, &oracle, 1);
    assert_true(check.pass);
    for (int64_t x = 0; x < 16; x++) {
        assert_true(isfinite(oracle.dwk.value[x]) && isfinite(o.dwk[x]));
        assert_true(isfinite(oracle.dwq.value[x]) && isfinite(o.dwq[16 + x]));
        assert_true(!isfinite(oracle.dwk.value[16 + x]) && !isfinite(oracle.dwq.value[48 + x]));
    }
    o.dwk[0] = NAN; /* head 0 has nothing to do with it */
    assert_false(judge(&o, &oracle, 1).pass);
    oracle_free(&oracle);
    option_case_free(&o);
}

/* More than 10^10 pair-channels, most of them outside the window: only a sample is computed, and no
 * dwq and dwk. Rows of the sample equal a case that holds nothing but the row and its keys. */
TEST(sample_of_a_big_case)
{
    const Option place = {"", {1, 1, 1, 10100, 10100, 100}, ATTN_MASK_NONE, 4, 0, 0, 0, 0};
    OptionCase o = option_case_new(&place, ATTN_F16, 1, 1);
    o.options.norm_group = 25;
    o.options.clip_low = -0.05f;
    o.options.temperature = 0.5f;
    o.c->args.options = &o.options;
    Oracle big = oracle_of(&o.c->args, 1, 2);
    assert_true(big.rows.count < 200 && big.rows.count > 50);
    assert_true(big.dwq.count == 0 && big.dwk.count == 0);
    assert_true(judge(&o, &big, 1).array[CHECK_DWQ].checked == 0);
    for (int64_t t = 0; t < big.rows.count; t += 7) {
        const int64_t i = big.rows.index[t], first = i < 4 ? 0 : i - 4, n = i - first + 1;
        AttnArgs a = o.c->args;
        AttnSegment q = {0, 1, 0, i, 1}, k = {0, n, 0, first, 1};
        a.shape.Nq = a.Q.shape[1] = a.dO.shape[1] = 1;
        a.shape.Nk = a.K.shape[1] = a.V.shape[1] = n;
        a.Q.data = (char *)a.Q.data + 2 * tensor_offset(&a.Q, 0, i, 0);
        a.dO.data = (char *)a.dO.data + 2 * tensor_offset(&a.dO, 0, i, 0);
        a.K.data = (char *)a.K.data + 2 * tensor_offset(&a.K, 0, first, 0);
        a.V.data = (char *)a.V.data + 2 * tensor_offset(&a.V, 0, first, 0);
        a.positions_q = attn_positions(&q, 1);
        a.positions_k = attn_positions(&k, 1);
        Oracle row = oracle_of(&a, 1, 1);
        assert_true(near(row.lse.value[0], big.lse.value[t]));
        for (int64_t x = 0; x < 100; x++) {
            assert_true(near(row.O.value[x], big.O.value[100 * t + x]));
            assert_true(near(row.dQ.value[x], big.dQ.value[100 * t + x]));
            assert_true(near(row.dQ.fixed[x], big.dQ.fixed[100 * t + x]));
        }
        oracle_free(&row);
    }
    oracle_free(&big);
    option_case_free(&o);
}
