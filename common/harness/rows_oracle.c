/* SPDX-License-Identifier: MIT
 *
 * rows_oracle.c: float64 softmax of rows, and the verdict on a float32 one. See rows_oracle.h.
 *
 * A row is cut into pieces that threads take, because a matrix may be a single row of 2^28 columns.
 */
#include "harness/rows_oracle.h"

#include <math.h>

#define PIECE_COLS (1 << 16)
#define ROUNDING   (4.0 * 0x1p-24) /* c u */
#define ETA        0x1p-126

void rows_fill(float *x, int64_t rows, int64_t cols, uint64_t seed, FillDist dist, float factor,
               int threads)
{
    int64_t count = rows * cols;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t e = 0; e < count; e++)
        x[e] = factor * fill_value(seed, FILL_Q, (uint64_t)e, dist);
}

void rows_fill_edges(float *x, int64_t cols)
{
    for (int64_t c = 0; c < cols; c++) {
        float n = fill_value(1, FILL_Q, (uint64_t)c, FILL_NORMAL);
        x[0 * cols + c] = -INFINITY;
        x[1 * cols + c] = 1e4f;
        x[2 * cols + c] = -1e4f;
        x[3 * cols + c] = c % 2 ? -1e4f : 1e4f;
        x[4 * cols + c] = c == cols / 2 ? 3.0f : -INFINITY; /* a single key is visible */
        x[5 * cols + c] = c < cols / 2 ? -INFINITY : n;     /* whole blocks of -inf first */
        x[6 * cols + c] = (float)c;                         /* each element is a new maximum */
        x[7 * cols + c] = c == cols - 1 ? 1e4f : n;         /* the maximum comes last */
        x[8 * cols + c] = c == 0 ? 1e4f : -INFINITY;
    }
}

/* What the oracle knows of a row. */
typedef struct RowTruth {
    double m, l, E;
} RowTruth;

static RowTruth row_truth(const float *x, int64_t cols, int threads)
{
    double m = -INFINITY, l = 0.0, weighted = 0.0;
    RowTruth truth;
#pragma omp parallel for num_threads(threads) reduction(max : m) if (threads > 1)
    for (int64_t c = 0; c < cols; c++)
        m = m > (double)x[c] ? m : (double)x[c];
#pragma omp parallel for num_threads(threads) reduction(+ : l, weighted) if (threads > 1)
    for (int64_t c = 0; c < cols; c++) {
        double p = m == -INFINITY ? 0.0 : exp((double)x[c] - m);
        l += p;
        weighted += p > 0.0 ? p * (m - (double)x[c]) : 0.0;
    }
    truth.m = m;
    truth.l = l;
    truth.E = l > 0.0 ? weighted / l : 0.0;
    return truth;
}

static void note(RowsVerdict *v, int64_t row, int64_t col, double expected, double found,
                 double bound)
{
    double error = fabs(found - expected);
    double ratio = isfinite(found) ? error / bound : INFINITY;
    v->nonfinite += !isfinite(found);
    v->off += !(ratio <= 1.0);
    if (col >= 0 && expected >= ETA && isfinite(found) && error / expected > v->worst_error)
        v->worst_error = error / expected;
    if (ratio > v->worst_ratio) {
        v->worst_ratio = ratio;
        v->row = row;
        v->col = col;
        v->expected = expected;
        v->found = found;
        v->bound = bound;
    }
}

static void merge_verdicts(RowsVerdict *into, const RowsVerdict *from)
{
    int64_t off = into->off + from->off, nonfinite = into->nonfinite + from->nonfinite;
    double error = into->worst_error > from->worst_error ? into->worst_error : from->worst_error;
    if (from->worst_ratio > into->worst_ratio)
        *into = *from;
    into->off = off;
    into->nonfinite = nonfinite;
    into->worst_error = error;
}

/* Elements of one row; adds what they sum to and what the sum may be off by. */
static RowsVerdict judge_elements(const float *x, const float *y, int64_t row, int64_t cols,
                                  RowTruth t, int threads, double *sum, double *slack)
{
    RowsVerdict all = {0};
    double total = 0.0, bounds = 0.0;
    int64_t pieces = (cols + PIECE_COLS - 1) / PIECE_COLS;
#pragma omp parallel for num_threads(threads) reduction(+ : total, bounds) if (threads > 1)
    for (int64_t piece = 0; piece < pieces; piece++) {
        RowsVerdict mine = {0};
        int64_t last = (piece + 1) * PIECE_COLS < cols ? (piece + 1) * PIECE_COLS : cols;
        for (int64_t c = piece * PIECE_COLS; c < last; c++) {
            double ref = t.l > 0.0 ? exp((double)x[c] - t.m) / t.l : 0.0;
            double growth = ref > 0.0 ? t.m - (double)x[c] + t.E + sqrt((double)cols) + 8.0 : 0.0;
            double bound = ROUNDING * growth * ref + ETA;
            note(&mine, row, c, ref, (double)y[c], bound);
            total += (double)y[c];
            bounds += bound;
        }
#pragma omp critical
        merge_verdicts(&all, &mine);
    }
    *sum = total;
    *slack = bounds;
    return all;
}

static RowsVerdict judge_row(const float *x, const float *y, float lse, int64_t row, int64_t cols,
                             int threads)
{
    RowTruth t = row_truth(x, cols, threads);
    double sum, slack;
    RowsVerdict v = judge_elements(x, y, row, cols, t, threads, &sum, &slack);
    if (t.l > 0.0) {
        double expected = t.m + log(t.l);
        note(&v, row, -1, expected, (double)lse,
             ROUNDING * (fabs(expected) + t.E + sqrt((double)cols) + 8.0));
    } else if (lse != -INFINITY) { /* no visible score: -inf exactly; NaN lands here too */
        v.off++;
        v.worst_ratio = INFINITY;
        v.row = row;
        v.col = -1;
        v.expected = -INFINITY;
        v.found = (double)lse;
    }
    note(&v, row, -2, t.l > 0.0 ? 1.0 : 0.0, sum, slack);
    return v;
}

RowsVerdict rows_judge(const float *x, const float *y, const float *lse, int64_t rows, int64_t cols,
                       int threads)
{
    RowsVerdict all = {0};
    int outer = rows >= threads ? threads : 1;
    int inner = rows >= threads ? 1 : threads;
#pragma omp parallel for num_threads(outer) schedule(static) if (outer > 1)
    for (int64_t row = 0; row < rows; row++) {
        RowsVerdict mine = judge_row(x + row * cols, y + row * cols, lse[row], row, cols, inner);
#pragma omp critical(all_rows)
        merge_verdicts(&all, &mine);
    }
    return all;
}

void rows_explain(const RowsVerdict *v, const char *label, FILE *to)
{
    const char *what = v->col == -1 ? "lse" : v->col == -2 ? "sum of the row" : "element";
    fprintf(to, "%s: %lld values outside their bound, %lld not finite; worst: %s of row %lld",
            label, (long long)v->off, (long long)v->nonfinite, what, (long long)v->row);
    if (v->col >= 0)
        fprintf(to, ", column %lld", (long long)v->col);
    fprintf(to, ": expected %.9g, found %.9g, allowed error %.3g\n", v->expected, v->found,
            v->bound);
}
