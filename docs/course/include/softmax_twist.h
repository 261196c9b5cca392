/* SPDX-License-Identifier: MIT
 *
 * softmax_twist.h: assignment 1, this year's change of the task. The handout says which of the
 * three is yours.
 *
 *     sliding  out[r][c] = ln of the sum of exp(S[r][k]) over the last `width` columns k up to c
 *              itself; at the beginning of a row there are fewer
 *     mean     out[r][c] = the sum of P_k S[r][k] over the same columns, where P is their softmax
 *     groups   out[r][c] = exp(S[r][c]) divided by the sum of exp(S[r][k]) over all columns k with
 *              label[k] == label[c]; labels are 0 .. width-1, in any order
 *
 * All scores are finite here. They can be large: exp(300) is no float. The time limit allows a few
 * operations for each element of S, but not `width` of them.
 *
 * Interface:
 * - softmax_twist_variant.
 */
#ifndef COURSE_SOFTMAX_TWIST_H
#define COURSE_SOFTMAX_TWIST_H

#ifdef __cplusplus
extern "C" {
#endif

/* S      [rows][cols]  scores, row after row
 * label  [cols]        groups; for the other two they mean nothing
 * out    [rows][cols]  result
 * Returns 0 when it is done. */
int softmax_twist_variant(const float *S, const int *label, float *out, int rows, int cols,
                          int width);

#ifdef __cplusplus
}
#endif
#endif
