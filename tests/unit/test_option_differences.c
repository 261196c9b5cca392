/* SPDX-License-Identifier: MIT
 *
 * test_option_differences.c: stage 05's options in the oracle. Its outputs equal a plain float64
 * implementation (plain_options.h), and its gradients are central finite differences of that one:
 * dQ, dK, dV and the gradients of both normalisation weights, for every option, every pair and
 * every larger combination of them, under masks, windows, GQA and several sequences.
 *
 * The plain implementation does not round Qn and Kn when it is differentiated (rounding has no
 * derivative); for float32 that is 1e-7 of a difference. Where a clip is asked for, seeds are tried
 * until no weight stands near one of its kinks.
 */
#include <math.h>

#include "plain_options.h"

enum { NORM, TEMPERATURE, CLIP, DROPOUT, CAP, KINDS };
static const int counts[KINDS] = {3, 2, 4, 2, 2};
static const float clips[][2] = {{0, 1}, {-0.06f, 1}, {0, 1.3f}, {-0.1f, 1.25f}};

static const Option places[] = {
    {"GQA", {2, 4, 2, 3, 5, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_ODD},
    {"causal window", {1, 2, 1, 5, 7, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, 3, -1, 0, 0, 0},
    {"varlen", {1, 2, 1, 10, 11, 4}, ATTN_MASK_NONE, -1, -1, 0, 1, LAYOUT_SBHD},
    {"full mask", {1, 1, 1, 5, 6, 4}, ATTN_MASK_FULL, -1, -1, 0, 0, 0},
    {"zigzag", {1, 1, 1, 8, 8, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, 9, -1, 0, 2, 0},
};
#define PLACE_COUNT ((int)(sizeof places / sizeof *places))

static double largest_gap;
static int64_t low, high, between, dropped; /* pairs that clip and dropout touched */

static OptionCase make_case(const Option *place, const int *choice)
{
    OptionCase o = option_case_new(place, ATTN_F32, 1, 1);
    o.options.norm_group = choice[NORM] == 0 ? 0 : choice[NORM] == 1 ? 4 : 2;
    o.options.temperature = choice[TEMPERATURE] ? 0.7f : 1;
    o.options.clip_low = clips[choice[CLIP]][0];
    o.options.clip_high = clips[choice[CLIP]][1];
    o.options.dropout = choice[DROPOUT] ? 0.3f : 0;
    o.options.dropout_seed = UINT64_C(0x123456789ABCDEF0);
    o.c->args.softcap = choice[CAP] ? 1.5f : 0;
    return o;
}

/* Difference quotient of the loss, error of order h^4. */
static double quotient(Plain *p, double *at)
{
    const double h = 0x1p-12, was = *at;
    double d[2];
    for (int n = 0; n < 2; n++) {
        const double step = n ? 2 * h : h;
        double up, down;
        *at = was + step;
        up = plain_loss(p);
        *at = was - step;
        down = plain_loss(p);
        *at = was;
        d[n] = (up - down) / (2 * step);
    }
    return (4 * d[0] - d[1]) / 3;
}

static void expect_close(const char *what, double gradient, double difference)
{
    const double gap = fabs(gradient - difference) / (1 + fabs(gradient));
    largest_gap = fmax(largest_gap, gap);
    if (!(gap < 1e-5))
        fail_msg("%s: gradient %.9g, finite difference %.9g", what, gradient, difference);
}

static void compare(const OptionCase *c, Plain *p, const Oracle *o, const char *what)
{
    const AttnShape s = c->c->args.shape;
    p->rounds = 1;
    plain_forward(p);
    low += p->low, high += p->high, between += p->between, dropped += p->dropped;
    for (int64_t e = 0; e < o->O.count; e++)
        assert_true(fabs(p->O[e] - o->O.value[oracle_element(e, s.Nq, s.H, s.d)]) < 1e-13);
    for (int64_t e = 0; e < o->lse.count; e++)
        assert_true(p->lse[e] == o->lse.value[e] || fabs(p->lse[e] - o->lse.value[e]) < 1e-13);
    p->rounds = 0;
    for (int64_t e = 0; e < o->dQ.count; e++)
        expect_close(what, o->dQ.value[oracle_element(e, s.Nq, s.H, s.d)], quotient(p, p->Q + e));
    for (int64_t e = 0; e < o->dK.count; e++)
        expect_close(what, o->dK.value[oracle_element(e, s.Nk, s.Hkv, s.d)], quotient(p, p->K + e));
    for (int64_t e = 0; e < o->dV.count; e++)
        expect_close(what, o->dV.value[oracle_element(e, s.Nk, s.Hkv, s.d)], quotient(p, p->V + e));
    if (!c->options.norm_group)
        assert_true(o->dwq.count == 0 && o->dwk.count == 0);
    else
        assert_true(o->dwq.count == s.H * s.d && o->dwk.count == s.Hkv * s.d);
    for (int64_t e = 0; e < o->dwq.count; e++)
        expect_close(what, o->dwq.value[e], quotient(p, p->wq + e));
    for (int64_t e = 0; e < o->dwk.count; e++)
        expect_close(what, o->dwk.value[e], quotient(p, p->wk + e));
}

/* Under sanitizers and qemu one in five: 5 divides none of the counts, so all values occur. */
TEST(every_combination)
{
    const int step = quick() ? 5 : 1;
    int count = 0;
    for (int place = 0; place < PLACE_COUNT; place++)
        for (int n = 0; n < 3 * 2 * 4 * 2 * 2; n += step, count++) {
            int choice[KINDS], rest = n;
            double kink = 0;
            char what[120];
            for (int k = 0; k < KINDS; rest /= counts[k], k++)
                choice[k] = rest % counts[k];
            snprintf(what, sizeof what, "%s: norm %d temperature %d clip %d dropout %d cap %d",
                     places[place].name, choice[NORM], choice[TEMPERATURE], choice[CLIP],
                     choice[DROPOUT], choice[CAP]);
            for (int seed = 0; kink < 0.004; seed++) {
                OptionCase c;
                Plain p;
                Oracle o;
                case_state = (uint64_t)(1000 * count + seed);
                c = make_case(&places[place], choice);
                c.c->args.options = &c.options;
                p = plain_new(&c.c->args);
                plain_forward(&p);
                kink = p.kink;
                if (kink >= 0.004) {
                    assert_int_equal(0, oracle_run(&o, &c.c->args, 1, 1));
                    compare(&c, &p, &o, what);
                    oracle_free(&o);
                }
                plain_free(&p);
                option_case_free(&c);
            }
        }
    print_message("# %d combinations; clipped below %d, above %d, between %d, dropped %d pairs\n",
                  count, (int)low, (int)high, (int)between, (int)dropped);
    print_message("# largest gap to a finite difference, relative: %.1e\n", largest_gap);
    assert_true(low > 100 && high > 5 && between > 1000 && dropped > 500);
}
