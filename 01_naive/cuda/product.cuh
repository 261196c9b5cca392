/* SPDX-License-Identifier: MIT
 *
 * product.cuh: matrix products over all heads by cuBLAS, used by v1_cublas and by the building
 * blocks.
 *
 * Interface:
 * - Matrices: one row-major matrix for each (batch, head), in a tensor's own memory or in ours.
 * - matrices_of_tensor / matrices_free: a tensor as cuBLAS can read it, copied only if it must be.
 * - matrices_of_gradient: dO, always a copy, in which rows without keys are zeros.
 * - matrices_new_f32, matrices_store: float32 results, and their way into a strided tensor.
 * - multiply_heads: C = alpha A' B' for every query head, or summed over the heads of a group.
 */
#ifndef NAIVE_PRODUCT_CUH
#define NAIVE_PRODUCT_CUH

#include "naive.h"

/* [B][heads] row-major matrices; ld and strides count elements. */
struct Matrices {
    void *data;
    AttnDtype dtype;
    int64_t heads; /* H or Hkv */
    int64_t ld, stride_b, stride_h;
    void *owned_dev; /* workspace that matrices_free releases, NULL = somebody else's memory */
};

AttnStatus matrices_of_tensor(const AttnArgs *args, const Tensor *t, Matrices *out);
/* 0 * NaN is NaN: what padding rows hold must not meet their P = 0 in a product. */
AttnStatus matrices_of_gradient(const AttnArgs *args, Matrices *out);
/* [B][heads][N][d] float32, contents undefined */
AttnStatus matrices_new_f32(const AttnArgs *args, int64_t heads, int64_t N, Matrices *out);
/* Rounds [B][heads][N][d] float32 into t. */
AttnStatus matrices_store(const AttnArgs *args, const Matrices *from, const Tensor *t);
void matrices_free(Matrices *m);

/* A square of scores as a factor: X_dev [B][H][Nq][Nk] float32, or rows of the same 4*Nk bytes
 * whose first half holds 16-bit values. */
Matrices matrices_of_scores(const AttnArgs *args, float *X_dev, AttnDtype dtype);

/* C [m][n] = alpha A' B', A' [m][k], B' [k][n] (' = transposed where the flag says so), for every
 * query head; operands with Hkv heads are read by the whole group. When C has Hkv heads (dK, dV),
 * the products of a group are added up in the order of its heads. C is float32; A and B have
 * one dtype. */
AttnStatus multiply_heads(const AttnArgs *args, Transpose A_transposed, Transpose B_transposed,
                          int64_t m, int64_t n, int64_t k, float alpha, const Matrices *A,
                          const Matrices *B, const Matrices *C);

#endif
