/* SPDX-License-Identifier: MIT
 *
 * stage.c: the functions of the suite that a file of a stage calls, in their plainest form, so that
 * the file can be judged alone: one batch, one head, float32.
 *
 * Interface: what alloc.h and naive.h declare: workspace_alloc, workspace_free, attn_load_rows,
 * attn_store_rows, attn_clear_empty, attn_score_block, attn_weighted_sum.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "attention/rows.h"
#include "attn_pairs.h"

void *workspace_alloc(size_t bytes)
{
    return calloc(bytes, 1);
}

void workspace_free(void *memory)
{
    free(memory);
}

void attn_load_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                    float *rows)
{
    const float *data = t->data;
    (void)b, (void)h;
    memcpy(rows, data + first * t->shape[3], sizeof(float) * (size_t)(count * t->shape[3]));
}

void attn_store_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                     const float *rows)
{
    float *data = t->data;
    (void)b, (void)h;
    memcpy(data + first * t->shape[3], rows, sizeof(float) * (size_t)(count * t->shape[3]));
}

void attn_clear_empty(const float *lse, int64_t count, int64_t d, float *dO)
{
    int64_t i, x;
    for (i = 0; i < count; i++)
        for (x = 0; x < d && lse[i] == -INFINITY; x++)
            dO[i * d + x] = 0.0f;
}

void attn_score_block(const AttnArgs *args, const float *Q_i, int64_t i0, int64_t rows,
                      const float *K_j, int64_t j0, int64_t cols, float *S, int64_t ld_S)
{
    const int64_t d = args->shape.d;
    int64_t r, c, x;
    for (r = 0; r < rows; r++)
        for (c = 0; c < cols; c++) {
            float sum = 0.0f;
            for (x = 0; x < d; x++)
                sum += Q_i[r * d + x] * K_j[c * d + x];
            S[r * ld_S + c] = attn_sees(args, i0 + r, j0 + c) ? attn_score(args, sum) : -INFINITY;
        }
}

void attn_weighted_sum(const float *P, int64_t ld_P, int64_t rows, int64_t cols, const float *V_j,
                       int64_t d, float beta, float *O_i)
{
    int64_t r, c, x;
    for (r = 0; r < rows; r++)
        for (x = 0; x < d; x++) {
            float sum = beta == 0.0f ? 0.0f : beta * O_i[r * d + x];
            for (c = 0; c < cols; c++)
                sum += P[r * ld_P + c] * V_j[c * d + x];
            O_i[r * d + x] = sum;
        }
}
