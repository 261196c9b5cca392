/* SPDX-License-Identifier: MIT
 *
 * sink_row.c: judges attention of one row with a sink, and the sink's gradient.
 *
 * Interface: -N keys (0 too), -d channels, --hand: query 3 of the four tokens and a sink of 0,
 * --none: the sink is -inf, --above: it is 200 above the scores, --large: scores in the hundreds.
 */
#include "learn.h"

void sink_row(const float *s, const float *V, const float *dO, float sink, float *O, float *lse,
              float *dsink, int n, int d);

enum {
    RIGHT,
    NOT_IN_L,
    NOT_IN_LSE,
    SIGN,
    WITHOUT_WEIGHT,
    DELTA_FORGOTTEN,
    COUNTS_AS_ONE,
    VALUE_OF_THE_FIRST,
    DELTA_WITH_1_P
};

const Mistake mistakes[] = {
    {"sink_not_in_l", "The sink is not in l: this is attention without it."},
    {"sink_not_in_lse", "O is right. lse lacks the sink: it is m + ln l with the l that O has."},
    {"sign_of_dsink", "dsink has the wrong sign: dS is P (dP - delta), and dP of the sink is 0."},
    {"dsink_without_weight", "dsink is -delta here; it has the sink's weight in front, exp(sink - "
                             "lse)."},
    {"dsink_is_zero",
     "dsink is 0 here. The sink has no value, but its weight is taken from others."},
    {"sink_counts_as_one", "The sink adds 1 to l; it adds exp(sink - m)."},
    {"sink_has_a_value", "The sink's weight is multiplied by a row of V; it has no value."},
    {"dsink_times_rest", "dsink is -P_sink (1 - P_sink) delta here: delta has the sink in it "
                         "already, since O was divided by the whole l."},
    {NULL, NULL}};

static float *s, *V, *dO, sink;
static Output *O, *lse, *dsink;
static long n, d;

void prepare(void)
{
    static const float by_hand[2] = {1.0f, 0.5f};
    long e;
    n = case_size("-N", 1, 4), d = case_size("-d", 1, 2);
    s = normal_input("s", n, 1, hand_s), V = normal_input("V", n * d, 2, hand_V);
    dO = normal_input("dO", d, 3, by_hand);
    O = output("O", 1, d, "row", "channel");
    lse = output("lse", 1, 1, "row", "");
    dsink = output("dsink", 1, 1, "row", "");
    for (e = 0; e < n && has_flag("--large"); e++)
        s[e] = 400.0f + 2.0f * s[e];
    sink = has_flag("--none") ? -INFINITY : has_flag("--above") ? 200.0f : 0.5f;
    sink += has_flag("--large") ? 400.0f : 0.0f;
    sink = has_flag("--hand") ? 0.0f : sink;
}

void call(void)
{
    sink_row(s, V, dO, sink, O->found, lse->found, dsink->found, (int)n, (int)d);
}

void expect(int mistake)
{
    double m = sink, l, rest = 0.0, delta = 0.0, p_sink;
    long j, x;
    for (j = 0; j < n; j++)
        m = fmax(m, s[j]);
    m = m == -INFINITY ? 0.0 : m;
    p_sink = mistake == NOT_IN_L ? 0.0 : mistake == COUNTS_AS_ONE ? 1.0 : exp(sink - m);
    for (j = 0; j < n; j++)
        rest += exp(s[j] - m);
    l = p_sink + rest;
    for (x = 0; x < d; x++) {
        double sum = mistake == VALUE_OF_THE_FIRST && n ? p_sink * V[x] : 0.0;
        for (j = 0; j < n; j++)
            sum += exp(s[j] - m) * V[j * d + x];
        O->expected[x] = l > 0.0 ? sum / l : 0.0;
        delta += dO[x] * O->expected[x];
    }
    p_sink = l > 0.0 ? p_sink / l : 0.0;
    lse->expected[0] = m + log(mistake == NOT_IN_LSE ? rest : l);
    dsink->expected[0] = mistake == SIGN              ? p_sink * delta
                         : mistake == WITHOUT_WEIGHT  ? -delta
                         : mistake == DELTA_FORGOTTEN ? 0.0
                         : mistake == DELTA_WITH_1_P  ? -p_sink * (1.0 - p_sink) * delta
                                                      : -p_sink * delta;
}

const Mistake *diagnose(void)
{
    static const Mistake not_in_m = {
        "sink_not_in_m",
        "The sink is larger than every score and not in the maximum: exp(sink - m) "
        "is infinite."};
    static const Mistake empty = {
        "empty_row", "Without keys and sink m is -inf and l is 0: take 0 for m, and divide only "
                     "where l > 0."};
    if (n == 0 && isinf(sink))
        return &empty;
    expect(NOT_IN_L); /* whatever dsink is */
    if (is_right(O) && is_right(lse))
        return &mistakes[NOT_IN_L - 1];
    return isnan(lse->found[0]) || isinf(lse->found[0]) || isnan(dsink->found[0]) ? &not_in_m
                                                                                  : NULL;
}
