/* SPDX-License-Identifier: MIT
 *
 * 06.5d: the gradients of three ranks, played in one process.
 */
#include <math.h>

#define RANKS 3

typedef struct Block { /* of the keys that are at a rank: they travel, and so do their sums */
    const float *K, *V;
    float *dK, *dV;
} Block;

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* Row i of the queries and all n keys of a block. */
static void add_row(const float *q, const float *dO, float lse, float delta, const Block *at, int n,
                    int d, float *dQ)
{
    const float scale = 1.0f / sqrtf((float)d);
    for (int j = 0; j < n; j++) {
        const float p = expf(scale * dot(q, at->K + j * d, d) - lse);
        const float dS = p * (dot(dO, at->V + j * d, d) - delta);
        for (int x = 0; x < d; x++) {
            dQ[x] += scale * dS * at->K[j * d + x];
            at->dK[j * d + x] += scale * dS * q[x];
            at->dV[j * d + x] += p * dO[x];
        }
    }
}

/* No mask; N queries and keys, a multiple of RANKS. Q K V O dO dQ dK dV [N][d], lse [N]. */
void attention_backward(const float *Q, const float *K, const float *V, const float *O,
                        const float *lse, const float *dO, float *dQ, float *dK, float *dV, int N,
                        int Nk, int d, int causal)
{
    const int n = N / RANKS;
    Block saved[RANKS];
    for (int e = 0; e < N * d; e++)
        dQ[e] = dK[e] = dV[e] = 0.0f;
    for (int r = 0; r < RANKS; r++) /* what the forward pass kept at rank r */
        saved[r] = (Block){K + r * n * d, V + r * n * d, dK + r * n * d, dV + r * n * d};
    for (int t = 0; t < RANKS; t++)
        for (int r = 0; r < RANKS; r++) {
            const int owner = (r - t + RANKS) % RANKS;
            const Block here = saved[owner];
            for (int i = r * n; i < (r + 1) * n; i++)
                add_row(Q + i * d, dO + i * d, lse[i], dot(dO + i * d, O + i * d, d), &here, n, d,
                        dQ + i * d);
        }
}
