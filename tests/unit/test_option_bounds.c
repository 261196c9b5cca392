/* SPDX-License-Identifier: MIT
 *
 * test_option_bounds.c: the bounds with stage 05's options. A right implementation passes for
 * every combination, dtype and order of sums (honest_options.h); each of a list of mistakes does
 * not, nor does a dropped key. Where rounding decides (an element of Qn between two values of the
 * dtype, a weight at a kink of the clip) both sides pass, and only there. Prints how much of a
 * bound is used.
 */
#include <math.h>

#include "honest_options.h"
#include "plain_options.h"

static const Honest ways[] = {{1, 0, 0, 0}, {1, 1, 1, 0}, {1, 0, 1, 1}};

static const Option places[] = {
    {"GQA", {2, 4, 2, 3, 5, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_ODD},
    {"causal window", {1, 2, 1, 5, 7, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, 3, -1, 0, 0, 0},
    {"varlen", {1, 2, 1, 10, 11, 4}, ATTN_MASK_NONE, -1, -1, 0, 1, LAYOUT_SBHD},
    {"full mask", {1, 1, 1, 5, 6, 4}, ATTN_MASK_FULL, -1, -1, 0, 0, 0},
};
#define PLACE_COUNT ((int)(sizeof places / sizeof *places))

/* Bits of n: norm (3 values), temperature, clip (3), dropout, cap. */
#define COMBINATIONS (3 * 2 * 3 * 2 * 2)
static OptionCase make_case(const Option *place, int n, AttnDtype dtype, int larger, float by)
{
    static const float clips[][2] = {{0, 1}, {-0.03f, 1.1f}, {-0.1f, 1.4f}};
    OptionCase o = option_case_new(place, dtype, larger, by);
    const int64_t d = o.c->args.shape.d;
    o.options.norm_group = n % 3 == 0 ? 0 : n % 3 == 1 ? d : d / 2;
    o.options.temperature = n / 3 % 2 ? 0.7f : 1;
    o.options.clip_low = clips[n / 6 % 3][0];
    o.options.clip_high = clips[n / 6 % 3][1];
    o.options.dropout = n / 18 % 2 ? 0.3f : 0;
    o.c->args.softcap = n / 36 ? 2.5f : 0;
    return o;
}

static Check judge(OptionCase *o, const HonestOptions *how, const Oracle *oracle)
{
    o->c->args.options = &o->options;
    honest_options_run(how, &o->c->args);
    return check_of(&o->c->args, oracle, 1, 4);
}

TEST(right_ones_pass)
{
    static Shares worst;
    const float sizes[] = {1, 3, 8};
    int count = 0;
    for (int place = 0; place < PLACE_COUNT; place++)
        for (int n = 0; n < COMBINATIONS; n++)
            for (int dtype = 0; dtype < 3; dtype++, count++) {
                const HonestOptions how = {ways[count % 3], RIGHT, 0};
                OptionCase o = make_case(&places[place], n, (AttnDtype)dtype, count % 5 ? 2 : 4,
                                         sizes[count / 3 % 3]);
                char label[80];
                snprintf(label, sizeof label, "%s, combination %d", places[place].name, n);
                o.c->args.options = &o.options;
                Oracle oracle = oracle_of(&o.c->args, 1, 1);
                const Check check = judge(&o, &how, &oracle);
                assert_pass(&check, &o.c->args, label);
                shares_add(worst, (AttnDtype)dtype, &check);
                oracle_free(&oracle);
                option_case_free(&o);
            }
    shares_report("options", worst, CHECK_COUNT);
}

/* Which array shows each mistake; two lists, because a clip hides some and shows others. */
static const struct {
    Mistake mistake;
    int combination; /* of make_case, in base 3 2 3 2 2 */
    int shows[3];    /* arrays, -1 = none */
} mistakes[] = {
    {CAP_AND_TEMPERATURE, 3 + 36, {CHECK_O, CHECK_DQ, CHECK_LSE}},
    {NORM_UNROUNDED, 1, {CHECK_LSE, -1, -1}},
    {NORM_WHOLE_HEAD, 2, {CHECK_O, CHECK_DWQ, CHECK_DK}},
    {NORM_WITHOUT_WEIGHTS, 1, {CHECK_DQ, CHECK_DK, -1}},
    {CLIP_WITH_ROWSUM, 6, {CHECK_DQ, CHECK_DK, -1}},
    {CLIP_GRADIENT_PASSES, 6, {CHECK_DQ, CHECK_DK, -1}},
    {DROPOUT_UNSCALED, 18, {CHECK_O, CHECK_DV, CHECK_DQ}},
    {DROPOUT_BEFORE_CLIP, 18 + 12, {CHECK_O, CHECK_DV, -1}},
    {DROPOUT_OF_KEYS_ONLY, 18, {CHECK_O, CHECK_DV, CHECK_DQ}},
    {LSE_OF_WEIGHTS, 18, {CHECK_LSE, -1, -1}},
    {DW_LAST_BATCH, 1, {CHECK_DWQ, CHECK_DWK, -1}},
};

TEST(mistakes_do_not)
{
    assert_int_equal(MISTAKE_COUNT - 1, sizeof mistakes / sizeof *mistakes);
    for (int m = 0; m < MISTAKE_COUNT - 1; m++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const HonestOptions how = {ways[0], mistakes[m].mistake, 0};
            OptionCase o = make_case(&places[0], mistakes[m].combination, (AttnDtype)dtype, 6, 1);
            o.c->args.options = &o.options;
            Oracle oracle = oracle_of(&o.c->args, 1, 1);
            const Check check = judge(&o, &how, &oracle);
            /* f32 holds the normalised values as they are: that mistake is none */
            if (mistakes[m].mistake == NORM_UNROUNDED && dtype == ATTN_F32)
                assert_true(check.pass);
            else
                for (int n = 0; n < 3 && mistakes[m].shows[n] >= 0; n++)
                    if (check.array[mistakes[m].shows[n]].off == 0)
                        fail_msg("mistake %d passes as %s, %s", (int)mistakes[m].mistake,
                                 check.array[mistakes[m].shows[n]].name,
                                 dtype_name((AttnDtype)dtype));
            oracle_free(&oracle);
            option_case_free(&o);
        }
}

/* One query, one key, v = 1: O is 1, or 1/0.9 where dropout keeps it, whatever the score. What a P
 * made of a rounded lse gives at such scores is refused, 0 above all; the same without options. */
TEST(one_key_at_large_scores)
{
    const Option place = {"", {1, 1, 1, 1, 1, 1}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    const float sizes[] = {1, 300, 2.03e5f, 6.1e7f, 2e9f};
    const double wrong[] = {0, 1.0939 / 1.1111111, 60.66, INFINITY, NAN};
    for (int dtype = 0; dtype < 3; dtype++)
        for (int n = 0; n < 5; n++)
            for (int way = 0; way < 3; way++) { /* none, dropout, a clip */
                const HonestOptions how = {ways[0], RIGHT, 0};
                const float root = sqrtf(sizes[n]);
                const double c = dtype ? 16 : 4;
                OptionCase o = option_case_new(&place, (AttnDtype)dtype, 1, 1);
                float right;
                case_set(&o.c->args.Q, 0, 0, 0, 0, root);
                case_set(&o.c->args.K, 0, 0, 0, 0, 1.2345f * root);
                case_set(&o.c->args.V, 0, 0, 0, 0, 1);
                o.options.dropout = way == 1 ? 0.1f : 0;
                o.options.clip_low = way == 2 ? -0.03f : 0;
                o.options.clip_high = way == 2 ? 1.05f : 1;
                o.c->args.options = way ? &o.options : NULL;
                Oracle oracle = oracle_of(&o.c->args, 0, 1);
                o.c->args.options = &o.options;
                honest_options_run(&how, &o.c->args);
                o.c->args.options = way ? &o.options : NULL;
                assert_true(check_of(&o.c->args, &oracle, 0, c).array[0].worst_ratio < 0.9);
                right = case_get(&o.c->args.O, 0, 0, 0, 0);
                assert_true(right >= 1); /* it was not dropped */
                for (int w = 0; w < 5; w++) {
                    case_set(&o.c->args.O, 0, 0, 0, 0, (float)(right * wrong[w]));
                    if (check_of(&o.c->args, &oracle, 0, c).array[0].off != 1)
                        fail_msg("score %g, %s, options %d: %g instead of %g passes",
                                 (double)sizes[n], dtype_name((AttnDtype)dtype), way,
                                 right * wrong[w], (double)right);
                }
                oracle_free(&oracle);
                option_case_free(&o);
            }
}

/* 12000 rows a type of few keys, where at large scores one has nearly all: there 1 - P decides how
 * much an error of a score may do. Right ones pass, in f32 with half of the bound to spare. */
TEST(few_keys_at_large_scores)
{
    const Option place = {"", {2, 2, 1, 25, 3, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    const float sizes[] = {1, 5, 30, 300, 3000};
    double most[3] = {0};
    for (int n = 0; n < 3 * 5 * 3 * 8; n++) {
        const int dtype = n % 3, size = n / 3 % 5, way = n / 15 % 3;
        const HonestOptions how = {ways[n / 45 % 3], RIGHT, 0};
        OptionCase o = option_case_new(&place, (AttnDtype)dtype, 1, sizes[size]);
        o.options.dropout = way == 1 ? 0 : 0.1f;
        o.options.clip_low = way == 0 ? 0 : -0.03f;
        o.options.clip_high = way == 0 ? 1 : 1.05f;
        o.c->args.options = &o.options;
        Oracle oracle = oracle_of(&o.c->args, 0, 1);
        honest_options_run(&how, &o.c->args);
        const Check check = check_of(&o.c->args, &oracle, 0, dtype ? 16 : 4);
        most[dtype] = fmax(most[dtype], check.array[CHECK_O].worst_ratio);
        oracle_free(&oracle);
        option_case_free(&o);
    }
    print_message("# worst share of the bound: f32 %.2f f16 %.2f bf16 %.2f\n", most[0], most[1],
                  most[2]);
    assert_true(most[0] > 0.01 && most[0] < 0.5);
    for (int dtype = 1; dtype < 3;
         dtype++) /* two roundings to 16 bits, which may both be half an ulp */
        assert_true(most[dtype] > 0.5 && most[dtype] <= 1);
}

/* One key of 64 is hidden from the kernel but not from the oracle, with all options at once. */
TEST(dropped_key_shows)
{
    const Option place = {"", {1, 2, 1, 16, 64, 16}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    for (int dtype = 0; dtype < 3; dtype++) {
        const HonestOptions how = {ways[0], RIGHT, 0};
        OptionCase o = make_case(&place, 2 + 3 + 18, (AttnDtype)dtype, 1, 1);
        uint8_t *mask = calloc(16 * 64, 1);
        assert_non_null(mask);
        o.options.clip_low = -0.001f;
        o.c->args.options = &o.options;
        Oracle oracle = oracle_of(&o.c->args, 1, 1);
        for (int64_t i = 0; i < 16; i++)
            mask[i * 64 + 63] = 1;
        o.c->args.mask = mask;
        const Check check = judge(&o, &how, &oracle);
        for (int which = 0; which < CHECK_COUNT; which++) {
            print_message("# dropped key, %s, %s: %.1f bounds\n", dtype_name((AttnDtype)dtype),
                          check.array[which].name, check.array[which].worst_ratio);
            assert_true(check.array[which].off > 0);
        }
        oracle_free(&oracle);
        free(mask);
        option_case_free(&o);
    }
}

/* Qn_0 = w hat halfway between two values of the dtype: whoever computes it a little larger or a
 * little smaller is right. Four steps further on are wrong, and so are they where nothing is close,
 * and there a little more or less changes nothing. */
TEST(between_two_values)
{
    const Option place = {"", {1, 1, 1, 1, 2, 2}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    for (int dtype = 1; dtype < 3; dtype++)
        for (int close = 0; close < 2; close++) {
            const float ulp = dtype == ATTN_F16 ? 0x1p-10f : 0x1p-7f;
            const float tilts[] = {0, 0x1p-21f, -0x1p-21f, ulp * 4, -ulp * 4};
            double found[5];
            for (int n = 0; n < 5; n++) {
                const HonestOptions how = {ways[0], RIGHT, tilts[n]};
                OptionCase o = option_case_new(&place, (AttnDtype)dtype, 1, 1);
                o.options.norm_group = 2;
                o.options.norm_eps = 0;
                for (int64_t x = 0; x < 2; x++) { /* hat = 1, 1: Qn = w */
                    case_set(&o.c->args.Q, 0, 0, 0, x, 1);
                    for (int64_t j = 0; j < 2; j++)
                        case_set(&o.c->args.K, 0, j, 0, x, j || x ? -1 : 1);
                    o.wq[x] = x ? 1 : 1 + ulp / 2 * (close ? 1 : 1.5f);
                    o.wk[x] = 1;
                }
                o.c->args.options = &o.options;
                o.c->args.scale = 1;
                Oracle oracle = oracle_of(&o.c->args, 1, 1);
                found[n] = judge(&o, &how, &oracle).array[CHECK_LSE].worst_ratio;
                oracle_free(&oracle);
                option_case_free(&o);
            }
            for (int n = 0; n < 3; n++)
                assert_true(found[n] <= 1);
            if (close) /* the other value was taken */
                assert_true(fmax(found[1], found[2]) > 0.1);
            else
                assert_true(found[1] == found[0] && found[2] == found[0]);
            assert_true(found[3] > 1 && found[4] > 1);
        }
}

/* Two keys, the first with P = 0.8, so that 1.25 P is 1 but for a rounding, or is not: the gradient
 * of either side of the kink passes in the first case, its own alone in the second. */
TEST(at_a_kink)
{
    const Option place = {"", {1, 1, 1, 1, 2, 1}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    const float scores[] = {1.38629436f, 1.38f, 1.39f}; /* ln 4 is the kink */
    for (int n = 0; n < 3; n++)
        for (int side = 0; side < 2; side++) {
            OptionCase o = option_case_new(&place, ATTN_F32, 1, 1);
            Tensor *const grad = &o.c->args.dQ;
            const double P = 1 / (1 + exp(-(double)scores[n])), gain = side ? 1.25 : 0;
            double found, D[2], delta;
            case_set(&o.c->args.Q, 0, 0, 0, 0, 1);
            case_set(&o.c->args.K, 0, 0, 0, 0, scores[n]);
            case_set(&o.c->args.K, 0, 1, 0, 0, 0);
            case_set(&o.c->args.V, 0, 0, 0, 0, 2);
            case_set(&o.c->args.V, 0, 1, 0, 0, -1);
            case_set(&o.c->args.dO, 0, 0, 0, 0, 1);
            o.options.clip_high = 1.25f;
            o.c->args.options = &o.options;
            o.c->args.scale = 1;
            Oracle oracle = oracle_of(&o.c->args, 1, 1);
            D[0] = gain * 2;
            D[1] = 1.25 * -1;
            delta = P * D[0] + (1 - P) * D[1];
            case_set(grad, 0, 0, 0, 0, (float)(P * (D[0] - delta) * scores[n]));
            found = fabs(case_get(grad, 0, 0, 0, 0) - oracle.dQ.value[0]) /
                    (oracle.dQ.fixed[0] + 4 * oracle.dQ.per_c[0]);
            if (n == 0 || side == (n == 1))
                assert_true(found <= 1);
            else
                assert_true(found > 1000);
            assert_true(n == 0 || oracle.dQ.fixed[0] < 1e-30); /* no jump elsewhere */
            oracle_free(&oracle);
            option_case_free(&o);
        }
}

/* What an uncertain Kn_0 adds to dQ_0 beside the scores, which do not feel it because Q_0 = 0; and
 * Qn_0 to dK_0, with K_0 = 0: |dS| times its ulp, times r = 1 / sqrt(1/2) on the way to dX. P is
 * 1/2 for both keys, dP = 1 and 0, so |dS| = 1/4. */
TEST(uncertain_factor)
{
    const Option place = {"", {1, 1, 1, 1, 2, 2}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    for (int dtype = 1; dtype < 3; dtype++)
        for (int of_q = 0; of_q < 2; of_q++) {
            const double ulp = dtype == ATTN_F16 ? 0x1p-10 : 0x1p-7;
            double fixed[2];
            for (int close = 0; close < 2; close++) {
                OptionCase o = option_case_new(&place, (AttnDtype)dtype, 1, 1);
                for (int64_t j = 0; j < 2; j++)
                    for (int64_t x = 0; x < 2; x++) {
                        case_set(&o.c->args.Q, 0, 0, 0, x, of_q || x);
                        case_set(&o.c->args.K, 0, j, 0, x, of_q ? x : 1);
                        case_set(&o.c->args.V, 0, j, 0, x, !x && !j);
                        case_set(&o.c->args.dO, 0, 0, 0, x, !x);
                        o.wq[x] = o.wk[x] = 1;
                    }
                /* hat = 1, 1 in the row that is off: its first weight decides */
                (of_q ? o.wq : o.wk)[0] = (float)(1 + ulp / 2 * (close ? 1 : 1.01));
                o.options.norm_group = 2;
                o.options.norm_eps = 0;
                o.c->args.options = &o.options;
                o.c->args.scale = 1;
                Oracle oracle = oracle_of(&o.c->args, 1, 1);
                fixed[close] = of_q ? oracle.dK.fixed[0] : oracle.dQ.fixed[0];
                oracle_free(&oracle);
                option_case_free(&o);
            }
            /* both keys have the weight wk in common */
            assert_true(fabs((fixed[1] - fixed[0]) / (ulp * sqrt(2) / (of_q ? 4 : 2)) - 1) < 0.02);
        }
}

/* With dropout delta is rowsum(dO O) as without: it has what a subnormal O lost in f16. */
TEST(delta_of_a_subnormal_O)
{
    for (int n = 0; n < 200; n++) {
        const HonestOptions how = {ways[n % 3], RIGHT, 0};
        OptionCase o = make_case(&places[0], 18, ATTN_F16, 1, 1);
        case_fill(&o.c->args.V, 1e-7f);
        case_fill(&o.c->args.dO, 200);
        o.c->args.options = &o.options;
        Oracle oracle = oracle_of(&o.c->args, 1, 1);
        const Check check = judge(&o, &how, &oracle);
        assert_pass(&check, &o.c->args, "dropout");
        oracle_free(&oracle);
        option_case_free(&o);
    }
}
