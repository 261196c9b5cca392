/* SPDX-License-Identifier: MIT
 *
 * 01.5a: attention of one head under a mask.
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

/* Q O [Nq][d], K V [Nk][d], lse [Nq]. mask [Nq][Nk]: 1 hides; NULL hides nothing. */
void masked_attention(const float *Q, const float *K, const float *V, const unsigned char *mask,
                      float *O, float *lse, int Nq, int Nk, int d)
{
    const float scale = 1.0f / sqrtf((float)d);
    float *S_i = malloc(sizeof(float) * (size_t)Nk);
    for (int i = 0; i < Nq; i++) {
        for (int j = 0; j < Nk; j++)
            S_i[j] = -INFINITY; /* hidden, unless it is written below */
        float m = -INFINITY, l = 0.0f;
        for (int j = 0; j < Nk; j++) {
            if (mask && mask[i * Nk + j])
                continue;
            S_i[j] = scale * dot(Q + i * d, K + j * d, d);
            m = S_i[j] > m ? S_i[j] : m;
        }
        const float shift = m == -INFINITY ? 0.0f : m;
        for (int x = 0; x < d; x++)
            O[i * d + x] = 0.0f;
        for (int j = 0; j < Nk; j++) {
            const float p = expf(S_i[j] - shift);
            l += p;
            for (int x = 0; x < d; x++)
                O[i * d + x] += p * V[j * d + x];
        }
        for (int x = 0; x < d && l > 0.0f; x++)
            O[i * d + x] /= l;
        lse[i] = m + logf(l);
    }
    free(S_i);
}
