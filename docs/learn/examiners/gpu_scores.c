/* SPDX-License-Identifier: MIT
 *
 * gpu_scores.c: S = Q K^T on the GPU. --transposed: K comes as [d][Nk].
 */
#include "gpu.h"

void scores(const float *Q, const float *K, float *S, int Nq, int Nk, int d);

const Mistake mistakes[] = {
    {"rows_for_columns", "Queries and keys are exchanged: S[i * Nk + j] belongs to query i and key "
                         "j."},
    {"first_tile", "Every tile of keys is taken for the first one: a tile begins at key j0, in K "
                   "and in S."},
    {"last_channel", "The last channel of each row is left out."},
    {NULL, NULL},
};

static int Nq, Nk, d;
static float *Q, *K, *K_T;
static Output *S;

void prepare(void)
{
    int j, x;
    Nq = (int)number("-N", 32);
    Nk = (int)number("--keys", Nq);
    d = (int)number("-d", 64);
    Q = normal_input("Q", (long)Nq * d, 1, NULL);
    K = normal_input("K", (long)Nk * d, 2, NULL);
    K_T = malloc(sizeof(float) * (size_t)(Nk * d));
    S = output("S", Nq, Nk, "query", "key");
    for (j = 0; j < Nk; j++)
        for (x = 0; x < d; x++)
            K_T[x * Nk + j] = K[j * d + x];
}

void call(void)
{
    scores(on_device(Q, (long)Nq * d), on_device(has_flag("--transposed") ? K_T : K, (long)Nk * d),
           back(S), Nq, Nk, d);
    end_kernels();
}

void expect(int mistake)
{
    int i, j, x;
    for (i = 0; i < Nq; i++)
        for (j = 0; j < Nk; j++) {
            const int row = mistake == 1 ? j % Nq : i;
            const int key = mistake == 1 ? i % Nk : mistake == 2 ? j % 32 : j;
            double sum = 0.0;
            for (x = 0; x < d - (mistake == 3); x++)
                sum += (double)Q[row * d + x] * K[key * d + x];
            S->expected[i * Nk + j] = sum;
        }
}

const Mistake *diagnose(void)
{
    static const Mistake grid = {
        "grid",
        "Nothing is wrong with the scores that were written. Of the others no thread is in "
        "charge: the grid has to be as wide as the index of x needs it, and as high as that "
        "of y does."};
    long e, right = 1;
    for (e = 0; e < (long)Nq * Nk; e++)
        right &= is_unwritten(S, e) || fabs(S->found[e] - S->expected[e]) < 1e-3;
    return right ? &grid : NULL;
}
