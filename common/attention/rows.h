/* SPDX-License-Identifier: MIT
 *
 * rows.h: rows of any tensor as contiguous float32 matrices, and a block of scores of any problem:
 * what the CPU libraries and the traces are made of. (Rungs have the plain problem and units.)
 *
 * Interface:
 * - attn_load_rows and attn_store_rows (any strides and dtype <-> float), attn_clear_empty (dO
 *   of rows without keys), attn_kv_head.
 * - attn_score_block, attn_mask_rows, attn_weighted_sum.
 */
#ifndef ATTENTION_ROWS_H
#define ATTENTION_ROWS_H

#include "attn.h"
#include "units/product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* They do not start threads and keep no state: call them from any number of threads. */

/* Tokens first .. first+count-1 of head h (of THIS tensor: pass the kv head for K and V) in batch
 * b, converted to float: rows [count][d]. */
void attn_load_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                    float *rows);
/* The way back: rows [count][d], rounded to the dtype of t. */
void attn_store_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                     const float *rows);

/* dO rows [count][d] that see no key (lse [count] = -inf) become zeros. Such rows are often padding
 * with anything in it. Their P is 0, but 0 * NaN is NaN, and dK and dV are sums over all rows. */
void attn_clear_empty(const float *lse, int64_t count, int64_t d, float *dO);

/* The kv head that query head h reads. */
static inline ATTN_HD int64_t attn_kv_head(const AttnShape *shape, int64_t h)
{
    return h / (shape->H / shape->Hkv);
}

/* A block of scores, ready for the softmax: scaled, capped, -inf where query i0+r may not see key
 * j0+c (local indexes of the whole problem).
 *   Q_i [rows][d]  rows i0 .. of one head        K_j [cols][d]  keys j0 .. of its kv head
 *   S   [rows][ld_S], the first `cols` of each row are written */
void attn_score_block(const AttnArgs *args, const float *Q_i, int64_t i0, int64_t rows,
                      const float *K_j, int64_t j0, int64_t cols, float *S, int64_t ld_S);

/* Only the mask: writes -inf where query i0+r may not see key j0+c. Rows that see the whole
 * block cost one test. */
void attn_mask_rows(const AttnArgs *args, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                    float *S, int64_t ld_S);

/* O_i [rows][d] = beta * O_i + P [rows][ld_P] V_j [cols][d]. With beta = 0 the old O_i is never
 * read. */
void attn_weighted_sum(const float *P, int64_t ld_P, int64_t rows, int64_t cols, const float *V_j,
                       int64_t d, float beta, float *O_i);

#ifdef __cplusplus
}
#endif
#endif
