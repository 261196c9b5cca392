/* SPDX-License-Identifier: MIT
 *
 * softmax_merge.h: two halves of a row make one.
 *
 * Any set of scores s_1 .. s_n leaves a pair behind: its maximum m, and l, the sum of exp(s_c - m).
 * From the pairs of two sets follows the pair of both sets together, without the scores. Work out
 * the formula: it is the same that lets a kernel compute softmax in tiles.
 *
 *     set             m       l
 *     {1, 3}          3       exp(-2) + 1
 *     {5}             5       1
 *     both            5       what follows from the two lines above
 *     the empty set   -inf    0
 *
 * Mind the empty set: (-inf) - (-inf) is NaN, and no NaN may come out. Scores can be large: 300 is
 * an ordinary score, and exp(300) is no float.
 *
 * Interface:
 * - softmax_merge_variant: n independent merges.
 */
#ifndef COURSE_SOFTMAX_MERGE_H
#define COURSE_SOFTMAX_MERGE_H

#ifdef __cplusplus
extern "C" {
#endif

/* m_a l_a   [n]  pairs of n first sets    (m = -inf, l = 0: an empty set)
 * m_b l_b   [n]  pairs of n second sets
 * m l       [n]  result: pair k is that of first set k and second set k together
 * Returns 0 when it is done. */
int softmax_merge_variant(const float *m_a, const float *l_a, const float *m_b, const float *l_b,
                          float *m, float *l, int n);

#ifdef __cplusplus
}
#endif
#endif
