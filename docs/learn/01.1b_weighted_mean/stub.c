/* SPDX-License-Identifier: MIT
 *
 * 01.1b: the output of one head.
 */

/* P [Nq][Nk], V [Nk][d], O [Nq][d]: O = P V. What is in O before the call is not 0. */
void weighted_mean(const float *P, const float *V, float *O, int Nq, int Nk, int d)
{
    /* YOUR CODE: 10 lines are enough */
    /* END OF YOUR CODE */
}
