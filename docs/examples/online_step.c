/* SPDX-License-Identifier: MIT
 *
 * online_step.c: a solution of exercise 5 of docs/lab/05_exercises.md, the online module: one
 * block of queries and one of keys, merged into O and lse in place; then all blocks in a random
 * order, as a shared object for `sliding_window --variant-so`.
 *
 * Interface: sliding_window_variant, sliding_window_abi_version.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "attention/window/window_library.h"
#include "attn_options.h"
#include "attn_pairs.h"
#include "tensor.h"
#include "variant_so.h"

#define BLOCK_Q  24
#define BLOCK_KV 16

int sliding_window_abi_version = SLIDING_WINDOW_ABI_VERSION;

typedef struct Rows {
    float *Q_i, *K_j, *V_j, *O_i; /* [d]; O_i of this block's keys alone */
} Rows;

/* O and lse of (b, h, i) gain those of some other keys. */
static void merge_row(const AttnArgs *a, const Rows *t, float lse_block, int64_t b, int64_t h,
                      int64_t i)
{
    float *lse = &a->lse[(b * a->shape.H + h) * a->shape.Nq + i];
    if (lse_block == -INFINITY)
        return; /* nothing seen here; and -inf - -inf is NaN */
    const float max = *lse > lse_block ? *lse : lse_block;
    const float min = *lse > lse_block ? lse_block : *lse;
    const float together = max + log1pf(expf(min - max));
    const float c_old = expf(*lse - together), c_block = expf(lse_block - together);
    tensor_read_row(&a->O, b, i, h, t->V_j); /* V_j is free now */
    for (int64_t x = 0; x < a->shape.d; x++)
        t->O_i[x] = c_old * t->V_j[x] + c_block * t->O_i[x];
    tensor_write_row(&a->O, b, i, h, t->O_i); /* rounds to the dtype: once a step */
    *lse = together;
}

/* Attention of query i over keys j0 .. j1-1 alone, into O_i; returns its lse. */
static float attend_keys(const AttnArgs *a, const Rows *t, int64_t b, int64_t h, int64_t i,
                         int64_t j0, int64_t j1)
{
    const int64_t d = a->shape.d, h_kv = h / (a->shape.H / a->shape.Hkv);
    float m = -INFINITY, l = 0.0f;
    tensor_read_row(&a->Q, b, i, h, t->Q_i);
    memset(t->O_i, 0, (size_t)d * sizeof *t->O_i);
    for (int64_t j = j0; j < j1; j++) {
        float qk = 0.0f;
        if (!attn_sees(a, i, j))
            continue;
        tensor_read_row(&a->K, b, j, h_kv, t->K_j);
        tensor_read_row(&a->V, b, j, h_kv, t->V_j);
        for (int64_t x = 0; x < d; x++)
            qk += t->Q_i[x] * t->K_j[x];
        const float s = attn_score(a, qk), m_new = s > m ? s : m;
        if (s == -INFINITY)
            continue; /* of an infinite input: no weight, and m - m_new may be -inf - -inf */
        const float alpha = expf(m - m_new), p = expf(s - m_new);
        l = alpha * l + p;
        for (int64_t x = 0; x < d; x++)
            t->O_i[x] = alpha * t->O_i[x] + p * t->V_j[x];
        m = m_new;
    }
    for (int64_t x = 0; x < d && l != 0.0f; x++)
        t->O_i[x] /= l;
    return l == 0.0f ? -INFINITY : m + logf(l); /* not l > 0: a NaN would be an empty block */
}

/* Block (i, j) of all heads. The last blocks end where the tensors do: padding is never looked
 * at. */
static void step(const AttnArgs *a, const Rows *t, int64_t i, int64_t j)
{
    const AttnShape *n = &a->shape;
    const int64_t i0 = i * BLOCK_Q, j0 = j * BLOCK_KV;
    const int64_t i1 = i0 + BLOCK_Q < n->Nq ? i0 + BLOCK_Q : n->Nq;
    const int64_t j1 = j0 + BLOCK_KV < n->Nk ? j0 + BLOCK_KV : n->Nk;
    if (attn_tile_class(a->rule, attn_range(a->positions_q, i0, i1 - i0),
                        attn_range(a->positions_k, j0, j1 - j0)) == ATTN_TILE_SKIP)
        return;
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t r = i0; r < i1; r++)
                merge_row(a, t, attend_keys(a, t, b, h, r, j0, j1), b, h, r);
}

static AttnStatus visit_blocks(const AttnArgs *a)
{
    const AttnShape *n = &a->shape;
    const int64_t Tr = (n->Nq + BLOCK_Q - 1) / BLOCK_Q, Tc = (n->Nk + BLOCK_KV - 1) / BLOCK_KV;
    float *memory = workspace_alloc((size_t)(4 * n->d) * sizeof *memory);
    int64_t *visits = workspace_alloc((size_t)(Tr * Tc) * sizeof *visits);
    AttnStatus status = memory && visits ? ATTN_OK : ATTN_NO_MEMORY;
    if (status == ATTN_OK) {
        const Rows rows = {memory, memory + n->d, memory + 2 * n->d, memory + 3 * n->d};
        memset(memory, 0, (size_t)n->d * sizeof *memory); /* the state before the first step */
        for (int64_t row = 0; row < n->B * n->H * n->Nq; row++) {
            tensor_write_row(&a->O, row / (n->H * n->Nq), row % n->Nq, row / n->Nq % n->H, memory);
            a->lse[row] = -INFINITY;
        }
        for (int64_t v = 0; v < Tr * Tc; v++) { /* Fisher and Yates, from the inside out */
            const int64_t other = rand() % (v + 1);
            visits[v] = visits[other];
            visits[other] = v;
        }
        for (int64_t v = 0; v < Tr * Tc; v++)
            step(a, &rows, visits[v] / Tc, visits[v] % Tc);
    }
    workspace_free(memory);
    workspace_free(visits);
    return status;
}

AttnStatus sliding_window_variant(const AttnArgs *args)
{
    if (attn_clips(args) || attn_drops(args))
        return ATTN_SKIP; /* these need the finished weights of a row */
    return window_plain_run(args, visit_blocks);
}
