/* SPDX-License-Identifier: MIT
 *
 * softmax_rows.h: softmax of each row of a matrix.
 *
 *     P[r][c] = exp(S[r][c] - lse[r])        lse[r] = ln sum_c exp(S[r][c])
 *
 * Scores can be large (exp(300) is no float), or -inf, which stands for a masked place and gives
 * P = 0. A row in which every score is -inf has P = 0 everywhere and lse = -inf: no NaN comes out.
 *
 * Interface:
 * - softmax_rows_variant.
 */
#ifndef COURSE_SOFTMAX_ROWS_H
#define COURSE_SOFTMAX_ROWS_H

#ifdef __cplusplus
extern "C" {
#endif

/* S    [rows][cols]  scores, row after row
 * P    [rows][cols]  result: every row adds up to 1, or to 0 if the whole row is masked
 * lse  [rows]        result: natural logarithm of each row's sum of exp(S)
 * Returns 0 when it is done. */
int softmax_rows_variant(const float *S, float *P, float *lse, int rows, int cols);

#ifdef __cplusplus
}
#endif
#endif
