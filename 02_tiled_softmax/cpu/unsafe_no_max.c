/* SPDX-License-Identifier: MIT
 *
 * unsafe_no_max: a wrong softmax, kept because everybody writes it once.
 *
 *     y_c = exp(x_c) / sum_c exp(x_c)
 *
 * In real numbers this is the same function as v0's, with one pass less. In float32, exp(x)
 * overflows to infinity above x = 88.72, and inf / inf is NaN; below x = -103.97 it is exactly 0,
 * and a row whose scores are all that small divides 0 by 0. Attention scores of trained models
 * reach hundreds. `tiled_softmax --rows R --cols C` prints where this code breaks.
 *
 * It is not a variant: it stands in no table and no test accepts its output.
 *
 * Interface:
 * - softmax_unsafe_no_max: rows x cols, one thread.
 */
#include <math.h>

#include "tiled_softmax.h"

AttnStatus softmax_unsafe_no_max(const SoftmaxArgs *args)
{
    int64_t cols = args->cols;
    for (int64_t row = 0; row < args->rows; row++) {
        const float *x = args->x + row * cols; /* [cols] */
        float *y = args->y + row * cols;       /* [cols] */
        float sum = 0.0f;
        for (int64_t c = 0; c < cols; c++)
            sum += expf(x[c]);
        for (int64_t c = 0; c < cols; c++)
            y[c] = expf(x[c]) / sum;
        if (args->lse)
            args->lse[row] = logf(sum);
    }
    return ATTN_OK;
}
