/* SPDX-License-Identifier: MIT
 *
 * 04.1a: dV = P^T dO, with P made again from Q, K and lse.
 */
#include <math.h>

/* Q, K, dO, dV [N][d], lse [N]. 0: done. */
int backward_dv_variant(const float *Q, const float *K, const float *lse, const float *dO,
                        float *dV, int N, int d, int causal)
{
    for (int e = 0; e < N * d; e++)
        dV[e] = 0.0f;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < (causal ? i + 1 : N); j++) {
            /* YOUR CODE: 8 lines are enough */
            /* END OF YOUR CODE */
        }
    return 0;
}
