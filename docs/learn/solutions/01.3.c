/* SPDX-License-Identifier: MIT
 *
 * 01.3: the softmax of one row of scores.
 */
#include <math.h>

/* S [n] scores, P [n] probabilities; returns lse, the natural logarithm of the sum of exp(S) */
float softmax_row(const float *S, float *P, int n)
{
    float m = -INFINITY, l = 0.0f;
    /* YOUR CODE: at most 12 lines */
    for (int j = 0; j < n; j++)
        m = S[j] > m ? S[j] : m;
    if (m == -INFINITY)
        m = 0.0f; /* nothing visible: any finite number serves */
    for (int j = 0; j < n; j++) {
        P[j] = expf(S[j] - m);
        l += P[j];
    }
    for (int j = 0; j < n && l > 0.0f; j++)
        P[j] /= l;
    /* END OF YOUR CODE */
    return m + logf(l);
}
