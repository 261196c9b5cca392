/* SPDX-License-Identifier: MIT
 *
 * weighted_mean.c: judges O = P V of one head.
 *
 * Interface: -N queries, --keys, -d channels.
 */
#include "learn.h"

void weighted_mean(const float *P, const float *V, float *O, int Nq, int Nk, int d);

const Mistake mistakes[] = {
    {"not_cleared", "O is summed onto what was in memory before; it has to begin with 0."},
    {"last_only", "Each key overwrites O; the terms of all keys have to be added."},
    {"transposed", "Here P[j][i] weighs V_j; it has to be P[i][j]: row i of P belongs to query i."},
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
    P = input("P", Nq * Nk);
    V = input("V", Nk * d);
    O = output("O", Nq, d, "query", "channel");
    fill_normal(P, Nq * Nk, 5);
    fill_normal(V, Nk * d, 6);
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
                const long e = mistake == 3 && Nq == Nk ? j * Nk + i : i * Nk + j;
                sum = (mistake == 2 ? 0.0 : sum) + (double)P[e] * V[j * d + x];
            }
            O->expected[i * d + x] = sum;
        }
}
