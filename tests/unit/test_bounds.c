/* SPDX-License-Identifier: MIT
 *
 * test_bounds.c: a right implementation must pass, whatever its order of summation and dtype; and
 * the bound must not be so wide that it means nothing. Prints how much of it is used.
 */
#include <math.h>

#include "honest_options.h"

static Shares worst;

/* Runs the honest kernel on a case: its results have to pass. */
static Check expect_pass(const Case *c, const Honest *w, const char *name)
{
    honest_forward(w, &c->args);
    honest_backward(w, &c->args);
    Oracle o = oracle_of(&c->args, 1, 2);
    const Check check = check_of(&c->args, &o, 1, 4);
    assert_pass(&check, &c->args, name);
    shares_add(worst, c->args.Q.dtype, &check);
    oracle_free(&o);
    return check;
}

static const Honest ways[] = {{1 << 20, 0, 0, 0}, {16, 1, 1, 1}, {5, 0, 1, 0}};

TEST(honest_kernels_pass)
{
    const float sizes[] = {1, 3, 8};
    for (int n = 0; n < OPTION_COUNT; n++)
        for (int dtype = 0; dtype < 3; dtype++)
            for (int larger = 1; larger <= (quick() ? 4 : 16); larger *= 4)
                for (int way = 0; way < 3; way++) {
                    Case *c = case_option(&options[n], (AttnDtype)dtype, larger, sizes[way]);
                    expect_pass(c, &ways[(n + way) % 3], options[n].name);
                    case_free(c);
                }
}

/* Error of dK over eta (1 + max(scale,1) sum |Q|), among keys whose true dK is itself so small that
 * every other part of the bound is far smaller: below 2^-118. */
static double largest_error_in_floor_units(const Case *c)
{
    const AttnShape s = c->args.shape;
    double largest = 0;
    if (c->args.Q.dtype == ATTN_F16)
        return 0;
    Oracle o = oracle_of(&c->args, 1, 1);
    for (int64_t e = 0; e < o.dK.count; e++) {
        const int64_t j = e / s.d, x = e % s.d;
        const double true_dK = o.dK.value[e];
        double floor_size = 1;
        if (!(fabs(true_dK) < 0x1p-118))
            continue;
        for (int64_t i = 0; i < s.Nq; i++)
            floor_size += fabs((double)case_get(&c->args.Q, 0, i, 0, x));
        largest = fmax(largest, fabs(case_get(&c->args.dK, 0, j, 0, x) - true_dK) /
                                    (0x1p-126 * floor_size + fabs(true_dK) * 0x1p-6));
    }
    oracle_free(&o);
    return largest;
}

/* One or two queries, and keys that nearly nobody looks at: their P underflows while |dP - delta|
 * is large. Counts the cases that a floor without |dP - delta| would refuse. */
TEST(underflow_passes)
{
    int refused = 0;
    for (int dtype = 0; dtype < 3; dtype++)
        for (int n = 0; n < 40; n++) {
            Case *c = case_new((AttnShape){1, 1, 1, 1 + n % 2, 40, 64}, (AttnDtype)dtype, 0, 6);
            case_fill(&c->args.V, 8);
            case_fill(&c->args.dO, 8);
            expect_pass(c, &ways[1], "underflow");
            refused += largest_error_in_floor_units(c) > 1;
            case_free(c);
        }
    print_message("# a floor without |dP - delta| would refuse %d of 120 right results\n", refused);
    assert_true(refused > 0);
}

TEST(all_positive_inputs_pass)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (int64_t d = 64; d <= (quick() ? 256 : 1024); d *= 4) {
            Case *c = case_new((AttnShape){1, 2, 1, 20, 30, d}, (AttnDtype)dtype, 0, 1);
            Tensor *all[] = {&c->args.Q, &c->args.K, &c->args.V, &c->args.dO};
            for (int t = 0; t < 4; t++)
                for (int64_t e = 0; e < tensor_count(all[t]); e++)
                    tensor_set(all[t], e, fabsf(tensor_get(all[t], e)));
            expect_pass(c, &ways[0], "all positive");
            case_free(c);
        }
}

/* delta inherits the error of O, and that is not proportional to |O|. Three keys, one channel:
 * V = (0, 1, -1) and the last two weigh nearly the same, so |O| is small, but P rounded to 16 bits
 * moves O by about u16 W. For key 0 dP = 0, so nothing else hides the error of delta. The bound
 * with |O| alone (E) refuses a right kernel here; the one with W does not. */
