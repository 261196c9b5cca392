/* SPDX-License-Identifier: MIT
 *
 * row_sums.c: judges delta = rowsum(dO * O), from the sums a = l O.
 *
 * Interface: -N rows, -d channels, --hand: the four tokens, --empty: row 1 sees no key: its a and
 * its l are 0, its dO NaN.
 */
#include <math.h>

#include "learn.h"

void delta_of_sums(const float *a, const float *l, const float *dO, float *delta, int N, int d);

enum {
    RIGHT,
    NAN_TIMES_ZERO,
    NOT_DIVIDED,
    SUM_NOT_RESET,
    SQUARED,
    DIVIDED,
    ROW_FORGOTTEN,
    LAST_CHANNEL
};

const Mistake mistakes[] = {
    {"nan_times_zero", "A row without keys has a = 0 and l = 0: 0 * NaN and 0 / 0 are NaN. Leave "
                       "out the products and the division where l is 0."},
    {"not_divided", "This is rowsum(dO * a). O is a / l, so the sum is to be divided by l."},
    {"sum_not_reset", "The sum of a row goes on in the next one: it has to begin at 0."},
    {"squared", "This is the sum of dO * dO; delta is that of dO * O."},
    {"divided", "The sum is divided by d, too. delta is a mean over keys, whose weights are in O "
                "already."},
    {"row_forgotten",
     "Every row has the delta of row 0: row i begins at i * d, and has its own l."},
    {"last_channel", "Only the last channel is in delta: the products are to be added up, +=."},
    {NULL, NULL}};

static const float hand_a[8] = {3.0f,    4.4654f, 2.4931f, 4.9723f,
                                2.9998f, 3.2156f, 2.4931f, 3.4655f};
static const float hand_l[4] = {2.9861f, 2.9861f, 2.4862f, 2.2293f};
static float *a, *l, *dO;
static Output *delta;
static long N, d;

void prepare(void)
{
    N = case_size("-N", 1, 4), d = case_size("-d", 2, 2);
    a = normal_input("a", N * d, 1, hand_a), l = normal_input("l", N, 3, hand_l);
    dO = normal_input("dO", N * d, 2, hand_dO);
    delta = output("delta", N, 1, "query", "");
    for (long i = 0; i < N && !has_flag("--hand"); i++)
        l[i] = 1.5f + fabsf(l[i]);
    for (long x = 0; x < d && has_flag("--empty"); x++)
        a[d + x] = 0.0f, l[1] = 0.0f, dO[d + x] = NAN;
}

void call(void)
{
    delta_of_sums(a, l, dO, delta->found, (int)N, (int)d);
}

void expect(int mistake)
{
    double sum = 0;
    for (long i = 0; i < N; i++) {
        const long row = mistake == ROW_FORGOTTEN ? 0 : i;
        const int empty = l[row] == 0 && mistake != NAN_TIMES_ZERO;
        sum = mistake == SUM_NOT_RESET ? sum : 0;
        for (long x = mistake == LAST_CHANNEL ? d - 1 : 0; x < d && !empty; x++)
            sum += mistake == SQUARED ? (double)dO[row * d + x] * dO[row * d + x] * l[row]
                                      : (double)dO[row * d + x] * a[row * d + x];
        delta->expected[i] = empty ? 0 : mistake == NOT_DIVIDED ? sum : sum / l[row];
        delta->expected[i] /= mistake == DIVIDED ? (double)d : 1;
    }
}
