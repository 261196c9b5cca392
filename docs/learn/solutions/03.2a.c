/* SPDX-License-Identifier: MIT
 *
 * 03.2a: Algorithm 1 in tiles of 4 queries and 4 keys.
 */
#include <math.h>

#define TILE 4

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* The state of query q after it has met `keys` more keys, at most TILE. */
static void meet(const float *q, const float *K, const float *V, int keys, int d, float *m,
                 float *l, float *O)
{
    float P[TILE], m_tile = -INFINITY, l_tile = 0.0f;
    for (int c = 0; c < keys; c++) {
        P[c] = dot(q, K + c * d, d) / sqrtf((float)d);
        m_tile = P[c] > m_tile ? P[c] : m_tile;
    }
    for (int c = 0; c < keys; c++)
        l_tile += P[c] = expf(P[c] - m_tile);
    const float m_new = m_tile > *m ? m_tile : *m;
    const float alpha = expf(*m - m_new), beta = expf(m_tile - m_new);
    const float l_new = alpha * *l + beta * l_tile;
    for (int x = 0; x < d; x++) {
        O[x] *= *l * alpha / l_new;
        for (int c = 0; c < keys; c++)
            O[x] += beta * P[c] / l_new * V[c * d + x];
    }
    *m = m_new;
    *l = l_new;
}

/* Q O [Nq][d], K V [Nk][d], lse [Nq]; causal: query i sees the keys j <= i + Nk - Nq */
void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq, int Nk,
               int d, int causal)
{
    float m[Nq], l[Nq];
    for (int i = 0; i < Nq; i++)
        m[i] = -INFINITY, l[i] = 0.0f;
    for (int e = 0; e < Nq * d; e++)
        O[e] = 0.0f;
    for (int j0 = 0; j0 < Nk; j0 += TILE) {
        for (int i0 = 0; i0 < Nq; i0 += TILE) {
            const int i1 = i0 + TILE < Nq ? i0 + TILE : Nq, j1 = j0 + TILE < Nk ? j0 + TILE : Nk;
            if (causal && j0 > i1 - 1 + Nk - Nq)
                continue; /* all hidden */
            for (int i = i0; i < i1; i++) {
                const int seen = causal && i + Nk - Nq + 1 < j1 ? i + Nk - Nq + 1 : j1;
                if (seen > j0)
                    meet(Q + i * d, K + j0 * d, V + j0 * d, seen - j0, d, m + i, l + i, O + i * d);
            }
        }
    }
    for (int i = 0; i < Nq; i++)
        lse[i] = m[i] + logf(l[i]);
}
