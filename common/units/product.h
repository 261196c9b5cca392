/* SPDX-License-Identifier: MIT
 *
 * product.h: the product of two float32 matrices, by OpenBLAS or, without it, by plain loops.
 *
 * Attention needs it in three shapes: S = Q K^T, O = P V, and in backward dV = P^T dO. BLAS calls
 * them by a flag for each operand: transposed or not.
 *
 * Interface:
 * - Transpose, matmul. It starts no threads and keeps no state: call it from any number of threads.
 */
#ifndef UNITS_PRODUCT_H
#define UNITS_PRODUCT_H

#include <stdint.h>

typedef enum Transpose { AS_IS = 0, TRANSPOSED = 1 } Transpose;

/* C [m][n] = alpha * A' B' + beta * C, where A' is A [m][k] or the transpose of A [k][m], and B'
 * is B [k][n] or the transpose of B [n][k]. ld_*: floats from one stored row to the next. With
 * beta = 0 the old C is never read. */
void matmul(Transpose A_transposed, Transpose B_transposed, int64_t m, int64_t n, int64_t k,
            float alpha, const float *A, int64_t ld_A, const float *B, int64_t ld_B, float beta,
            float *C, int64_t ld_C);

#endif
