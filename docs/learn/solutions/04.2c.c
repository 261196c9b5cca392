/* SPDX-License-Identifier: MIT
 *
 * 04.2c: dQ = scale * dS K by tiles of keys.
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

/* Q, K, V, dO, dQ [N][d], lse, delta [N]. 0: done. */
int backward_dq_variant(const float *Q, const float *K, const float *V, const float *lse,
                        const float *dO, const float *delta, float *dQ, int N, int d, int causal)
{
    const float scale = 1.0f / sqrtf((float)d);
    for (int i = 0; i < N; i++) {
        const int seen = causal ? i + 1 : N;
        for (int x = 0; x < d; x++)
            dQ[i * d + x] = 0.0f;
        for (int j0 = 0; j0 < seen; j0 += TILE) {
            const int keys = seen - j0 < TILE ? seen - j0 : TILE;
            float P[TILE], dP[TILE];
            for (int c = 0; c < keys; c++) {
                P[c] = expf(scale * dot(Q + i * d, K + (j0 + c) * d, d) - lse[i]);
                dP[c] = dot(dO + i * d, V + (j0 + c) * d, d);
            }
            for (int c = 0; c < keys; c++)
                for (int x = 0; x < d; x++)
                    dQ[i * d + x] += scale * P[c] * (dP[c] - delta[i]) * K[(j0 + c) * d + x];
        }
    }
    return 0;
}
