/* SPDX-License-Identifier: MIT
 *
 * 04.2b: dK = scale * dS^T Q, one pair at a time, keys transposed.
 */
#include <math.h>

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* Q, V, dO [N][d], K_T, dK_T [d][N], lse, delta [N]. */
void key_gradient(const float *Q, const float *K_T, const float *V, const float *lse,
                  const float *dO, const float *delta, float *dK_T, int N, int d, int causal)
{
    const float scale = 1.0f / sqrtf((float)d);
    for (int e = 0; e < N * d; e++)
        dK_T[e] = 0.0f;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < (causal ? i + 1 : N); j++) {
            /* YOUR CODE: 10 lines are enough */
            /* END OF YOUR CODE */
        }
}
