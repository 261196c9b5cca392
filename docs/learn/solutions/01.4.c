/* SPDX-License-Identifier: MIT
 *
 * 01.4: the output of one head.
 */

/* P [Nq][Nk], V [Nk][d], O [Nq][d]: O = P V. What is in O before the call is not 0. */
void weighted_mean(const float *P, const float *V, float *O, int Nq, int Nk, int d)
{
    /* YOUR CODE: at most 10 lines */
    for (int i = 0; i < Nq; i++) {
        for (int x = 0; x < d; x++)
            O[i * d + x] = 0.0f;
        for (int j = 0; j < Nk; j++)
            for (int x = 0; x < d; x++)
                O[i * d + x] += P[i * Nk + j] * V[j * d + x];
    }
    /* END OF YOUR CODE */
}
