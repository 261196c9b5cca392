/* SPDX-License-Identifier: MIT
 *
 * product.c: matrix products on the CPU. See product.h.
 *
 * The plain version, without OpenBLAS, is what a library does in its first step: take a tile of B'
 * that fits the first-level cache, lay it out so that the innermost loop walks memory in order, and
 * use each of its elements for every row of A'. What it leaves out (tiles in registers, vector
 * instructions written by hand) is about a factor of ten.
 *
 * Interface: matmul.
 */
#include "units/product.h"

#include "attn_config.h"

#ifdef HAVE_OPENBLAS
#include <cblas.h>

void matmul(Transpose A_transposed, Transpose B_transposed, int64_t m, int64_t n, int64_t k,
            float alpha, const float *A, int64_t ld_A, const float *B, int64_t ld_B, float beta,
            float *C, int64_t ld_C)
{
    cblas_sgemm(CblasRowMajor, A_transposed ? CblasTrans : CblasNoTrans,
                B_transposed ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha,
                A, (blasint)ld_A, B, (blasint)ld_B, beta, C, (blasint)ld_C);
}

#else

enum { TILE_K = 64, TILE_N = 64 }; /* 64 x 64 floats = 16 KiB: half of a small L1 cache */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void matmul(Transpose A_transposed, Transpose B_transposed, int64_t m, int64_t n, int64_t k,
            float alpha, const float *A, int64_t ld_A, const float *B, int64_t ld_B, float beta,
            float *C, int64_t ld_C)
{
    float tile[TILE_K][TILE_N]; /* a piece of B', row-major whatever B is */
    const int64_t A_row = A_transposed ? 1 : ld_A, A_col = A_transposed ? ld_A : 1;
    const int64_t B_row = B_transposed ? 1 : ld_B, B_col = B_transposed ? ld_B : 1;
    int64_t i, j, x, j0, x0;
    for (i = 0; i < m; i++)
        for (j = 0; j < n; j++)
            C[i * ld_C + j] = beta == 0.0f ? 0.0f : beta * C[i * ld_C + j];
    for (j0 = 0; j0 < n; j0 += TILE_N)
        for (x0 = 0; x0 < k; x0 += TILE_K) {
            const int64_t cols = smaller(TILE_N, n - j0), depth = smaller(TILE_K, k - x0);
            for (x = 0; x < depth; x++)
                for (j = 0; j < cols; j++)
                    tile[x][j] = B[(x0 + x) * B_row + (j0 + j) * B_col];
            for (i = 0; i < m; i++)
                for (x = 0; x < depth; x++) {
                    const float a = alpha * A[i * A_row + (x0 + x) * A_col];
                    for (j = 0; j < cols; j++)
                        C[i * ld_C + j0 + j] += a * tile[x][j];
                }
        }
}

#endif
