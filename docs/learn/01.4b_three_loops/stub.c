/* SPDX-License-Identifier: MIT
 *
 * 01.4b: the order of three loops.
 */

/* P [Nq][Nk], dO [Nq][d], dV [Nk][d]: dV = P^T dO. What is in dV before the call is not 0. */
void value_gradient(const float *P, const float *dO, float *dV, int Nq, int Nk, int d)
{
    /* YOUR CODE: 10 lines are enough */
    for (int j = 0; j < Nk; j++)
        for (int x = 0; x < d; x++) {
            float sum = 0.0f;
            for (int i = 0; i < Nq; i++)
                sum += P[i * Nk + j] * dO[i * d + x];
            dV[j * d + x] = sum;
        }
    /* END OF YOUR CODE */
}
