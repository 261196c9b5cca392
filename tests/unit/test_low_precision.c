/* SPDX-License-Identifier: MIT
 *
 * test_low_precision.c: the plain implementation errs, by as much as its storage type makes it
 * err, and not by more: it is an implementation of attention and not of something else.
 */
#include <math.h>

#include "oracle_case.h"

#include "check/check.h"
#include "check/low_precision.h"
#include "honest_options.h"
#include "plain_options.h"

static double largest(const OracleArray *a)
{
    double most = 0;
    for (int64_t e = 0; e < a->count; e++)
        most = fmax(most, fabs(a->value[e]));
    return most;
}

/* Its errors are some rounding units of the largest value: never more, for any option. */
TEST(error_is_rounding)
{
    const double unit[] = {0x1p-24, 0x1p-11, 0x1p-8};
    for (int n = 0; n < OPTION_COUNT; n++)
        for (int dtype = 0; dtype < 3; dtype++) {
            Case *c = case_option(&options[n], (AttnDtype)dtype, 8, 1);
            const double limit = 16 * unit[dtype];
            LowPrecision y;
            Oracle o = oracle_of(&c->args, 1, 1);
            assert_int_equal(0, low_precision_run(&y, &o, &c->args, 1, 2));
            if (!(y.O <= limit * largest(&o.O) && y.dQ <= limit * (largest(&o.dQ) + 1) &&
                  y.dK <= limit * (largest(&o.dK) + 1) && y.dV <= limit * (largest(&o.dV) + 1)))
                fail_msg("%s %s: O %g dQ %g dK %g dV %g", options[n].name,
                         dtype_name((AttnDtype)dtype), y.O, y.dQ, y.dK, y.dV);
            /* with one key in sight P is 1 and nothing is lost */
            if (c->args.shape.Nk > 8 && options[n].left != 0)
                assert_true(y.dQ > unit[dtype] * 1e-2 && y.dK > unit[dtype] * 1e-2 && y.dV > 0);
            oracle_free(&o);
            case_free(c);
        }
}

/* Each coarser type errs more. */
TEST(error_follows_the_type)
{
    double O[3], dK[3];
    for (int dtype = 0; dtype < 3; dtype++) {
        Case *c = case_new((AttnShape){1, 2, 1, 40, 40, 32}, (AttnDtype)dtype, 0, 1);
        LowPrecision y;
        Oracle o = oracle_of(&c->args, 1, 1);
        assert_int_equal(0, low_precision_run(&y, &o, &c->args, 1, 1));
        O[dtype] = y.O, dK[dtype] = y.dK;
        oracle_free(&o);
        case_free(c);
    }
    assert_true(O[ATTN_F16] > 100 * O[ATTN_F32] && O[ATTN_BF16] > 4 * O[ATTN_F16]);
    assert_true(dK[ATTN_F16] > 100 * dK[ATTN_F32] && dK[ATTN_BF16] > 4 * dK[ATTN_F16]);
}

/* A careful kernel stays under FlashAttention's limit of 2, a result with one key dropped does not,
 * and the number of threads changes nothing. */
TEST(ratio_judges)
{
    const Honest plain = {16, 0, 0, 0};
    for (int dtype = 1; dtype < 3; dtype++) {
        Case *c = case_new((AttnShape){1, 4, 2, 64, 64, 32}, (AttnDtype)dtype, 0, 1);
        Check check = {.inputs_intact = 1, .storage_intact = 1};
        LowPrecision y, y2;
        Oracle o = oracle_of(&c->args, 1, 1);
        assert_int_equal(0, low_precision_run(&y, &o, &c->args, 1, 1));
        assert_int_equal(0, low_precision_run(&y2, &o, &c->args, 1, 2));
        assert_memory_equal(&y, &y2, sizeof y);
        honest_forward(&plain, &c->args);
        honest_backward(&plain, &c->args);
        check_outputs(&check, &o, &y, &c->args, 1, 4);
        assert_true(check.pass && check.flash_ratio > 0 && check.flash_ratio < 2);
        print_message("# flash_ratio of a careful kernel, %s: %.2f\n", dtype_name((AttnDtype)dtype),
                      check.flash_ratio);
        c->segments_k[0].length = 63; /* nobody has the last key */
        c->segments_k[1] = (AttnSegment){63, 1, 1, 0, 1};
        c->args.positions_k.count = 2;
        honest_forward(&plain, &c->args);
        honest_backward(&plain, &c->args);
        check_outputs(&check, &o, &y, &c->args, 1, 4);
        assert_true(!check.pass && check.flash_ratio > 2);
        case_set(&c->args.O, 0, 0, 0, 0, NAN);
        check_outputs(&check, &o, &y, &c->args, 0, 4);
        assert_true(!check.pass && check.flash_ratio == INFINITY);
        check_outputs(&check, &o, NULL, &c->args, 0, 4);
        assert_true(isnan(check.flash_ratio));
        oracle_free(&o);
        case_free(c);
    }
}

