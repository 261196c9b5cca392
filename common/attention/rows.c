/* SPDX-License-Identifier: MIT
 *
 * rows.c: the pieces that attention is made of, on the CPU, for one head.
 *
 * Tensors arrive in any dtype and with any strides. The arithmetic here does not want to know: a
 * head is copied once into a contiguous float matrix [N][d], which costs N*d element copies beside
 * the N*N*d multiplications that follow.
 *
 * The mask has a file of its own, mask_rows.c.
 *
 * Interface: attn_load_rows, attn_store_rows, attn_clear_empty, attn_score_block,
 * attn_weighted_sum (rows.h).
 */
#include <math.h>

#include "attention/rows.h"
#include "tensor.h"

void attn_load_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                    float *rows)
{
    int64_t r;
    for (r = 0; r < count; r++)
        tensor_read_row(t, b, first + r, h, rows + r * t->shape[3]);
}

void attn_store_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                     const float *rows)
{
    int64_t r;
    for (r = 0; r < count; r++)
        tensor_write_row(t, b, first + r, h, rows + r * t->shape[3]);
}

void attn_clear_empty(const float *lse, int64_t count, int64_t d, float *dO)
{
    int64_t r, x;
    for (r = 0; r < count; r++)
        for (x = 0; lse[r] == -INFINITY && x < d; x++)
            dO[r * d + x] = 0.0f;
}

void attn_score_block(const AttnArgs *args, const float *Q_i, int64_t i0, int64_t rows,
                      const float *K_j, int64_t j0, int64_t cols, float *S, int64_t ld_S)
{
    const int64_t d = args->shape.d;
    const float cap = args->softcap;
    int64_t r, c;
    /* S = scale * Q K^T: the scale rides on the product for nothing */
    matmul(AS_IS, TRANSPOSED, rows, cols, d, args->scale, Q_i, d, K_j, d, 0.0f, S, ld_S);
    if (cap > 0.0f)
        for (r = 0; r < rows; r++)
            for (c = 0; c < cols; c++)
                S[r * ld_S + c] = cap * tanhf(S[r * ld_S + c] / cap);
    attn_mask_rows(args, i0, rows, j0, cols, S, ld_S);
}

void attn_weighted_sum(const float *P, int64_t ld_P, int64_t rows, int64_t cols, const float *V_j,
                       int64_t d, float beta, float *O_i)
{
    matmul(AS_IS, AS_IS, rows, d, cols, 1.0f, P, ld_P, V_j, d, beta, O_i, d);
}
