/* SPDX-License-Identifier: MIT
 *
 * loop_order.c: judges dV = P^T dO, and the order of its three loops by the time that it takes.
 *
 * Interface: -N queries, --keys, -d channels; --pace: against loops with the queries innermost.
 */
#include "pace.h"

void value_gradient(const float *P, const float *dO, float *dV, int Nq, int Nk, int d);

#define SHARE 0.3

const Mistake mistakes[] = {
    {"not_cleared", "dV is summed onto what was in memory before; it has to begin with 0."},
    {"last_only", "Each query overwrites dV; the terms of all queries have to be added."},
    {"not_transposed", "Here P[j][i] weighs dO_i; it is P[i][j]: dV = P^T dO sums a column of P."},
    {NULL, NULL}};

static float *P, *dO;
static Output *dV;
static long Nq, Nk, d;

void prepare(void)
{
    Nq = number("-N", 1);
    Nk = number("--keys", Nq);
    d = number("-d", 1);
    P = normal_input("P", Nq * Nk, 5, NULL);
    dO = normal_input("dO", Nq * d, 6, NULL);
    dV = output("dV", Nk, d, "key", "channel");
    dV->tolerance = 1e-3;
}

static void yours(void)
{
    value_gradient(P, dO, dV->found, (int)Nq, (int)Nk, (int)d);
}

static void plain(void)
{
    long i, j, x;
    for (j = 0; j < Nk; j++)
        for (x = 0; x < d; x++) {
            float sum = 0.0f;
            for (i = 0; i < Nq; i++)
                sum += P[i * Nk + j] * dO[i * d + x];
            dV->found[j * d + x] = sum;
        }
}

void call(void)
{
    yours();
}

void judge_counts(void)
{
    if (has_flag("--pace"))
        refuse_slow(plain, yours, SHARE,
                    "Which index does your innermost loop count, and how far apart do the numbers "
                    "lie that it reads one after the other?");
}

void expect(int mistake)
{
    long i, j, x;
    for (j = 0; j < Nk; j++)
        for (x = 0; x < d; x++) {
            double sum = mistake == 1 ? NAN : 0.0;
            for (i = 0; i < Nq; i++)
                sum = (mistake == 2 ? 0.0 : sum) +
                      (double)P[mistake == 3 && Nq == Nk ? j * Nk + i : i * Nk + j] * dO[i * d + x];
            dV->expected[j * d + x] = sum;
        }
}