/* Fewer rows than threads, and long ones: each is shared by all threads, whose number changes
 * nothing. With keys that some rows do not see, and a cap. */
TEST(long_rows)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        Case *c = case_new((AttnShape){1, 2, 1, 2, 4099, 1000}, (AttnDtype)dtype, 0, 1);
        LowPrecision y, more;
        case_align(c, ATTN_MASK_CAUSAL_UPPER_LEFT);
        c->segments_q[0].position = 4000;
        c->args.softcap = 20;
        Oracle o = oracle_of(&c->args, 0, 1);
        assert_int_equal(0, low_precision_run(&y, &o, &c->args, 0, 1));
        assert_true(y.O > 0 && y.O < 0.01);
        for (int threads = 2; threads <= 7; threads++) {
            assert_int_equal(0, low_precision_run(&more, &o, &c->args, 0, threads));
            assert_true(more.O == y.O);
        }
        oracle_free(&o);
        case_free(c);
    }
}

/* Stage 05's options, all combinations: an implementation of them and not of something else. Where
 * a clip stands at a kink in 16 bits its gradient may jump, so those cases have dO = 0 and look at
 * O alone. A careful kernel stays under the limit. */
TEST(options_are_known)
{
    const Option place = {"", {2, 4, 2, 12, 20, 16}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, -1, 0, 0, 0};
    const HonestOptions careful = {{1, 0, 0, 0}, RIGHT, 0};
    const double unit[] = {0x1p-24, 0x1p-11, 0x1p-8};
    double most[3] = {0};
    for (int n = 0; n < 32; n++)
        for (int dtype = 0; dtype < 3; dtype++) {
            OptionCase o = option_case_new(&place, (AttnDtype)dtype, 1, 1);
            const int clips = n / 4 % 2;
            const double limit = 16 * unit[dtype];
            Check check = {.inputs_intact = 1, .storage_intact = 1};
            LowPrecision y;
            o.options.norm_group = n % 2 ? 8 : 0;
            o.options.temperature = n / 2 % 2 ? 0.6f : 1;
            o.options.clip_low = clips ? -0.02f : 0;
            o.options.clip_high = clips ? 1.2f : 1;
            o.options.dropout = n / 8 % 2 ? 0.3f : 0;
            o.c->args.softcap = n / 16 ? 2 : 0;
            o.c->args.options = &o.options;
            if (clips && dtype != ATTN_F32)
                case_fill(&o.c->args.dO, 0);
            Oracle oracle = oracle_of(&o.c->args, 1, 1);
            assert_int_equal(0, low_precision_run(&y, &oracle, &o.c->args, 1, 2));
            if (!(y.O <= limit * largest(&oracle.O) && y.dQ <= limit * (largest(&oracle.dQ) + 1) &&
                  y.dK <= limit * (largest(&oracle.dK) + 1) &&
                  y.dV <= limit * (largest(&oracle.dV) + 1)))
                fail_msg("options %d %s: O %g dQ %g dK %g dV %g", n, dtype_name((AttnDtype)dtype),
                         y.O, y.dQ, y.dK, y.dV);
            assert_true(y.O > unit[dtype] * 1e-2);
            honest_options_run(&careful, &o.c->args);
            check_outputs(&check, &oracle, &y, &o.c->args, 1, 4);
            assert_true(check.pass && check.flash_ratio > 0);
            most[dtype] = fmax(most[dtype], check.flash_ratio);
            oracle_free(&oracle);
            option_case_free(&o);
        }
    print_message("# largest flash_ratio of a careful kernel with options: f32 %.2f, f16 %.2f, "
                  "bf16 %.2f\n",
                  most[0], most[1], most[2]);
    assert_true(most[1] < 2 && most[2] < 2);
}
