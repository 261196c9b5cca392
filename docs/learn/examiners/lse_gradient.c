/* SPDX-License-Identifier: MIT
 *
 * lse_gradient.c: judges the gradient of one row's scores where the loss takes O and lse.
 *
 * Interface: -N keys, -d channels, --hand: query 3 of the four tokens, --lse-only: dO = 0,
 * --output-only: dlse = 0, --large: scores in the hundreds.
 */
#include "learn.h"

void score_gradient(const float *s, const float *V, const float *dO, float dlse, float *dS, int n,
                    int d);

enum {
    RIGHT,
    IGNORED,
    SUBTRACTED,
    WITHOUT_P,
    DELTA_MISSING,
    NOT_NORMALISED,
    MEAN_WITHOUT_P,
    LSE_IN_IT,
    ONE_MINUS_P
};

const Mistake mistakes[] = {
    {"dlse_ignored", "This is the gradient of O alone. Either dlse is not in it, or it was added "
                     "to dP before delta "
                     "was taken: the mean of dP + dlse is delta + dlse, and it cancels."},
    {"dlse_subtracted",
     "dlse has the wrong sign: when a score grows, lse grows, so dlse is added to dP - delta."},
    {"dlse_without_p",
     "dlse is added without the weight: the slope of lse with respect to s_j is P_j."},
    {"delta_missing", "dS is P (dP + dlse) here: delta, the mean of dP, is not subtracted."},
    {"p_not_normalised", "P is exp(s - m) here: divide it by l."},
    {"mean_without_p", "delta is the plain sum of dP here; it is the sum of P dP."},
    {"lse_in_the_slope",
     "dlse is multiplied by lse: the slope of dlse * lse with respect to lse is dlse."},
    {"slope_of_p",
     "dlse is multiplied by P (1 - P), which is the slope of P_j with respect to s_j. "
     "That of lse is P_j."},
    {NULL, NULL}};

static float *s, *V, *dO, dlse;
static Output *dS;
static long n, d;

void prepare(void)
{
    static const float by_hand[2] = {1, -1};
    long e;
    n = case_size("-N", 1, 4), d = case_size("-d", 1, 2);
    s = normal_input("s", n, 1, hand_s), V = normal_input("V", n * d, 2, hand_V);
    dO = normal_input("dO", d, 3, by_hand);
    dS = output("dS", n, 1, "key", "");
    dlse = has_flag("--output-only") ? 0.0f : 0.75f;
    for (e = 0; e < n && has_flag("--large"); e++)
        s[e] = 400.0f + 2.0f * s[e];
    for (e = 0; e < d && has_flag("--lse-only"); e++)
        dO[e] = 0.0f;
}

void call(void)
{
    score_gradient(s, V, dO, dlse, dS->found, (int)n, (int)d);
}

static double dP(long j)
{
    return dot_in_double(dO, V + j * d, d);
}

void expect(int mistake)
{
    double m = -INFINITY, l = 0.0, delta = 0.0, lse;
    long j;
    for (j = 0; j < n; j++)
        m = fmax(m, s[j]);
    for (j = 0; j < n; j++)
        l += exp(s[j] - m);
    lse = m + log(l);
    for (j = 0; j < n; j++)
        delta += (mistake == MEAN_WITHOUT_P ? 1.0 : exp(s[j] - lse)) * dP(j);
    for (j = 0; j < n; j++) {
        const double p = exp(s[j] - (mistake == NOT_NORMALISED ? m : lse));
        const double share = mistake == IGNORED       ? 0.0
                             : mistake == SUBTRACTED  ? -dlse
                             : mistake == LSE_IN_IT   ? dlse * lse
                             : mistake == ONE_MINUS_P ? dlse * (1.0 - p)
                                                      : dlse;
        const double slope = dP(j) - (mistake == DELTA_MISSING ? 0.0 : delta);
        dS->expected[j] = mistake == WITHOUT_P ? p * slope + share : p * (slope + share);
    }
}
