/* SPDX-License-Identifier: MIT
 *
 * blocks.c: the pieces that attention is made of, on the CPU, for one head.
 *
 * Tensors arrive in any dtype and with any strides. The arithmetic here does not want to know: a
 * head is copied once into a contiguous float matrix [N][d], which costs N*d element copies beside
 * the N*N*d multiplications that follow.
 *
 * The mask is the interesting piece. A row of scores asks attn_tile_class about its whole span of
 * keys: "do I see all of you, none, or some?" Only "some" needs work, and then the span is cut in
 * two and asked again. A causal row of 2048 keys is settled by about 20 questions instead of 2048,
 * with no knowledge here of what the rule is.
 *
 * Interface: naive_load_rows, naive_store_rows, naive_scores, naive_mask_rows,
 * naive_weighted_sum (naive.h).
 */
#include <math.h>

#include "naive.h"
#include "tensor.h"

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

/* One row, keys j0 .. j0+cols-1. A span of one key is always all or none, so the halving ends. */
static void mask_span(const AttnArgs *args, AttnRange query, int64_t j0, int64_t cols, float *S_i)
{
    const int64_t half = cols / 2;
    int64_t c;
    switch (attn_tile_class(args->rule, query, attn_range(args->positions_k, j0, cols))) {
    case ATTN_TILE_CLEAN:
        return;
    case ATTN_TILE_SKIP:
        for (c = 0; c < cols; c++)
            S_i[c] = -INFINITY;
        return;
    case ATTN_TILE_MASKED:
        mask_span(args, query, j0, half, S_i);
        mask_span(args, query, j0 + half, cols - half, S_i + half);
    }
}

void naive_mask_rows(const AttnArgs *args, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                     float *S, int64_t ld_S)
{
    int64_t r, c;
    for (r = 0; r < rows; r++) {
        float *S_i = S + r * ld_S;
        mask_span(args, attn_range(args->positions_q, i0 + r, 1), j0, cols, S_i);
        if (args->mask) { /* [Nq][Nk], 1 = masked out: has no structure, so ask every pair */
            const uint8_t *mask_i = args->mask + (i0 + r) * args->shape.Nk + j0;
            for (c = 0; c < cols; c++)
                S_i[c] = mask_i[c] ? -INFINITY : S_i[c];
        }
    }
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
