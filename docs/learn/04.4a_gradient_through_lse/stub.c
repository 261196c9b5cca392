/* SPDX-License-Identifier: MIT
 *
 * 04.4a: the gradient of one row, of whose lse the loss takes a share, too.
 */
#include <math.h>

/* s [n]: scores of one row, n >= 1. V [n][d], dO [d], dlse. dS [n]. */
void score_gradient(const float *s, const float *V, const float *dO, float dlse, float *dS, int n,
                    int d)
{
    float m = s[0], l = 0.0f;
    for (int j = 1; j < n; j++)
        m = s[j] > m ? s[j] : m;
    for (int j = 0; j < n; j++)
        l += expf(s[j] - m);
    /* YOUR CODE: 14 lines are enough */
    /* END OF YOUR CODE */
}
