/* SPDX-License-Identifier: MIT
 *
 * backward_steps.h: the backward pass of attention in four steps, for one head. Each is judged and
 * credited alone: a wrong delta costs the points of delta only, since dK and dQ get a correct one.
 *
 *     s_ij     = (1 / sqrt(d)) * sum_x Q[i][x] K[j][x]
 *     P_ij     = exp(s_ij - lse_i)                    the forward pass kept lse, not P
 *     delta_i  = sum_x dO[i][x] O[i][x]
 *     dV_j     = sum_i P_ij dO_i
 *     dP_ij    = sum_x dO[i][x] V[j][x]
 *     dS_ij    = P_ij (dP_ij - delta_i)
 *     dK_j     = (1 / sqrt(d)) * sum_i dS_ij Q_i
 *     dQ_i     = (1 / sqrt(d)) * sum_j dS_ij K_j
 *
 * With causal = 1 query i sees keys 0 .. i, otherwise all N. Sums run over the pairs (i, j) in
 * which query i sees key j. Nobody needs an N x N matrix.
 *
 * Interface (a suite asks for the parts by --part delta, dV, dK and dQ):
 * - backward_delta_variant, backward_dv_variant, backward_dk_variant, backward_dq_variant.
 */
#ifndef COURSE_BACKWARD_STEPS_H
#define COURSE_BACKWARD_STEPS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Q K V O dO  [N][d]  row after row; dO is the gradient of the loss with respect to O
 * lse delta   [N]
 * dQ dK dV    [N][d]  results
 * Every function returns 0 when it is done. */
int backward_delta_variant(const float *O, const float *dO, float *delta, int N, int d);
int backward_dv_variant(const float *Q, const float *K, const float *lse, const float *dO,
                        float *dV, int N, int d, int causal);
int backward_dk_variant(const float *Q, const float *K, const float *V, const float *lse,
                        const float *dO, const float *delta, float *dK, int N, int d, int causal);
int backward_dq_variant(const float *Q, const float *K, const float *V, const float *lse,
                        const float *dO, const float *delta, float *dQ, int N, int d, int causal);

#ifdef __cplusplus
}
#endif
#endif
