/* SPDX-License-Identifier: MIT
 *
 * v1_online: maximum and sum in one pass (Milakov and Gimelshein, arXiv 1805.02867, algorithm 3).
 *
 * The sum needs the maximum, so v0 reads the row twice before it can write. But a sum that was
 * taken with a too small maximum is not lost: multiply it by
 *
 *     alpha = exp(m_old - m_new)
 *
 * and every term exp(x - m_old) in it becomes exp(x - m_new). So keep both while reading:
 *
 *     m_new = max(m_i, x_c)
 *     l_i   = l_i * alpha + exp(x_c - m_new)
 *
 * Two reads and one write instead of three and one. The price is one exp more for each element;
 * later variants pay it once for each block instead.
 *
 * Interface: RUNG_ROWS at the end (problem_rows.h: a softmax of [rows][cols]; the product around it
 * makes attention of it).
 */
#include <math.h>

#include "problem_rows.h"
#include "units/softmax_state.h"

static void softmax(const SoftmaxArgs *args)
{
    int64_t cols = args->cols;
    for (int64_t row = 0; row < args->rows; row++) {
        const float *x = args->x + row * cols; /* [cols] */
        float *y = args->y + row * cols;       /* [cols] */
        SoftmaxState state = softmax_empty();

        /* After column c, state describes x[0..c] exactly as if the row ended there. */
        for (int64_t c = 0; c < cols; c++)
            state = softmax_push(state, LOAD(&x[c]));

        float shift = softmax_shift(state.m);
        float inverse = softmax_inverse(state);
        for (int64_t c = 0; c < cols; c++)
            STORE(&y[c], expf(LOAD(&x[c]) - shift) * inverse);

        if (args->lse)
            args->lse[row] = softmax_lse(state);
    }
}

RUNG_ROWS(tiled_softmax, v1_online, "maximum and sum in one pass, corrected as the maximum grows",
          softmax, NULL, 2, 0);
