/* SPDX-License-Identifier: MIT
 *
 * oracle_matrix.c: y = w^T M in float64, and the sums of |w||M| that rounding bounds need.
 *
 * Interface: oracle_core.h.
 */
#include <math.h>
#include <string.h>

#include "oracle/oracle_core.h"
#include "tensor.h"

/* One function body compiled for several instruction sets, chosen at program start. By what a
 * processor can, not by its name: "arch=haswell" is that one processor, and no later one. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) &&                  \
    !defined(__clang__)
#define ORACLE_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define ORACLE_CLONES
#endif

#define TILE 256 /* columns whose sums stay in the first-level cache */

/* Four rows at a time: sums are loaded and stored once for four products. The loop has no calls and
 * no branches, so it becomes SIMD code for each of ORACLE_CLONES. b may be NULL. */
static inline __attribute__((always_inline)) void
add_four(const float *const r[4], const double w[4], const double wa[4], const double wb[4],
         int64_t n, double *restrict y, double *restrict a, double *restrict b)
{
    const float *restrict r0 = r[0], *restrict r1 = r[1], *restrict r2 = r[2], *restrict r3 = r[3];
    const double w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    const double a0 = wa[0], a1 = wa[1], a2 = wa[2], a3 = wa[3];
    const double b0 = wb[0], b1 = wb[1], b2 = wb[2], b3 = wb[3];
    if (b) {
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const double x0 = r0[c], x1 = r1[c], x2 = r2[c], x3 = r3[c];
            y[c] += w0 * x0 + w1 * x1 + (w2 * x2 + w3 * x3);
            a[c] += a0 * fabs(x0) + a1 * fabs(x1) + (a2 * fabs(x2) + a3 * fabs(x3));
            b[c] += b0 * fabs(x0) + b1 * fabs(x1) + (b2 * fabs(x2) + b3 * fabs(x3));
        }
    } else {
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const double x0 = r0[c], x1 = r1[c], x2 = r2[c], x3 = r3[c];
            y[c] += w0 * x0 + w1 * x1 + (w2 * x2 + w3 * x3);
            a[c] += a0 * fabs(x0) + a1 * fabs(x1) + (a2 * fabs(x2) + a3 * fabs(x3));
        }
    }
}

/* value[c] += sum_t w[t] M[row t][c],  size_a[c] += sum_t wa[t] |M[row t][c]|, size_b likewise
 * (may be NULL), for columns first .. last-1. Row t is index[t], or t without an index. */
ORACLE_CLONES void oracle_weigh_rows(const OracleMatrix *M, const int64_t *index, int64_t count,
                                     int64_t first, int64_t last, const double *w, const double *wa,
                                     const double *wb, double *value, double *size_a,
                                     double *size_b)
{
    static const float zeros[TILE];
    for (int64_t c = first; c < last; c += TILE) {
        const int64_t n = last - c < TILE ? last - c : TILE;
        for (int64_t t = 0; t < count; t += 4) {
            const float *r[4];
            double w4[4], wa4[4], wb4[4];
            for (int64_t k = 0; k < 4; k++) {
                const int64_t at = t + k;
                const int past = at >= count; /* zeros: 0 times a row of M may be 0 * inf */
                r[k] = past ? zeros : M->at + (index ? index[at] : at) * M->cols + c;
                w4[k] = past ? 0 : w[at];
                wa4[k] = past ? 0 : wa[at];
                wb4[k] = past || !wb ? 0 : wb[at];
            }
            add_four(r, w4, wa4, wb4, n, value + c, size_a + c, size_b ? size_b + c : NULL);
        }
    }
}

/* dot[c] = sum_x w[x] M[x][c] and size[c] = sum_x |w[x]||M[x][c]| of columns first .. last-1. */
void oracle_dot_columns(const OracleMatrix *M, int64_t first, int64_t last, const double *w,
                        const double *size_w, double *dot, double *size)
{
    memset(dot + first, 0, sizeof *dot * (size_t)(last - first));
    memset(size + first, 0, sizeof *size * (size_t)(last - first));
    oracle_weigh_rows(M, NULL, M->rows, first, last, w, size_w, NULL, dot, size, NULL);
}

/* value [cols] = M[row][*], size = its absolute values */
void oracle_matrix_row(const OracleMatrix *M, int64_t row, double *value, double *size)
{
    for (int64_t c = 0; c < M->cols; c++) {
        value[c] = M->at[row * M->cols + c];
        size[c] = fabs(value[c]);
    }
}

float *oracle_matrix_place(OracleMatrix *M, float *memory, int64_t rows, int64_t cols)
{
    M->at = memory;
    M->rows = rows;
    M->cols = cols;
    return memory + rows * cols;
}

/* Fills M [N][d] and Mt [d][N] from one head of t. */
void oracle_matrix_load(OracleMatrix *M, OracleMatrix *Mt, const Tensor *t, int64_t b, int64_t h)
{
    for (int64_t n = 0; n < M->rows; n++) {
        float *row = M->at + n * M->cols;
        tensor_read_row(t, b, n, h, row);
        for (int64_t x = 0; x < M->cols; x++)
            Mt->at[x * M->rows + n] = row[x];
    }
}
