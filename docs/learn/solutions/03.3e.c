/* SPDX-License-Identifier: MIT
 *
 * 03.3e: attention in tiles of keys, with the state of one row at a time.
 */
#include <math.h>
#include <stdlib.h>

#define TILE 32

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* One tile of keys for one row: m, l and O move from the keys before to those with the tile. */
static void add_tile(const float *q, const float *K_j, const float *V_j, int cols, int d, float *m,
                     float *l, float *O)
{
    float s[TILE], m_new = *m;
    for (int c = 0; c < cols; c++) {
        s[c] = dot(q, K_j + c * d, d) / sqrtf((float)d);
        m_new = s[c] > m_new ? s[c] : m_new;
    }
    const float alpha = expf(*m - m_new);
    *l *= alpha;
    for (int x = 0; x < d; x++)
        O[x] *= alpha;
    for (int c = 0; c < cols; c++) {
        const float p = expf(s[c] - m_new);
        *l += p;
        for (int x = 0; x < d; x++)
            O[x] += p * V_j[c * d + x];
    }
    *m = m_new;
}

int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal)
{
    for (int i = 0; i < N; i++) {
        const int keys = causal ? i + 1 : N;
        float m = -INFINITY, l = 0.0f;
        for (int x = 0; x < d; x++)
            O[i * d + x] = 0.0f;
        for (int j = 0; j < keys; j += TILE)
            add_tile(Q + i * d, K + j * d, V + j * d, keys - j < TILE ? keys - j : TILE, d, &m, &l,
                     O + i * d);
        for (int x = 0; x < d; x++)
            O[i * d + x] /= l;
        lse[i] = m + logf(l);
    }
    return 0;
}
