/* SPDX-License-Identifier: MIT
 *
 * 2_flash_forward.c: a solution of assignment 2, for the tests of the course kit. It is not part of
 * any handout.
 *
 * One row tile at a time: Br queries keep O_i, m_i and l_i while the key tiles pass. Only Br x Bc
 * scores exist. Part A and part B differ in where a row is found and which keys it sees.
 *
 * Interface:
 * - flash_simple_variant, flash_forward_variant: docs/course/include.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "attn_pairs.h"
#include "flash_simple.h"

enum { BR = 16, BC = 32 };

/* One row tile at work: rows of Q, and what is known about the keys that have passed. */
typedef struct RowTile {
    int rows, d;
    float *Q, *O; /* [BR][d] */
    float *K, *V; /* [BC][d] */
    float m[BR], l[BR];
} RowTile;

static int tile_alloc(RowTile *t, int d)
{
    t->d = d;
    t->Q = malloc(sizeof(float) * (size_t)d * (2 * BR + 2 * BC));
    if (!t->Q)
        return 0;
    t->O = t->Q + BR * d;
    t->K = t->O + BR * d;
    t->V = t->K + BC * d;
    return 1;
}

static void tile_start(RowTile *t, int rows)
{
    t->rows = rows;
    memset(t->O, 0, sizeof(float) * (size_t)(BR * t->d));
    for (int r = 0; r < BR; r++) {
        t->m[r] = -INFINITY;
        t->l[r] = 0.0f;
    }
}

/* Row r meets `keys` keys: s holds their scores, -inf for those that it does not see. */
static void tile_add_row(RowTile *t, int r, float *s, int keys)
{
    float *o = t->O + r * t->d, m_new = t->m[r], alpha;
    for (int c = 0; c < keys; c++)
        m_new = fmaxf(m_new, s[c]);
    if (m_new == -INFINITY)
        return;
    alpha = t->m[r] == -INFINITY ? 0.0f : expf(t->m[r] - m_new);
    t->l[r] *= alpha;
    for (int x = 0; x < t->d; x++)
        o[x] *= alpha;
    for (int c = 0; c < keys; c++) {
        float p = expf(s[c] - m_new);
        t->l[r] += p;
        for (int x = 0; x < t->d; x++)
            o[x] += p * t->V[c * t->d + x];
    }
    t->m[r] = m_new;
}

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* O_i / l_i, and lse; a row that has seen no key has O = 0 already. */
static float tile_finish_row(RowTile *t, int r)
{
    if (t->l[r] == 0.0f)
        return -INFINITY;
    for (int x = 0; x < t->d; x++)
        t->O[r * t->d + x] /= t->l[r];
    return t->m[r] + logf(t->l[r]);
}

int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal)
{
    RowTile t;
    float s[BC], scale = 1.0f / sqrtf((float)d);
    if (!tile_alloc(&t, d))
        return 1;
    for (int i = 0; i < N; i += BR) {
        tile_start(&t, N - i < BR ? N - i : BR);
        for (int j = 0; j < (causal ? i + t.rows : N); j += BC) {
            int keys = N - j < BC ? N - j : BC;
            memcpy(t.V, V + (long)j * d, sizeof(float) * (size_t)(keys * d));
            for (int r = 0; r < t.rows; r++) {
                for (int c = 0; c < keys; c++)
                    s[c] = causal && j + c > i + r
                               ? -INFINITY
                               : scale * dot(Q + (long)(i + r) * d, K + (long)(j + c) * d, d);
                tile_add_row(&t, r, s, keys);
            }
        }
        for (int r = 0; r < t.rows; r++)
            lse[i + r] = tile_finish_row(&t, r);
        memcpy(O + (long)i * d, t.O, sizeof(float) * (size_t)(t.rows * d));
    }
    free(t.Q);
    return 0;
}

/* One row tile of one head, its first query i. */
static void general_row_tile(const AttnArgs *a, RowTile *t, int64_t b, int64_t h, int64_t i)
{
    int64_t hkv = h / (a->shape.H / a->shape.Hkv);
    float s[BC];
    tile_start(t, (int)(a->shape.Nq - i < BR ? a->shape.Nq - i : BR));
    for (int r = 0; r < t->rows; r++)
        tensor_read_row(&a->Q, b, i + r, h, t->Q + r * t->d);
    for (int64_t j = 0; j < a->shape.Nk; j += BC) {
        int keys = (int)(a->shape.Nk - j < BC ? a->shape.Nk - j : BC);
        for (int c = 0; c < keys; c++) {
            tensor_read_row(&a->K, b, j + c, hkv, t->K + c * t->d);
            tensor_read_row(&a->V, b, j + c, hkv, t->V + c * t->d);
        }
        for (int r = 0; r < t->rows; r++) {
            for (int c = 0; c < keys; c++)
                s[c] = attn_sees(a, i + r, j + c)
                           ? attn_score(a, dot(t->Q + r * t->d, t->K + c * t->d, t->d))
                           : -INFINITY;
            tile_add_row(t, r, s, keys);
        }
    }
    for (int r = 0; r < t->rows; r++) {
        a->lse[(b * a->shape.H + h) * a->shape.Nq + i + r] = tile_finish_row(t, r);
        tensor_write_row(&a->O, b, i + r, h, t->O + r * t->d);
    }
}

AttnStatus flash_forward_variant(const AttnArgs *args)
{
    RowTile t;
    if (!tile_alloc(&t, (int)args->shape.d))
        return ATTN_NO_MEMORY;
    for (int64_t b = 0; b < args->shape.B; b++)
        for (int64_t h = 0; h < args->shape.H; h++)
            for (int64_t i = 0; i < args->shape.Nq; i += BR)
                general_row_tile(args, &t, b, h, i);
    free(t.Q);
    return ATTN_OK;
}
