/* SPDX-License-Identifier: MIT
 *
 * softmax_row.c: judges the softmax of one row of scores, and its lse.
 *
 * Interface: -N scores, --hand: row q3 of the lessons, --large: scores around 1000, --below:
 * around -200, --masked: every third score is -inf, --empty: all are.
 */
#include <math.h>

#include "learn.h"

float softmax_row(const float *S, float *P, int n);

const Mistake mistakes[] = {
    {"lse_base_2", "lse is the natural logarithm; this is the logarithm to base 2."},
    {"lse_without_max",
     "lse lacks the maximum: ln(sum of exp(s - m)) is not yet ln(sum of exp(s))."},
    {"not_normalised", "P holds the exponentials; they are not divided by their sum yet."},
    {"no_max_subtraction", "exp(s) without subtracting the maximum: it overflows above s = 88."},
    {"nan_on_empty_row",
     "The maximum of a row of -inf is -inf, and -inf - (-inf) is NaN. Such a row "
     "gives P = 0 and lse = -inf."},
    {"zero_by_zero", "A row of -inf has l = 0, and 0 / 0 is NaN. Its P has to be 0."},
    {"divided_too_early",
     "P[j] is divided by the sum so far: l is complete only after the loop over all keys."},
    {"p_without_max",
     "P is exp(S) / l here. l is relative to the maximum, so P is exp(S - m) / l."},
    {NULL, NULL}};

static float *S;
static Output *P, *lse;
static long n;

void prepare(void)
{
    static const float hand[4] = {0.70710678f, 0.70710678f, 1.41421356f, 0.0f};
    long j;
    n = has_flag("--hand") ? 4 : number("-N", 1);
    S = input("S", n);
    P = output("P", n, 1, "key", "");
    lse = output("lse", 1, 1, "row", "");
    fill_normal(S, n, 3);
    if (has_flag("--hand"))
        memcpy(S, hand, sizeof hand);
    for (j = 0; j < n; j++) {
        if (has_flag("--large"))
            S[j] += 1000.0f;
        if (has_flag("--below"))
            S[j] -= 200.0f;
        if (has_flag("--empty") || (has_flag("--masked") && j % 3 == 0))
            S[j] = -INFINITY;
    }
}

void call(void)
{
    lse->found[0] = softmax_row(S, P->found, (int)n);
}

void expect(int mistake)
{
    double m = -INFINITY, l = 0.0;
    long j;
    for (j = 0; j < n; j++)
        m = S[j] > m ? S[j] : m;
    if (mistake == 4 || (m == -INFINITY && mistake != 5))
        m = 0.0;
    for (j = 0; j < n; j++) {
        P->expected[j] = mistake == 4 ? (double)expf(S[j]) : exp(S[j] - m);
        l += P->expected[j];
        if (mistake == 7 && l > 0.0)
            P->expected[j] /= l;
        if (mistake == 8)
            P->expected[j] = (double)expf(S[j]);
    }
    for (j = 0; j < n && mistake != 3 && mistake != 7; j++)
        if (l != 0.0 || mistake == 6)
            P->expected[j] /= l;
    lse->expected[0] = mistake == 1 ? (m + log(l)) / log(2.0) : mistake == 2 ? log(l) : m + log(l);
}