TEST(delta_needs_W)
{
    int refused = 0;
    for (int n = 0; n < 200; n++) {
        Case *c = case_new((AttnShape){1, 1, 1, 1, 3, 1}, ATTN_BF16, LAYOUT_BSHD, 1);
        const float v[] = {0, 1, -1};
        double s[3], l_i = 0, P0, O, dK, E, dS, error;
        c->args.scale = 1;
        case_set(&c->args.Q, 0, 0, 0, 0, 1);
        case_set(&c->args.dO, 0, 0, 0, 0, 1);
        for (int64_t j = 0; j < 3; j++) {
            case_set(&c->args.V, 0, j, 0, 0, v[j]);
            case_set(&c->args.K, 0, j, 0, 0,
                     j == 0 ? 1 : 0.25f + (float)j * 0x1p-8f + (float)n * 0x1p-7f);
            s[j] = case_get(&c->args.K, 0, j, 0, 0);
            l_i += exp(s[j]);
        }
        expect_pass(c, &ways[0], "delta needs W");
        P0 = exp(s[0]) / l_i;
        O = (exp(s[1]) - exp(s[2])) / l_i;
        E = fabs(O);
        dS = P0 * (0 - O);
        dK = dS;
        error = fabs(case_get(&c->args.dK, 0, 0, 0, 0) - dK);
        refused += error > 0x1p-8 * (fabs(dK) + fabs(dS) + P0 * E) + 0x1p-20;
        case_free(c);
    }
    print_message("# without W the bound would refuse %d of 200 right results\n", refused);
    assert_true(refused > 0);
}

/* A kernel that drops one key of 16 must not fit into the bound, in any dtype. */
TEST(bound_is_not_idle)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        Case *c = case_new((AttnShape){1, 1, 1, 16, 256, 32}, (AttnDtype)dtype, 0, 1);
        uint8_t *mask = calloc(16 * 256, 1);
        assert_non_null(mask);
        Oracle o = oracle_of(&c->args, 1, 1);
        for (int64_t i = 0; i < 16; i++)
            mask[i * 256 + 255] = 1;
        c->args.mask = mask;
        honest_forward(&ways[0], &c->args);
        honest_backward(&ways[0], &c->args);
        c->args.mask = NULL;
        const Check check = check_of(&c->args, &o, 1, 16);
        assert_false(check.pass);
        for (int which = 0; which <= CHECK_DV; which++) {
            print_message("# dropped key, %s, %s: %.1f bounds\n", dtype_name((AttnDtype)dtype),
                          check.array[which].name, check.array[which].worst_ratio);
            assert_true(check.array[which].off > 0);
        }
        oracle_free(&o);
        free(mask);
        case_free(c);
    }
}

/* A cap swallows an infinite q: its row may be anything near, a NaN elsewhere is one too many. */
TEST(capped_infinity_passes)
{
    Case *c = case_new((AttnShape){1, 2, 1, 20, 20, 8}, ATTN_F32, LAYOUT_BSHD, 1);
    c->args.softcap = 3;
    case_set(&c->args.Q, 0, 5, 1, 2, INFINITY);
    honest_forward(&ways[0], &c->args);
    Oracle o = oracle_of(&c->args, 0, 1);
    for (int spoiled = 0; spoiled < 3; spoiled++) {
        if (spoiled)
            case_set(&c->args.O, 0, spoiled == 1 ? 5 : 6, 1, 0, NAN);
        assert_int_equal(spoiled < 2, case_agrees(c, &o, 0, 4, NULL));
    }
    oracle_free(&o);
    case_free(c);
}

/* Where O is subnormal in f16, storing it costs up to 2^-25 whatever its size, and delta has that
 * times |dO|. V from 1e-7 to 1e-4. The largest share of dQ's and dK's bound is printed. */
TEST(delta_of_a_subnormal_O)
{
    double most = 0;
    for (int n = 0; n < 100; n++) {
        Case *c = case_new((AttnShape){1, 1, 1, 8, 8, 1 + n % 4}, ATTN_F16, LAYOUT_BSHD, 1);
        case_align(c, n % 2 ? ATTN_MASK_CAUSAL_LOWER_RIGHT : ATTN_MASK_NONE);
        case_fill(&c->args.dO, 200);
        for (int64_t e = 0; e < tensor_count(&c->args.V); e++)
            tensor_set(&c->args.V, e,
                       (case_random() % 2 ? 1e-7f : -1e-7f) *
                           powf(10, 3 * (float)(case_random() % 1001) / 1000));
        const Check check = expect_pass(c, &ways[n % 3], "subnormal O");
        most =
            fmax(most, fmax(check.array[CHECK_DQ].worst_ratio, check.array[CHECK_DK].worst_ratio));
        case_free(c);
    }
    print_message("# dQ and dK of 800 rows with a subnormal O use %.2f of the bound\n", most);
    assert_true(most > 0.01 && most < 0.9);
}

/* One key that weighs everything and has V = 0, and many whose P is too small for f16: what P V
 * loses there is not in W, which is as small as they are, but in eta sum |V|. */
TEST(delta_of_a_flushed_P)
{
    for (int n = 0; n < 20; n++) {
        Case *c = case_new((AttnShape){1, 1, 1, 4, 64, 1}, ATTN_F16, LAYOUT_BSHD, 1);
        c->args.scale = 1;
        for (int64_t i = 0; i < 4; i++)
            case_set(&c->args.Q, 0, i, 0, 0, 1);
        case_fill(&c->args.dO, 200);
        for (int64_t j = 0; j < 64; j++) {
            case_set(&c->args.K, 0, j, 0, 0, j == 0 ? 8 : -9.5f - (float)n / 16);
            case_set(&c->args.V, 0, j, 0, 0, j == 0 ? 0 : 1);
        }
        expect_pass(c, &ways[n % 3], "flushed P");
        case_free(c);
    }
}

TEST(report)
{
    shares_report("honest", worst, CHECK_DWQ);
}
