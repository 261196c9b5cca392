/* SPDX-License-Identifier: MIT
 *
 * 04.1a: dV = P^T dO key by key, with P made again from Q, K and lse.
 */
#include <math.h>

/* Q, K, dO, dV [N][d], lse [N]. 0: done. */
int backward_dv_variant(const float *Q, const float *K, const float *lse, const float *dO,
                        float *dV, int N, int d, int causal)
{
    for (int j = 0; j < N; j++) {
        float *dV_j = dV + j * d; /* finished before the next key begins */
        for (int x = 0; x < d; x++)
            dV_j[x] = 0.0f;
        /* YOUR CODE: 10 lines are enough */
        /* END OF YOUR CODE */
    }
    return 0;
}
