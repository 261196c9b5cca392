/* SPDX-License-Identifier: MIT
 *
 * v0_three_pass: softmax as the textbook writes it, one pass for each of its three needs.
 *
 *     pass 1   m = max_c x_c              reads x once
 *     pass 2   l = sum_c exp(x_c - m)     reads x again
 *     pass 3   y_c = exp(x_c - m) / l     reads x a third time, writes y
 *
 * Four accesses for each element: on a row that does not fit in the cache, softmax costs four trips
 * to memory. The later variants save trips, not sums. (Here, on one thread of a CPU, the
 * exponentials cost more than the trips. On a GPU it is the other way round.)
 *
 * Why subtract m at all? exp(89) is already infinite in float32. exp(x_c - m) is at most 1, and the
 * factor exp(-m) cancels between numerator and denominator. common/harness/rows_demo.c
 * (unsafe_no_max) shows what happens without it.
 *
 * Interface: rows x cols; attention with this softmax.
 */
#include <math.h>

#include "problem_rows.h"
#include "units/softmax_state.h"

/* Not inlined: beside calls of expf, which leave no vector register as it was, gcc would keep m in
 * memory, and each step of the loop would wait for the store of the step before it. */
static __attribute__((noinline)) float largest(const float *x, int64_t n)
{
    float m = -INFINITY;
    for (int64_t c = 0; c < n; c++) {
        float s = LOAD(&x[c]);
        m = m > s ? m : s;
    }
    return m;
}

static void softmax(const SoftmaxArgs *args)
{
    int64_t cols = args->cols;
    for (int64_t row = 0; row < args->rows; row++) {
        const float *x = args->x + row * cols; /* [cols] */
        float *y = args->y + row * cols;       /* [cols] */
        SoftmaxState state = softmax_empty();

        state.m = largest(x, cols);

        /* An all -inf row has m = -inf; the shift is then 0 and every exp below is 0. */
        float shift = softmax_shift(state.m);
        for (int64_t c = 0; c < cols; c++)
            state.l += expf(LOAD(&x[c]) - shift);

        /* One division for the row, then multiplications: a division costs as much as an exp. */
        float inverse = softmax_inverse(state);
        for (int64_t c = 0; c < cols; c++)
            STORE(&y[c], expf(LOAD(&x[c]) - shift) * inverse);

        if (args->lse)
            args->lse[row] = softmax_lse(state);
    }
}

RUNG_ROWS(tiled_softmax, v0_three_pass, "maximum, sum, write: one pass each", softmax, NULL, 3, 0);
