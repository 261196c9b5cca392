/* SPDX-License-Identifier: MIT
 *
 * 01.5c: attention of one head, one row of scores at a time.
 */
#include <math.h>
#include <stdlib.h>

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq, int Nk,
               int d, int causal)
{
    const float scale = 1.0f / sqrtf((float)d);
    float *s = malloc(sizeof *s * (size_t)Nk);
    for (int i = 0; i < Nq; i++) {
        float m = -INFINITY, l = 0.0f;
        for (int j = 0; j < Nk; j++) {
            const int sees = !causal || j <= i + Nk - Nq;
            s[j] = sees ? scale * dot(Q + i * d, K + j * d, d) : -INFINITY;
            m = s[j] > m ? s[j] : m;
        }
        if (m == -INFINITY)
            m = 0.0f;
        for (int x = 0; x < d; x++)
            O[i * d + x] = 0.0f;
        for (int j = 0; j < Nk; j++) {
            const float p = expf(s[j] - m);
            l += p;
            for (int x = 0; x < d; x++)
                O[i * d + x] += p * V[j * d + x];
        }
        for (int x = 0; x < d && l > 0.0f; x++)
            O[i * d + x] /= l;
        lse[i] = m + logf(l);
    }
    free(s);
}
