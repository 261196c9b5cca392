/* SPDX-License-Identifier: MIT
 *
 * row_sums.c: judges delta = rowsum(dO * O).
 *
 * Interface: -N rows, -d channels, --hand: the four tokens, --empty: row 1 sees no key: its O is 0,
 * its dO NaN.
 */
#include <math.h>

#include "learn.h"

int backward_delta_variant(const float *O, const float *dO, float *delta, int N, int d);

const Mistake mistakes[] = {
    {"nan_times_zero",
     "A row without keys has O = 0, and 0 * NaN is NaN. Leave out the product where O is 0."},
    {"sum_not_reset", "The sum of a row goes on in the next one: it has to begin at 0."},
    {"squared", "This is the sum of dO * dO; delta is that of dO * O."},
    {"divided",
     "The sum is divided by d. delta is a mean over keys, whose weights are in O already."},
    {"row_forgotten", "Every row has the delta of row 0: row i begins at i * d."},
    {"last_channel", "Only the last channel is in delta: the products are to be added up, +=."},
    {NULL, NULL}};

static const float hand_O[8] = {1.0046f, 1.4954f, 0.8349f, 1.6651f,
                                1.2066f, 1.2934f, 1.1183f, 1.5546f};
static const float hand_dO[8] = {1, 0, 0, 1, 1, 1, 1, -1};
static float *O, *dO;
static Output *delta;
static long N, d;

void prepare(void)
{
    const int hand = has_flag("--hand");
    N = hand ? 4 : number("-N", 1);
    d = hand ? 2 : number("-d", 2);
    O = input("O", N * d), dO = input("dO", N * d);
    delta = output("delta", N, 1, "query", "");
    fill_normal(O, N * d, 1), fill_normal(dO, N * d, 2);
    if (hand)
        memcpy(O, hand_O, sizeof hand_O), memcpy(dO, hand_dO, sizeof hand_dO);
    for (long x = 0; x < d && has_flag("--empty"); x++)
        O[d + x] = 0.0f, dO[d + x] = NAN;
}

void call(void)
{
    if (backward_delta_variant(O, dO, delta->found, (int)N, (int)d) != 0)
        refuse("status", "Your function returned another number than 0.");
}

void expect(int mistake)
{
    double sum = 0;
    for (long i = 0; i < N; i++) {
        const long row = mistake == 5 ? 0 : i;
        sum = mistake == 2 ? sum : 0;
        for (long x = mistake == 6 ? d - 1 : 0; x < d; x++)
            if (mistake == 1 || mistake == 3 || O[row * d + x] != 0)
                sum += (double)dO[row * d + x] * (mistake == 3 ? dO : O)[row * d + x];
        delta->expected[i] = mistake == 4 ? sum / (double)d : sum;
    }
}
