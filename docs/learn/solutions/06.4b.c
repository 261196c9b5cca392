/* SPDX-License-Identifier: MIT
 *
 * 06.4b: two ranks with zigzag chunks, played in one process.
 */
#include <math.h>

#define RANKS  2
#define CHUNKS (2 * RANKS)

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* Query q meets one key; m, l and O are its state. */
static void meet(const float *q, const float *k, const float *v, int d, float *m, float *l,
                 float *O)
{
    const float s = dot(q, k, d) / sqrtf((float)d), m_new = s > *m ? s : *m;
    const float alpha = expf(*m - m_new), p = expf(s - m_new);
    *l = alpha * *l + p;
    for (int x = 0; x < d; x++)
        O[x] = alpha * O[x] + p * v[x];
    *m = m_new;
}

/* Rank r has the chunks r and CHUNKS - 1 - r. */
static int chunk_of(int rank, int half)
{
    return half == 0 ? rank : CHUNKS - 1 - rank;
}

/* N tokens, a multiple of CHUNKS; Q K V O [N][d], lse [N]. */
void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int N, int Nk,
               int d, int causal)
{
    const int n = N / CHUNKS;
    float m[N], l[N];
    for (int i = 0; i < N; i++)
        m[i] = -INFINITY, l[i] = 0.0f;
    for (int e = 0; e < N * d; e++)
        O[e] = 0.0f;
    for (int pair = 0; pair < RANKS * RANKS * 4; pair++) {
        const int step = pair / (4 * RANKS), r = pair / 4 % RANKS;
        const int owner = (r - step + RANKS) % RANKS; /* of the keys that are here */
        const int a = chunk_of(r, pair / 2 % 2), b = chunk_of(owner, pair % 2);
        if (causal && b > a)
            continue; /* these keys come after these queries: half of the work */
        for (int i = a * n; i < (a + 1) * n; i++)
            for (int j = b * n; j < (b + 1) * n && !(causal && j > i); j++)
                meet(Q + i * d, K + j * d, V + j * d, d, m + i, l + i, O + i * d);
    }
    for (int i = 0; i < N; i++) {
        for (int x = 0; x < d; x++)
            O[i * d + x] /= l[i];
        lse[i] = m[i] + logf(l[i]);
    }
}
