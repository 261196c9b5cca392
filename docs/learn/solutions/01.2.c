/* SPDX-License-Identifier: MIT
 *
 * 01.2: the scores of one head.
 */
#include <math.h>

/* Q [Nq][d], K [Nk][d], S [Nq][Nk]: S = Q K^T / sqrt(d) */
void scores(const float *Q, const float *K, float *S, int Nq, int Nk, int d)
{
    /* YOUR CODE: at most 10 lines */
    for (int i = 0; i < Nq; i++)
        for (int j = 0; j < Nk; j++) {
            float sum = 0.0f;
            for (int x = 0; x < d; x++)
                sum += Q[i * d + x] * K[j * d + x];
            S[i * Nk + j] = sum / sqrtf((float)d);
        }
    /* END OF YOUR CODE */
}
