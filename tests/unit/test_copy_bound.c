/* SPDX-License-Identifier: MIT
 *
 * test_copy_bound.c: ulysses with more ranks than kv heads: each copy of a kv head rounds its part
 * of dK and dV, the owner adds the parts. What a kernel does on each rank is done here by the
 * honest one: P and dS are rounded as factors, then the part, then the sum.
 *
 * - With the term for copies every result is within its bound. Without it some are not: a kernel
 *   uses up u16 (sum of |P||dO|) for P alone when there are one or two queries.
 * - The term is that of the parts: nothing for f32, nothing without copies, and smaller where heads
 *   of one copy cancel than where heads of different copies do.
 */
#include <math.h>

#include "honest_options.h"

/* One kv head, `copies` of it: each rounds what its query heads give. */
static void compute(Case *c, int64_t copies)
{
    static const Honest way = {8, 0, 0, 0};
    const AttnShape *s = &c->args.shape;
    const int64_t heads = s->H / copies, d = s->d;
    double dK[8 * 64] = {0}, dV[8 * 64] = {0};
    honest_forward(&way, &c->args);
    for (int64_t copy = 0; copy < copies; copy++) {
        AttnArgs part = c->args;
        Tensor *own[] = {&part.Q, &part.O, &part.dO, &part.dQ};
        part.shape.H = heads;
        part.lse += copy * heads * s->Nq;
        for (int t = 0; t < 4; t++) {
            const int64_t at = tensor_offset(own[t], 0, 0, copy * heads);
            own[t]->data = (char *)own[t]->data + at * (int64_t)dtype_size(own[t]->dtype);
            own[t]->shape[2] = heads;
        }
        honest_backward(&way, &part);
        for (int64_t e = 0; e < s->Nk * d; e++) {
            dK[e] += case_get(&part.dK, 0, e / d, 0, e % d);
            dV[e] += case_get(&part.dV, 0, e / d, 0, e % d);
        }
    }
    for (int64_t e = 0; e < s->Nk * d; e++) {
        case_set(&c->args.dK, 0, e / d, 0, e % d, (float)dK[e]);
        case_set(&c->args.dV, 0, e / d, 0, e % d, (float)dV[e]);
    }
}

static double worst_ratio(const Case *c, const Oracle *o, int with_copies)
{
    Check check = {.inputs_intact = 1, .storage_intact = 1, .copies = with_copies};
    check_outputs(&check, o, &c->args, 1, 16);
    return check.bound_ratio;
}

/* All heads alike, so that the parts err alike; an odd number of them, so that their sum has to be
 * rounded once more; scores near 0, so that P is just above or below a power of two, where a
 * rounding weighs most. */
static Case *unlucky_case(int n)
{
    static const int64_t heads[] = {3, 5, 7};
    const AttnShape shape = {1, heads[n % 3], 1, 1 + n % 2, 2, 64};
    Case *c = case_new(shape, n / 2 % 2 ? ATTN_F16 : ATTN_BF16, LAYOUT_BSHD, 0.25f);
    for (int64_t i = 0; i < shape.Nq; i++)
        for (int64_t h = 1; h < shape.H; h++)
            for (int64_t x = 0; x < shape.d; x++) {
                case_set(&c->args.Q, 0, i, h, x, case_get(&c->args.Q, 0, i, 0, x));
                case_set(&c->args.dO, 0, i, h, x, case_get(&c->args.dO, 0, i, 0, x));
            }
    return c;
}

TEST(copies_need_their_term)
{
    double without = 0, with = 0;
    int beyond = 0;
    for (int n = 0; n < 400; n++) {
        Case *c = unlucky_case(n);
        const int64_t copies = c->args.shape.H;
        Oracle o;
        assert_int_equal(0, oracle_run_reference(&o, &c->args, 1, 1, (OracleRoundings){0, copies}));
        compute(c, copies);
        beyond += worst_ratio(c, &o, 0) > 1;
        without = fmax(without, worst_ratio(c, &o, 0));
        with = fmax(with, worst_ratio(c, &o, 1));
        oracle_free(&o);
        case_free(c);
    }
    print_message("# 400 cases: %d beyond the bound without the term (worst %.2f); with it worst "
                  "%.2f\n",
                  beyond, without, with);
    assert_true(beyond > 0);
    assert_true(with <= 1);
}

/* Two heads whose dO are opposite and whose Q and K are the same: their parts cancel, unless each
 * is rounded by itself. */
TEST(term_is_that_of_the_parts)
{
    const AttnShape shape = {1, 4, 1, 2, 3, 8};
    Case *c = case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1), *f32 = case_new(shape, ATTN_F32, 0, 1);
    Oracle none, two, four, exact;
    for (int64_t e = 0; e < 2 * 4 * 8; e++) {
        const int64_t i = e / 32, h = e / 8 % 4, x = e % 8;
        case_set(&c->args.Q, 0, i, h, x, case_get(&c->args.Q, 0, i, 0, x));
        if (h % 2)
            case_set(&c->args.dO, 0, i, h, x, -case_get(&c->args.dO, 0, i, h - 1, x));
    }
    assert_int_equal(0, oracle_run_reference(&none, &c->args, 1, 1, (OracleRoundings){0, 1}));
    assert_int_equal(0, oracle_run_reference(&two, &c->args, 1, 1, (OracleRoundings){0, 2}));
    assert_int_equal(0, oracle_run_reference(&four, &c->args, 1, 1, (OracleRoundings){0, 4}));
    assert_int_equal(0, oracle_run_reference(&exact, &f32->args, 1, 1, (OracleRoundings){0, 4}));
    assert_true(!none.dV.copied && !exact.dV.copied && !two.O.copied);
    for (int64_t e = 0; e < two.dV.count; e++) {
        assert_true(two.dV.copied[e] <= 1e-15 && two.dK.copied[e] <= 1e-15);
        assert_true(four.dV.copied[e] > 1e-5 && four.dK.copied[e] > 1e-7);
        assert_true(four.dV.fixed[e] == none.dV.fixed[e]);
    }
    oracle_free(&none);
    oracle_free(&two);
    oracle_free(&four);
    oracle_free(&exact);
    case_free(c);
    case_free(f32);
}
