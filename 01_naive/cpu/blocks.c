/* SPDX-License-Identifier: MIT
 *
 * blocks.c: the pieces that attention is made of, on the CPU, for one head.
 *
 * Tensors arrive in any dtype and with any strides. The arithmetic here does not want to know: a
 * head is copied once into a contiguous float matrix [N][d], which costs N*d element copies beside
 * the N*N*d multiplications that follow.
 *
 * Attention needs a product in three shapes: S = Q K^T, O = P V, and in backward dV = P^T dO. BLAS
 * calls them by a flag for each operand: transposed or not. The plain version, without OpenBLAS, is
 * what a library does in its first step: take a tile of B' that fits the first-level cache, lay it
 * out so that the innermost loop walks memory in order, and use each of its elements for every row
 * of A'. What it leaves out (tiles in registers, vector instructions written by hand) is about a
 * factor of ten.
 *
 * The mask has a file of its own, mask_rows.c.
 *
 * Interface: naive_load_rows, naive_store_rows, naive_clear_empty, naive_scores,
 * naive_weighted_sum, naive_matmul (naive.h).
 */
#include <math.h>

#include "attn_config.h"
#include "naive.h"
#include "tensor.h"

#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif

void naive_load_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                     float *rows)
{
    int64_t r;
    for (r = 0; r < count; r++)
        tensor_read_row(t, b, first + r, h, rows + r * t->shape[3]);
}

void naive_store_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                      const float *rows)
{
    int64_t r;
    for (r = 0; r < count; r++)
        tensor_write_row(t, b, first + r, h, rows + r * t->shape[3]);
}

void naive_clear_empty(const float *lse, int64_t count, int64_t d, float *dO)
{
    int64_t r, x;
    for (r = 0; r < count; r++)
        for (x = 0; lse[r] == -INFINITY && x < d; x++)
            dO[r * d + x] = 0.0f;
}

void naive_scores(const AttnArgs *args, const float *Q_i, int64_t i0, int64_t rows,
                  const float *K_j, int64_t j0, int64_t cols, float *S, int64_t ld_S)
{
    const int64_t d = args->shape.d;
    const float cap = args->softcap;
    int64_t r, c;
    /* S = scale * Q K^T: the scale rides on the product for nothing */
    naive_matmul(NAIVE_NO, NAIVE_YES, rows, cols, d, args->scale, Q_i, d, K_j, d, 0.0f, S, ld_S);
    if (cap > 0.0f)
        for (r = 0; r < rows; r++)
            for (c = 0; c < cols; c++)
                S[r * ld_S + c] = cap * tanhf(S[r * ld_S + c] / cap);
    naive_mask_rows(args, i0, rows, j0, cols, S, ld_S);
}

void naive_weighted_sum(const float *P, int64_t ld_P, int64_t rows, int64_t cols, const float *V_j,
                        int64_t d, float beta, float *O_i)
{
    naive_matmul(NAIVE_NO, NAIVE_NO, rows, d, cols, 1.0f, P, ld_P, V_j, d, beta, O_i, d);
}

/* --- the product -------------------------------------------------------------------------------*/

#ifdef HAVE_OPENBLAS

void naive_matmul(NaiveTranspose A_transposed, NaiveTranspose B_transposed, int64_t m, int64_t n,
                  int64_t k, float alpha, const float *A, int64_t ld_A, const float *B,
                  int64_t ld_B, float beta, float *C, int64_t ld_C)
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

void naive_matmul(NaiveTranspose A_transposed, NaiveTranspose B_transposed, int64_t m, int64_t n,
                  int64_t k, float alpha, const float *A, int64_t ld_A, const float *B,
                  int64_t ld_B, float beta, float *C, int64_t ld_C)
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
