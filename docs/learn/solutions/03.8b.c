/* SPDX-License-Identifier: MIT
 *
 * 03.8b: tiles of 4 keys, from the last one to the first.
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

/* Q O [Nq][d], K V [Nk][d], lse [Nq]; causal: query i sees the keys j <= i + Nk - Nq */
void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq, int Nk,
               int d, int causal)
{
    for (int i = 0; i < Nq; i++) {
        const int seen = causal ? i + Nk - Nq + 1 : Nk;
        float m = -INFINITY, l = 0.0f;
        for (int x = 0; x < d; x++)
            O[i * d + x] = 0.0f;
        for (int j0 = (Nk - 1) / TILE * TILE; j0 >= 0; j0 -= TILE) {
            const int cols = Nk - j0 < TILE ? Nk - j0 : TILE;
            float s[TILE], m_new = m;
            for (int c = 0; c < cols; c++) {
                s[c] = dot(Q + i * d, K + (j0 + c) * d, d) / sqrtf((float)d);
                if (j0 + c >= seen)
                    s[c] = -INFINITY;
                m_new = s[c] > m_new ? s[c] : m_new;
            }
            const float shift = m_new == -INFINITY ? 0.0f : m_new; /* -inf - -inf is NaN */
            const float alpha = expf(m - shift);
            m = m_new;
            l *= alpha;
            for (int x = 0; x < d; x++)
                O[i * d + x] *= alpha;
            for (int c = 0; c < cols; c++) {
                const float p = expf(s[c] - shift);
                l += p;
                for (int x = 0; x < d; x++)
                    O[i * d + x] += p * V[(j0 + c) * d + x];
            }
        }
        for (int x = 0; x < d && l > 0.0f; x++)
            O[i * d + x] /= l;
        lse[i] = m + logf(l);
    }
}
