/* SPDX-License-Identifier: MIT
 *
 * scores.c: judges S = scale * Q K^T of one head.
 *
 * Interface: -N queries, --keys, -d channels, --hand: the four tokens of the lessons.
 */
#include <math.h>

#include "learn.h"

void scores(const float *Q, const float *K, float *S, int Nq, int Nk, int d);

const Mistake mistakes[] = {{"no_scale", "These are the products without the scale 1/sqrt(d)."},
                            {"scale_by_d",
                             "The scale here is 1/d or 1/sqrt(Nk) (both are 1/2 for the four "
                             "tokens); it has to be 1/sqrt(d): d is the length of the sum."},
                            {"transposed", "This is K Q^T: row and column of S are exchanged."},
                            {"k_transposed", "K is read as if it were stored as [d][Nk]. Row j of "
                                             "K is contiguous: K[j * d + x]."},
                            {"sum_not_reset", "The sum goes on from pair to pair: it has to begin "
                                              "at 0 for each i and j."},
                            {"scale_inverted", "The products are multiplied by sqrt(d); they are "
                                               "to be divided by it."},
                            {"one_channel", "Only channel 0 is in S: the sum runs over all x."},
                            {NULL, NULL}};

static float *Q, *K;
static Output *S;
static long Nq, Nk, d;

void prepare(void)
{
    Nq = case_size("-N", 1, 4), Nk = case_size("--keys", Nq, 4), d = case_size("-d", 1, 2);
    Q = normal_input("Q", Nq * d, 1, hand_Q), K = normal_input("K", Nk * d, 2, hand_K);
    S = output("S", Nq, Nk, "query", "key");
}

void call(void)
{
    scores(Q, K, S->found, (int)Nq, (int)Nk, (int)d);
}

void expect(int mistake)
{
    const double scale = mistake == 1   ? 1.0
                         : mistake == 2 ? 1.0 / (double)d
                         : mistake == 6 ? sqrt((double)d)
                                        : 1.0 / sqrt((double)d);
    double sum = 0.0;
    long i, j, x;
    for (i = 0; i < Nq; i++)
        for (j = 0; j < Nk; j++) {
            sum = mistake == 5 ? sum : 0.0;
            for (x = 0; x < (mistake == 7 ? 1 : d); x++)
                sum += (double)Q[i * d + x] * K[mistake == 4 ? x * Nk + j : j * d + x];
            if (mistake == 3 && Nq == Nk)
                S->expected[j * Nk + i] = scale * sum;
            else
                S->expected[i * Nk + j] = scale * sum;
        }
}

/* A row of S has Nk numbers. With Nq of them, rows overlap and the end of S stays unwritten. */
const Mistake *diagnose(void)
{
    static const Mistake stride = {
        "row_length", "A row of S has Nk numbers, here each begins Nq behind the one before: S[i "
                      "* Nk + j]."};
    float *written = case_memory(Nq * Nk, sizeof *written);
    long i, j, e;
    int same = Nq < Nk;
    for (e = 0; same && e < Nq * Nk; e++)
        written[e] = NAN;
    for (i = 0; same && i < Nq; i++)
        for (j = 0; j < Nk; j++)
            written[i * Nq + j] = (float)S->expected[i * Nk + j];
    for (e = 0; same && e < Nq * Nk; e++)
        same = isnan(written[e]) ? isnan(S->found[e]) : fabsf(S->found[e] - written[e]) < 1e-3f;
    free(written);
    return same ? &stride : NULL;
}
