/* SPDX-License-Identifier: MIT
 *
 * 06.8a: four ranks, played in one process: a query and its partial result travel.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define RANKS 4
#define MAX_D 64

typedef struct Partial { /* what travels with a query */
    float O[MAX_D];
    float lse;
} Partial;

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* To 16 bits and back, as K and V travel: 8 of 24 bits of the fraction remain. */
static float bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* One key goes into the partial result. */
static void merge_key(Partial *at, float s, const float *V, int d)
{
    const float max = fmaxf(at->lse, s), both = max + log1pf(expf(fminf(at->lse, s) - max));
    for (int x = 0; x < d; x++)
        at->O[x] = expf(at->lse - both) * at->O[x] + expf(s - both) * V[x];
    at->lse = both;
}

static Partial send(const Partial *from, int d)
{
    Partial to = {.lse = from->lse};
    for (int x = 0; x < d; x++)
        to.O[x] = from->O[x];
    return to;
}

/* Rank r has the keys r * Nk / RANKS to (r + 1) * Nk / RANKS - 1. */
void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq, int Nk,
               int d, int causal)
{
    for (int i = 0; i < Nq; i++) {
        const int seen = causal ? i + Nk - Nq + 1 : Nk;
        Partial at = {.lse = -INFINITY};
        for (int r = 0; r < RANKS; r++) {
            for (int j = r * Nk / RANKS; j < (r + 1) * Nk / RANKS && j < seen; j++)
                merge_key(&at, dot(Q + i * d, K + j * d, d) / sqrtf((float)d), V + j * d, d);
            at = send(&at, d);
        }
        memcpy(O + i * d, at.O, sizeof *O * (size_t)d);
        lse[i] = at.lse;
    }
}
