/* SPDX-License-Identifier: MIT
 *
 * rows_oracle.h: judges a softmax of rows x cols, every element, against float64.
 *
 * Bound for each element, from rounding analysis (u = 2^-24, ref = the exact value):
 *
 *     |y - ref| <= c u (|x - m| + E + sqrt(n) + 8) ref + eta        c = 4, eta = 2^-126
 *
 * - |x - m|: the subtraction is rounded, to u |x - m| at most; exp turns that absolute error of its
 *   argument into a relative one of its value. The same for the m of a warp or block on the way.
 * - E = sum_c ref_c |x_c - m|: the same error, averaged over the terms of l.
 * - sqrt(n): rounding errors of n additions in l, which add up like a random walk.
 * - 8: exp itself, the division, the multiplications. eta: results below the normal range.
 * lse: c u (|lse| + E + sqrt(n) + 8). The sum of a row: 1 to within the sum of the bounds, or 0.
 *
 * Interface:
 * - rows_fill: random scores from the suite's fill. rows_fill_edges: the awkward rows.
 * - rows_judge: compares, counts, and remembers the worst element.
 * - rows_explain: prints it.
 */
#ifndef ROWS_ORACLE_H
#define ROWS_ORACLE_H

#include <stdint.h>
#include <stdio.h>

#include "harness/io/fill.h"

#define EDGE_ROWS 9

typedef struct RowsVerdict {
    int64_t off;        /* elements, lse values and row sums outside their bound, or not finite */
    int64_t nonfinite;  /* found non-finite where a finite value was expected */
    double worst_ratio; /* largest error / bound */
    double worst_error; /* largest relative error of an element >= 2^-126 */
    int64_t row, col;   /* where worst_ratio is; col = -1: lse, -2: sum of the row */
    double expected, found, bound;
} RowsVerdict;

void rows_fill(float *x, int64_t rows, int64_t cols, uint64_t seed, FillDist dist, float factor,
               int threads);
/* x [EDGE_ROWS][cols]: all -inf, +1e4, -1e4, alternating +-1e4, one finite score, and so on. */
void rows_fill_edges(float *x, int64_t cols);
/* x, y [rows][cols], lse [rows] */
RowsVerdict rows_judge(const float *x, const float *y, const float *lse, int64_t rows, int64_t cols,
                       int threads);
void rows_explain(const RowsVerdict *v, const char *label, FILE *to);

#endif
