/* SPDX-License-Identifier: MIT
 *
 * 02.2b: two states of a row become one.
 */
#include <math.h>

float exp_counted(float x); /* expf; the examiner counts its calls */
#define expf exp_counted    /* these count as well */
#define exp  exp_counted

/* For each of n rows: the state (m_a, l_a) of one part and (m_b, l_b) of another one; m and l: of
 * both. The state of no scores is (-inf, 0). 0: done. */
int softmax_merge_variant(const float *m_a, const float *l_a, const float *m_b, const float *l_b,
                          float *m, float *l, int n)
{
    for (int i = 0; i < n; i++) {
        /* YOUR CODE: 8 lines are enough */
        /* END OF YOUR CODE */
    }
    return 0;
}
