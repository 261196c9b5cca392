/* SPDX-License-Identifier: MIT
 *
 * 01.2a: the softmax of one column of scores.
 */
#include <math.h>

/* n scores and n probabilities, each ld numbers behind the one before: S[j * ld], P[j * ld].
 * Returns lse, the natural logarithm of the sum of exp(S). */
float softmax_column(const float *S, float *P, int n, int ld)
{
    float m = -INFINITY, l = 0.0f;
    /* YOUR CODE: 12 lines are enough */
    /* END OF YOUR CODE */
    return m + logf(l);
}
