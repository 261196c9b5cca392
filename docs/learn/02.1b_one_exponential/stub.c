/* SPDX-License-Identifier: MIT
 *
 * 02.1b: one exponential for each score.
 */
#include <math.h>

float exp_counted(float x); /* expf; the examiner counts its calls */
#define expf exp_counted    /* these count as well */
#define exp  exp_counted

/* x [n], some of them may be -inf. m: their maximum; l: the sum of exp(x - m). */
void online(const float *x, int n, float *m, float *l)
{
    float m_i = -INFINITY, l_i = 0.0f;
    for (int j = 0; j < n; j++) {
        const float s = x[j];
        /* YOUR CODE: 8 lines are enough */
        /* END OF YOUR CODE */
    }
    *m = m_i;
    *l = l_i;
}
