/* SPDX-License-Identifier: MIT
 *
 * 03.4b: sums that do not wait for each other.
 */

/* q [d], K [N][d], s [N]: the dot product of q with each row of K, d >= 1. */
void query_scores(const float *q, const float *K, float *s, int N, int d)
{
    for (int j = 0; j < N; j++) {
        const float *K_j = K + j * d;
        /* YOUR CODE: 12 lines are enough */
        float sum = 0.0f;
        for (int x = 0; x < d; x++)
            sum += q[x] * K_j[x];
        s[j] = sum;
        /* END OF YOUR CODE */
    }
}
