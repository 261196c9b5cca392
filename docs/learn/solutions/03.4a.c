/* SPDX-License-Identifier: MIT
 *
 * 03.4a: tiles of 8 keys.
 */
#include <math.h>

#define TILE 8

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* Q O [Nq][d], K V [Nk][d], lse [Nq]: attention of one head, 8 keys at a time */
void attend_tiles(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq,
                  int Nk, int d)
{
    const float scale = 1.0f / sqrtf((float)d);
    for (int i = 0; i < Nq; i++) {
        float m = -INFINITY, l = 0.0f, s[TILE];
        for (int x = 0; x < d; x++)
            O[i * d + x] = 0.0f;
        for (int j = 0; j < Nk; j += TILE) {
            int cols = Nk - j < TILE ? Nk - j : TILE;
            float m_new = m;
            for (int c = 0; c < cols; c++) {
                s[c] = scale * dot(Q + i * d, K + (j + c) * d, d);
                m_new = s[c] > m_new ? s[c] : m_new;
            }
            const float alpha = expf(m - m_new);
            l *= alpha;
            for (int x = 0; x < d; x++)
                O[i * d + x] *= alpha;
            for (int c = 0; c < cols; c++) {
                const float p = expf(s[c] - m_new);
                l += p;
                for (int x = 0; x < d; x++)
                    O[i * d + x] += p * V[(j + c) * d + x];
            }
            m = m_new;
        }
        for (int x = 0; x < d; x++)
            O[i * d + x] /= l;
        lse[i] = m + logf(l);
    }
}
