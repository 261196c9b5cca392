/* SPDX-License-Identifier: MIT
 *
 * exp_rows.h: the inner loops of every softmax on a CPU, over one row of scores: its maximum, and
 * the exp of each score with their sum.
 *
 * They work on 4 to 16 floats at a time: compiled for portable C, AVX2 and AVX-512 (exp_isa.c), and
 * chosen once at run time (exp.c). The exp itself is a polynomial (exp.h).
 *
 * Interface: row_max, softmax_exp_row.
 */
#ifndef UNITS_EXP_ROWS_H
#define UNITS_EXP_ROWS_H

#include <stdint.h>

/* -inf for n = 0. NaN if any element is: a plain maximum would swallow it. */
float row_max(const float *s, int64_t n);
/* s [n] -> p [n] (p may be s): p[c] = exp(s[c] - max); returns their sum. max is row_max(s, n), or
 * any larger finite number. max = -inf (no key is visible) gives zeros and the sum 0. A NaN in s or
 * max reaches the sum. */
float softmax_exp_row(const float *s, float *p, int64_t n, float max);

#endif
