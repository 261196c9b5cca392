/* SPDX-License-Identifier: MIT
 *
 * test_options.c: what surrounds the values and bounds of stage 05's options. Options that ask for
 * nothing change no bit; the checker refuses wrong gradients of the normalisation's weights;
 * dropout keeps the mean; the yardstick knows every option; rounding O after every step has a bound
 * of its own, which is as wide as the steps are many and no wider.
 */
#include "honest_options.h"
#include "plain_options.h"

#include "check.h"
#include "yardstick.h"

static int same(const OracleArray *a, const OracleArray *b)
{
    const size_t bytes = sizeof(double) * (size_t)a->count;
    return a->count == b->count && memcmp(a->value, b->value, bytes) == 0 &&
           memcmp(a->fixed, b->fixed, bytes) == 0 && memcmp(a->per_c, b->per_c, bytes) == 0;
}

static void options_that_ask_for_nothing(void **state)
{
    (void)state;
    for (int n = 0; n < OPTION_COUNT; n++)
        for (int dtype = 0; dtype < 3; dtype++) {
            OptionCase o = option_case_new(&options[n], (AttnDtype)dtype, 4, 1);
            Oracle without, with;
            Yardstick y_without, y_with;
            assert_int_equal(0, oracle_run(&without, &o.c->args, 1, 1));
            assert_int_equal(0, yardstick_run(&y_without, &without, &o.c->args, 1, 1));
            o.c->args.options = &o.options;
            if (o.c->args.softcap > 0)
                o.options.temperature = 3; /* the cap wins */
            assert_int_equal(0, oracle_run(&with, &o.c->args, 1, 1));
            assert_int_equal(0, yardstick_run(&y_with, &with, &o.c->args, 1, 1));
            assert_true(same(&without.O, &with.O) && same(&without.lse, &with.lse));
            assert_true(same(&without.dQ, &with.dQ) && same(&without.dK, &with.dK));
            assert_true(same(&without.dV, &with.dV));
            assert_true(with.dwq.count == 0 && with.dwk.count == 0);
            assert_memory_equal(&y_without, &y_with, sizeof y_with);
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
    Check check = {.inputs_intact = 1, .storage_intact = 1};
    o->c->args.options = &o->options;
    check_outputs(&check, oracle, NULL, &o->c->args, backward, 4);
    return check;
}

/* What explain prints about it. */
static void explanation(const Check *check, const AttnArgs *args, char *text, size_t size)
{
    FILE *f = tmpfile();
    size_t found;
    assert_non_null(f);
    check_explain(check, "unit", args, f);
    rewind(f);
    found = fread(text, 1, size - 1, f);
    text[found] = 0;
    fclose(f);
}

static void wrong_weight_gradients_fail(void **state)
{
    char text[2000];
    (void)state;
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
            explanation(&check, &o.c->args, text, sizeof text);
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
static void taint_reaches_weight_gradients(void **state)
{
    Oracle oracle;
    OptionCase o = norm_case();
    Check check;
    (void)state;
    case_set(&o.c->args.K, 1, 3, 1, 2, NAN);
    o.c->args.options = &o.options;
    assert_int_equal(0, oracle_run(&oracle, &o.c->args, 1, 1));
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

/* The mean of O over seeds is O without dropout, within five standard deviations of the mean; lse
 * does not know of dropout at all. */
static void dropout_keeps_the_mean(void **state)
{
    const Option place = {"", {1, 2, 1, 4, 12, 3}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    const int seeds = 4000;
    OptionCase o = option_case_new(&place, ATTN_F32, 1, 1);
    double sum[24] = {0};
    Oracle plain, one;
    Plain p;
    (void)state;
    o.c->args.options = &o.options;
    assert_int_equal(0, oracle_run(&plain, &o.c->args, 0, 1));
    p = plain_new(&o.c->args);
    plain_forward(&p);
    o.options.dropout = 0.25f;
    for (int n = 0; n < seeds; n++) {
        o.options.dropout_seed = (uint64_t)n;
        assert_int_equal(0, oracle_run(&one, &o.c->args, 0, 1));
        for (int64_t e = 0; e < 24; e++)
            sum[e] += one.O.value[e];
        assert_memory_equal(plain.lse.value, one.lse.value, 8 * sizeof(double));
        oracle_free(&one);
    }
    for (int64_t e = 0; e < 24; e++) {
        const double *P = p.P + e / 3 * 12;
        double variance = 0; /* of one seed: sum of (P V)^2 p / (1 - p) */
        for (int64_t j = 0; j < 12; j++)
            variance += pow(P[j] * p.V[3 * j + e % 3], 2) * 0.25 / 0.75;
        assert_true(variance > 0);
        assert_true(fabs(sum[e] / seeds - plain.O.value[e]) < 5 * sqrt(variance / seeds));
    }
    plain_free(&p);
    oracle_free(&plain);
    option_case_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_ask_for_nothing),
        cmocka_unit_test(wrong_weight_gradients_fail),
        cmocka_unit_test(taint_reaches_weight_gradients),
        cmocka_unit_test(dropout_keeps_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
