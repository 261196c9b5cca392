/* SPDX-License-Identifier: MIT
 *
 * naive.h: the contract of stage 01, and the library that stage 02 builds on.
 *
 * Naive attention materialises what the formula names: all scores S [Nq][Nk], then all
 * probabilities P [Nq][Nk], then O = P V. Everything below works on one head at a time, as
 * contiguous float32 matrices in row-major order, or on the GPU on all heads at once.
 *
 * Interface:
 * - naive_v0_loops ... naive_v1_cublas: the variants. Each forward writes O and lse; each
 *   _backward reads O, lse and dO too and writes dQ, dK and dV.
 * - CPU building blocks: naive_load_rows and naive_store_rows (any strides and dtype <-> float),
 *   naive_clear_empty (dO of rows without keys),
 *   naive_scores, naive_mask_rows, naive_sees_nothing, naive_weighted_sum, and naive_matmul under
 *   them.
 * - CUDA building blocks: naive_cuda_scores, naive_cuda_weighted_sum.
 * Variants exist only where their library does: v1_blas needs OpenBLAS, v1_cublas needs cuBLAS.
 */
#ifndef NAIVE_H
#define NAIVE_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A shared object for --variant-so exports `int naive_abi_version = NAIVE_ABI_VERSION;`,
 * `AttnStatus naive_variant(const AttnArgs *)` and, for --backward, `naive_variant_backward`. */
#define NAIVE_ABI_VERSION 2

/* --- variants ----------------------------------------------------------------------------------*/

AttnStatus naive_v0_loops(const AttnArgs *args);
AttnStatus naive_v0_loops_backward(const AttnArgs *args);
AttnStatus naive_v1_blas(const AttnArgs *args);
AttnStatus naive_v1_blas_backward(const AttnArgs *args);

AttnStatus naive_v0_thread_per_score(const AttnArgs *args);
AttnStatus naive_v0_thread_per_score_backward(const AttnArgs *args);
AttnStatus naive_v1_cublas(const AttnArgs *args);
AttnStatus naive_v1_cublas_backward(const AttnArgs *args);

/* --- CPU building blocks -----------------------------------------------------------------------*/
/* They do not start threads and keep no state: call them from any number of threads. */

/* Tokens first .. first+count-1 of head h (of THIS tensor: pass the kv head for K and V) in batch
 * b, converted to float: rows [count][d]. */
void naive_load_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                     float *rows);
/* The way back: rows [count][d], rounded to the dtype of t. */
void naive_store_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                      const float *rows);

/* dO rows [count][d] that see no key (lse [count] = -inf) become zeros. Such rows are often padding
 * with anything in it. Their P is 0, but 0 * NaN is NaN, and dK and dV are sums over all rows. */
void naive_clear_empty(const float *lse, int64_t count, int64_t d, float *dO);

/* The kv head that query head h reads. */
static inline ATTN_HD int64_t naive_kv_head(const AttnShape *shape, int64_t h)
{
    return h / (shape->H / shape->Hkv);
}

/* A block of scores, ready for the softmax: scaled, capped, -inf where query i0+r may not see key
 * j0+c (local indexes of the whole problem).
 *   Q_i [rows][d]  rows i0 .. of one head        K_j [cols][d]  keys j0 .. of its kv head
 *   S   [rows][ld_S], the first `cols` of each row are written */
void naive_scores(const AttnArgs *args, const float *Q_i, int64_t i0, int64_t rows,
                  const float *K_j, int64_t j0, int64_t cols, float *S, int64_t ld_S);

/* Only the mask: writes -inf where query i0+r may not see key j0+c. Rows that see the whole
 * block cost one test. */
void naive_mask_rows(const AttnArgs *args, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                     float *S, int64_t ld_S);

/* 1: no query of i .. i+rows-1 may see a key of j .. j+cols-1. Extreme positions alone tell. */
int naive_sees_nothing(const AttnArgs *args, int64_t i, int64_t rows, int64_t j, int64_t cols);

/* O_i [rows][d] = beta * O_i + P [rows][ld_P] V_j [cols][d]. With beta = 0 the old O_i is never
 * read. */
void naive_weighted_sum(const float *P, int64_t ld_P, int64_t rows, int64_t cols, const float *V_j,
                        int64_t d, float beta, float *O_i);

typedef enum NaiveTranspose { NAIVE_NO = 0, NAIVE_YES = 1 } NaiveTranspose;

/* C [m][n] = alpha * A' B' + beta * C, where A' is A [m][k] or the transpose of A [k][m], and B'
 * is B [k][n] or the transpose of B [n][k]. ld_*: floats from one stored row to the next.
 * OpenBLAS sgemm, or plain loops without OpenBLAS. With beta = 0 the old C is never read. */
void naive_matmul(NaiveTranspose A_transposed, NaiveTranspose B_transposed, int64_t m, int64_t n,
                  int64_t k, float alpha, const float *A, int64_t ld_A, const float *B,
                  int64_t ld_B, float beta, float *C, int64_t ld_C);

/* --- CUDA building blocks ----------------------------------------------------------------------*/
/* All pointers are device pointers, args as a CUDA variant gets it; work is queued on
 * args->stream. With cuBLAS the products run there (f32: no TF32; f16 and bf16: tensor cores,
 * float32 accumulation), else in the plain kernels of v0. */

/* S_dev [B][H][Nq][Nk] float32: scaled, capped, -inf where masked. */
AttnStatus naive_cuda_scores(const AttnArgs *args, float *S_dev);
/* O = P V for all heads, rounded to O's dtype and strides. P_dev [B][H][Nq][Nk] float32 is used
 * up: with f16 or bf16 tensors its rows are rounded to that dtype in place. */
AttnStatus naive_cuda_weighted_sum(const AttnArgs *args, float *P_dev);

#ifdef __cplusplus
}
#endif
#endif
