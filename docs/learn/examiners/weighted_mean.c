/* SPDX-License-Identifier: MIT
 *
 * weighted_mean.c: judges O = P V of one head.
 *
 * Interface: -N queries, --keys, -d channels.
 */
#include <math.h>

#include "learn.h"

void weighted_mean(const float *P, const float *V, float *O, int Nq, int Nk, int d);

const Mistake mistakes[] = {
    {"not_cleared",
     "O is NaN everywhere. It was summed onto what was in memory before (it has to begin "
     "with 0), or P or V was read behind its end."},
    {"last_only", "Each key overwrites O; the terms of all keys have to be added."},
    {"transposed", "Here P[j][i] weighs V_j; it has to be P[i][j]: row i of P belongs to query i."},
    {"row_length",
     "A row of P has Nk numbers, here each begins Nq behind the one before: P[i * Nk + j]."},
    {"values_transposed",
     "V is read as if it were stored as [d][Nk]. Row j of V is contiguous: V[j * d + x]."},
    {"row_of_query",
     "All weights of query i meet row i of V; weight j belongs to row j: V[j * d + x]."},
    {"queries_for_keys", "The sum runs over Nq keys; there are Nk."},
    {NULL, NULL}};

static float *P, *V;
static Output *O;
static long Nq, Nk, d;

void prepare(void)
{
    long e;
    Nq = number("-N", 1);
    Nk = number("--keys", Nq);
    d = number("-d", 1);
    P = normal_input("P", Nq * Nk, 5, NULL);
    V = normal_input("V", Nk * d, 6, NULL);
    O = output("O", Nq, d, "query", "channel");
    for (e = 0; e < Nq * Nk; e++)
        P[e] = P[e] * P[e] / (float)Nk;
}

void call(void)
{
    weighted_mean(P, V, O->found, (int)Nq, (int)Nk, (int)d);
}

void expect(int mistake)
{
    long i, j, x;
    for (i = 0; i < Nq; i++)
        for (x = 0; x < d; x++) {
            double sum = mistake == 1 ? NAN : 0.0;
            for (j = 0; j < Nk; j++) {
                const long e = mistake == 3 && Nq == Nk  ? j * Nk + i
                               : mistake == 4 && Nq < Nk ? i * Nq + j
                                                         : i * Nk + j;
                const long v = mistake == 5               ? x * Nk + j
                               : mistake == 6 && Nq <= Nk ? i * d + x
                                                          : j * d + x;
                if (mistake == 7 && j >= Nq)
                    continue;
                sum = (mistake == 2 ? 0.0 : sum) + (double)P[e] * V[v];
            }
            O->expected[i * d + x] = sum;
        }
}
