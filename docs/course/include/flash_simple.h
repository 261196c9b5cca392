/* SPDX-License-Identifier: MIT
 *
 * flash_simple.h: attention of one head, for a first week.
 *
 *     s_ij  = (1 / sqrt(d)) * sum_x Q[i][x] K[j][x]
 *     lse_i = ln sum_j exp(s_ij)                        natural logarithm
 *     O_i   = sum_j exp(s_ij - lse_i) V_j
 *
 * With causal = 1 query i sees keys 0 .. i, otherwise all N of them.
 *
 * N is any number from 1 on, not only a multiple of your tile. d is 1 to 256. A flash kernel never
 * stores the N x N matrix of scores: the memory that it takes grows with N, not with N * N. Some
 * suites measure that (--require memory=N). They run N and 2N tokens. From N to 2N the memory
 * beside the arrays may grow by 2 N^2 bytes, half a matrix of floats. With 2N tokens it may be
 * 4 MiB, 0.25 MiB for each thread, and twice the bytes of the arrays (of these at most (2N)^2
 * bytes).
 *
 * Interface:
 * - flash_simple_variant.
 */
#ifndef COURSE_FLASH_SIMPLE_H
#define COURSE_FLASH_SIMPLE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Q K V  [N][d]  inputs, row after row: element x of token n is at n * d + x
 * O      [N][d]  result
 * lse    [N]     result
 * Returns 0 when it is done. */
int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal);

#ifdef __cplusplus
}
#endif
#endif
