/* SPDX-License-Identifier: MIT
 *
 * 04.3c: the backward pass of one head, one pair at a time.
 */
#include <math.h>

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

void attention_backward(const float *Q, const float *K, const float *V, const float *O,
                        const float *lse, const float *dO, float *dQ, float *dK, float *dV, int Nq,
                        int Nk, int d, int causal)
{
    const float scale = 1.0f / sqrtf((float)d);
    for (int e = 0; e < Nq * d; e++)
        dQ[e] = 0.0f;
    for (int e = 0; e < Nk * d; e++)
        dK[e] = dV[e] = 0.0f;
    for (int i = 0; i < Nq; i++) {
        const float delta = dot(dO + i * d, O + i * d, d);
        const int seen = causal ? i + Nk - Nq + 1 : Nk;
        for (int j = 0; j < seen; j++) {
            const float p = expf(scale * dot(Q + i * d, K + j * d, d) - lse[i]);
            const float dP = dot(dO + i * d, V + j * d, d);
            const float dS = p * (dP - delta);
            for (int x = 0; x < d; x++) {
                dQ[i * d + x] += scale * dS * K[j * d + x];
                dK[j * d + x] += scale * dS * Q[i * d + x];
                dV[j * d + x] += p * dO[i * d + x];
            }
        }
    }
}
