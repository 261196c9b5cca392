/* SPDX-License-Identifier: MIT
 *
 * softmax_column.c: judges the softmax of one column of a matrix of scores, and its lse.
 *
 * Interface: -N scores of a column, --ld numbers of a row, --hand: row q3 of the lessons, --large:
 * scores around 1000, --below: around -200, --masked: every third score is -inf, --empty: all are.
 */
#include <math.h>

#include "learn.h"

float softmax_column(const float *S, float *P, int n, int ld);

#define BESIDE 7.0f /* what stands in the other columns of P */

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
    {"rows_for_columns",
     "Scores are read side by side here. Those of a column lie ld numbers apart: S[j * ld]."},
    {NULL, NULL}};

static float *S, *S_all, *P_all; /* [n]; [n][ld] */
static Output *P, *lse;
static long n, ld, column;

void prepare(void)
{
    long j;
    n = case_size("-N", 1, 4);
    ld = number("--ld", 1);
    column = ld / 2;
    S = case_memory(n, sizeof *S);
    S_all = normal_input("S", n * ld, 4, NULL);
    P_all = case_memory(n * ld, sizeof *P_all);
    P = output("P", n, 1, "key", "");
    lse = output("lse", 1, 1, "row", "");
    fill_normal(S, n, 3);
    if (has_flag("--hand"))
        memcpy(S, hand_s, sizeof hand_s);
    for (j = 0; j < n; j++) {
        if (has_flag("--large"))
            S[j] += 1000.0f;
        if (has_flag("--below"))
            S[j] -= 200.0f;
        if (has_flag("--empty") || (has_flag("--masked") && j % 3 == 0))
            S[j] = -INFINITY;
    }
    for (j = 0; j < n; j++)
        S_all[j * ld + column] = S[j];
    for (j = 0; j < n * ld; j++)
        P_all[j] = BESIDE;
    poison(P->found, n);
    for (j = 0; j < n; j++)
        P_all[j * ld + column] = P->found[j];
}

void call(void)
{
    long j;
    lse->found[0] = softmax_column(S_all + column, P_all + column, (int)n, (int)ld);
    for (j = 0; j < n * ld; j++)
        if (j % ld != column && P_all[j] != BESIDE)
            refuse("other_columns",
                   "Your function writes to other columns of P. Number j of the column stands at "
                   "P[j * ld].");
    for (j = 0; j < n; j++)
        P->found[j] = P_all[j * ld + column];
}

void expect(int mistake)
{
    double m = -INFINITY, l = 0.0;
    const float *row =
        mistake == 9 ? S_all + column : S; /* 9: the numbers of a row, not a column */
    long j;
    for (j = 0; j < n; j++)
        m = row[j] > m ? row[j] : m;
    if (mistake == 4 || (m == -INFINITY && mistake != 5))
        m = 0.0;
    for (j = 0; j < n; j++) {
        P->expected[j] = mistake == 4 ? (double)expf(row[j]) : exp(row[j] - m);
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
