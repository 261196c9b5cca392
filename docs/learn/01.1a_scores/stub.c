/* SPDX-License-Identifier: MIT
 *
 * 01.1a: the scores of one head.
 */
#include <math.h>

/* Q [Nq][d], K [Nk][d], S [Nq][Nk]: S = Q K^T / sqrt(d) */
void scores(const float *Q, const float *K, float *S, int Nq, int Nk, int d)
{
    /* YOUR CODE: 10 lines are enough */
    /* END OF YOUR CODE */
}
