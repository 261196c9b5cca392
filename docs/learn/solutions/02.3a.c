/* SPDX-License-Identifier: MIT
 *
 * 02.3a: the softmax of each row, read twice.
 */
#include <math.h>

static void softmax_row(const float *S, float *P, float *lse, int cols)
{
    float m = -INFINITY, l = 0.0f;
    for (int c = 0; c < cols; c++) {
        const float m_new = S[c] > m ? S[c] : m;
        if (m_new == -INFINITY)
            continue;
        l = l * expf(m - m_new) + expf(S[c] - m_new);
        m = m_new;
    }
    const int empty = m == -INFINITY;
    for (int c = 0; c < cols; c++)
        P[c] = empty ? 0.0f : expf(S[c] - m) / l;
    *lse = m + logf(l);
}

int softmax_rows_variant(const float *S, float *P, float *lse, int rows, int cols)
{
    for (int r = 0; r < rows; r++)
        softmax_row(S + (long)r * cols, P + (long)r * cols, lse + r, cols);
    return 0;
}
