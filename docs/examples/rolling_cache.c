/* SPDX-License-Identifier: MIT
 *
 * rolling_cache.c: eight tokens, one after the other, with a window of two keys before the query:
 * three slots are enough. For lesson 05.5; it needs nothing but this file.
 *
 * Each token writes its key and value over those that have just left the window, then attends to
 * every slot that is filled. The same row is computed from all tokens, and the two are compared.
 *
 *     cc -O2 docs/examples/rolling_cache.c -o rolling_cache -lm && ./rolling_cache
 *
 * With the argument `one-slot-less` the cache has as many slots as there are keys before the query.
 * Exit status 0: all rows agree.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 8, D = 2, W = 2 }; /* a query sees itself and W keys before it */
static double Q[TOKENS][D], K[TOKENS][D], V[TOKENS][D];

/* Attention of one query over n keys. */
static void attend(const double *q, double K[][D], double V[][D], int n, double *O)
{
    double sum = 0, p[TOKENS];
    for (int j = 0; j < n; j++)
        sum += p[j] = exp((q[0] * K[j][0] + q[1] * K[j][1]) / sqrt(D));
    for (int x = 0; x < D; x++) {
        O[x] = 0;
        for (int j = 0; j < n; j++)
            O[x] += p[j] / sum * V[j][x];
    }
}

int main(int argc, char **argv)
{
    const int slots = W + (argc < 2 || strcmp(argv[1], "one-slot-less") != 0);
    double K_slot[W + 1][D], V_slot[W + 1][D], worst = 0;
    int holds[W + 1] = {-1, -1, -1};
    for (int e = 0; e < TOKENS * D; e++) {
        Q[e / D][e % D] = sin(1.7 * e);
        K[e / D][e % D] = cos(2.3 * e);
        V[e / D][e % D] = sin(0.9 * e + 1);
    }
    for (int t = 0; t < TOKENS; t++) {
        /* [step] Token t: three lines. */
        const int slot = t % slots, filled = t + 1 < slots ? t + 1 : slots;
        double O[D], wanted[D];
        memcpy(K_slot[slot], K[t], sizeof K[t]); /* over the key of token t - slots */
        memcpy(V_slot[slot], V[t], sizeof V[t]);
        attend(Q[t], K_slot, V_slot, filled, O); /* every filled slot is visible */
        /* [/step] */
        const int first = t > W ? t - W : 0;
        attend(Q[t], K + first, V + first, t + 1 - first, wanted);
        worst = fmax(worst, fmax(fabs(O[0] - wanted[0]), fabs(O[1] - wanted[1])));
        holds[slot] = t;
        printf("token %d   slots hold tokens", t);
        for (int s = 0; s < slots; s++)
            printf(holds[s] < 0 ? "  -" : "  %d", holds[s]);
        printf("   keys that the query sees: %d to %d\n", first, t);
    }
    if (worst < 1e-12)
        printf("largest difference from attention over all tokens: below 1e-12\n");
    else
        printf("largest difference from attention over all tokens: %.2f  WRONG\n", worst);
    return worst < 1e-12 ? 0 : 1;
}
