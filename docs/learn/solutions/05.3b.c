/* SPDX-License-Identifier: MIT
 *
 * 05.3b: the first half of the keys by one library, the rest by another.
 */
#include <math.h>

#define LOG2E 1.4426950409f
#define LN2   0.6931471806f

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* Attention of one query over `keys` keys. Returns lse, the natural logarithm of the sum. */
static float first_library(const float *q, const float *K, const float *V, int keys, int d,
                           float *O)
{
    float m = -INFINITY, l = 0.0f;
    for (int x = 0; x < d; x++)
        O[x] = 0.0f;
    for (int j = 0; j < keys; j++)
        m = fmaxf(m, dot(q, K + j * d, d) / sqrtf((float)d));
    for (int j = 0; j < keys; j++) {
        const float p = expf(dot(q, K + j * d, d) / sqrtf((float)d) - m);
        l += p;
        for (int x = 0; x < d; x++)
            O[x] += p * V[j * d + x];
    }
    for (int x = 0; x < d && l > 0.0f; x++)
        O[x] /= l;
    return m + logf(l);
}

/* The same by exp2, which a GPU has in hardware: scores are kept times log2(e). */
static float second_library(const float *q, const float *K, const float *V, int keys, int d,
                            float *O)
{
    const float scale = LOG2E / sqrtf((float)d);
    float m = -INFINITY, l = 0.0f;
    for (int x = 0; x < d; x++)
        O[x] = 0.0f;
    for (int j = 0; j < keys; j++)
        m = fmaxf(m, scale * dot(q, K + j * d, d));
    for (int j = 0; j < keys; j++) {
        const float p = exp2f(scale * dot(q, K + j * d, d) - m);
        l += p;
        for (int x = 0; x < d; x++)
            O[x] += p * V[j * d + x];
    }
    for (int x = 0; x < d && l > 0.0f; x++)
        O[x] /= l;
    return m + log2f(l);
}

void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq, int Nk,
               int d, int causal)
{
    for (int i = 0; i < Nq; i++) {
        const int seen = causal ? i + Nk - Nq + 1 : Nk, half = seen / 2;
        float O_b[d], *O_a = O + i * d;
        const float a = first_library(Q + i * d, K, V, half, d, O_a);
        const float b =
            LN2 * second_library(Q + i * d, K + half * d, V + half * d, seen - half, d, O_b);
        const float both = fmaxf(a, b) + log1pf(expf(fminf(a, b) - fmaxf(a, b)));
        for (int x = 0; x < d; x++)
            O_a[x] = expf(a - both) * O_a[x] + expf(b - both) * O_b[x];
        lse[i] = both;
    }
}
