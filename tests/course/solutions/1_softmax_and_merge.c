/* SPDX-License-Identifier: MIT
 *
 * 1_softmax_and_merge.c: a solution of assignment 1, for the tests of the course kit. It is part of
 * no handout.
 *
 * One pass over a row keeps (m, l). A score above m rescales l by exp(m_old - m_new), because l has
 * to be a sum of exp(s - m) for one and the same m. The merge does the same for two pairs.
 *
 * Interface:
 * - softmax_rows_variant, softmax_merge_variant: docs/course/include.
 */
#include <math.h>

#include "softmax_merge.h"
#include "softmax_rows.h"

/* exp(m - m_new), where the pair of an empty set has m = -inf and counts for nothing. */
static float rescale(float m, float m_new)
{
    return m == -INFINITY ? 0.0f : expf(m - m_new);
}

int softmax_merge_variant(const float *m_a, const float *l_a, const float *m_b, const float *l_b,
                          float *m, float *l, int n)
{
    for (int k = 0; k < n; k++) {
        float larger = fmaxf(m_a[k], m_b[k]);
        m[k] = larger;
        l[k] = l_a[k] * rescale(m_a[k], larger) + l_b[k] * rescale(m_b[k], larger);
    }
    return 0;
}

int softmax_rows_variant(const float *S, float *P, float *lse, int rows, int cols)
{
    for (int r = 0; r < rows; r++) {
        const float *s = S + (long)r * cols;
        float *p = P + (long)r * cols;
        float m_i = -INFINITY, l_i = 0.0f;
        for (int c = 0; c < cols; c++) {
            float m_new = fmaxf(m_i, s[c]);
            if (m_new == -INFINITY)
                continue;
            l_i = l_i * rescale(m_i, m_new) + expf(s[c] - m_new);
            m_i = m_new;
        }
        lse[r] = l_i > 0.0f ? m_i + logf(l_i) : -INFINITY;
        for (int c = 0; c < cols; c++)
            p[c] = l_i > 0.0f ? expf(s[c] - m_i) / l_i : 0.0f;
    }
    return 0;
}
