/* SPDX-License-Identifier: MIT
 *
 * cublas_heads.cuh: one matrix product for each query head, by cuBLAS.
 *
 * cuBLAS is written for column-major matrices. A row-major C = A B is, read column by column, the
 * product C^T = B^T A^T: the same memory, the operands swapped, the flags unchanged.
 *
 * One call multiplies a batch of matrices whose starts are a fixed stride apart. Heads of a batch
 * are; batches and heads together need two strides, and with grouped queries several query heads
 * read one kv head. So we loop over b and over one of (kv head, member of the group), and let the
 * call run over the other one, whichever is longer.
 *
 * f32 stays f32: cuBLAS uses TF32 (10 bits of mantissa) only when asked to, and is not asked. f16
 * and bf16 go to the tensor cores, which multiply exactly and add in float32.
 *
 * Interface:
 * - Matrices: one row-major matrix for each (batch, head). matrices_of_tensor, matrices_of_scores.
 * - multiply_heads.
 */
#ifndef UNITS_CUBLAS_HEADS_CUH
#define UNITS_CUBLAS_HEADS_CUH

#include <cuda_runtime.h>
#include <library_types.h>

#include "units/product.h"

/* ld and strides count elements. */
struct Matrices {
    const void *data;
    cudaDataType_t type; /* CUDA_R_32F, CUDA_R_16F or CUDA_R_16BF */
    int heads;           /* H or Hkv */
    int64_t ld, stride_b, stride_h;
};

/* A contiguous tensor [B][N][heads][d], as it lies: row n of a head is heads * d elements behind
 * row n - 1, which is all that a leading dimension says. */
static inline Matrices matrices_of_tensor(const void *X, cudaDataType_t type, int N, int heads,
                                          int d)
{
    const int64_t row = (int64_t)heads * d;
    return {X, type, heads, row, N * row, d};
}

/* A square of scores [B][H][Nq][Nk] as a factor: float32, or rows of the same 4 * Nk bytes whose
 * first half holds 16-bit values. */
static inline Matrices matrices_of_scores(const void *X, cudaDataType_t type, int H, int Nq, int Nk)
{
    const int64_t ld = type == CUDA_R_32F ? Nk : 2 * (int64_t)Nk;
    return {X, type, H, ld, H * Nq * ld, Nq * ld};
}

/* C [m][n] = alpha A' B', A' [m][k], B' [k][n] (' = transposed where the flag says so), for each of
 * B batches and H query heads; operands with Hkv heads are read by the whole group. When C has Hkv
 * heads (dK, dV), the products of a group are added up in the order of its heads. C is float32; A
 * and B have one type. 0, or -1 with cuBLAS's own words on stderr. */
int multiply_heads(cudaStream_t stream, int batches, int H, int Hkv, Transpose A_transposed,
                   Transpose B_transposed, int m, int n, int k, float alpha, const Matrices *A,
                   const Matrices *B, const Matrices *C);

#endif
