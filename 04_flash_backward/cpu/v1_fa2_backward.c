/* SPDX-License-Identifier: MIT
 *
 * v1_fa2_backward: the backward pass of FlashAttention-2 (Dao, arXiv 2307.08691).
 *
 *     delta = rowsum(dO * O)                                      once, before everything else
 *     for each tile j of Bc keys:                                 these run side by side
 *         load K_j V_j                dK_j = 0, dV_j = 0          in fast memory
 *         for each tile i of Br queries:
 *             load Q_i dO_i lse_i delta_i dQ_i
 *             P     = exp(scale * Q_i K_j^T - lse_i)
 *             dS    = P * (dO_i V_j^T - delta_i)
 *             dV_j += P^T dO_i               dK_j += scale * dS^T Q_i
 *             dQ_i += scale * dS K_j         store dQ_i
 *         store dK_j dV_j
 *
 * Against v0: O is not read in the loops any more, and one number a row replaces m and l. And tiles
 * of keys may run at the same time, if they do not fall over each other in dQ. On a GPU they add
 * atomically, and the order of the additions, hence the last bits, is a matter of luck. Here the
 * keys are cut into a few parts that follow from the shape, not from the number of threads; each
 * part adds to a dQ of its own, tile after tile, and at the end the parts are added in order.
 *
 * Why delta = rowsum(dO * O)? The softmax Jacobian asks for sum_j P_ij dP_ij, a sum over all keys.
 * With dP_ij = sum_x dO_ix V_jx the two sums may be swapped:
 *
 *     sum_j P_ij sum_x dO_ix V_jx = sum_x dO_ix sum_j P_ij V_jx = sum_x dO_ix O_ix
 *
 * So a sum over N keys, which would need all tiles of a row first, becomes one over d channels.
 *
 * Interface: the rung of stage 04 with delta once and tiles of keys side by side; it takes a mask
 * and a softcap too, and what moves is counted.
 */
#include "problem.h"
#include "units/exp_rows.h"
#include "units/gradient_tiles.h"
#include "units/scores.h"

#define WANTED_TASKS 16 /* (batch, kv head, part): enough for the threads of a small machine */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Parts of the keys of a kv head: by the shape alone, or more threads would give other bits. */
static int64_t parts_of(const Problem *p)
{
    const int64_t kv_heads = p->B * p->Hkv;
    return smaller((p->Nk + TILE_KEYS - 1) / TILE_KEYS, (WANTED_TASKS + kv_heads - 1) / kv_heads);
}

/* delta [B][H][Nq]. A row without keys: 0, whatever stands in its dO. */
static void make_delta(const Problem *p, float *delta)
{
    const int64_t rows = (int64_t)p->B * p->H * p->Nq;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t head = row / p->Nq; /* batch * H + h */
        const int64_t at = query_row(p, (int)(head / p->H), (int)(head % p->H), (int)(row % p->Nq));
        const float *O_i = (const float *)p->O + at, *dO_i = (const float *)p->dO + at;
        delta[row] = 0.0f;
        for (int x = 0; x < p->d && p->lse[row] != -INFINITY; x++)
            delta[row] += dO_i[x] * O_i[x];
    }
    access_counts_add(2 * rows * p->d, rows);
}

/* P and dS of a tile, in v0's words. */
static void recompute_tile(const ScoreRule *rule, const GradientTiles *t, int i, int rows, int j,
                           int cols)
{
    const int d = t->door.d;
    const float cap = rule->softcap;
    score_block(rule, t->Q_i, d, i, rows, t->K_j, d, j, cols, d, t->P, cols);
    matmul(AS_IS, TRANSPOSED, rows, cols, d, 1.0f, t->dO_i, d, t->V_j, d, 0.0f, t->dS,
           cols); /* dP = dO_i V_j^T */
    for (int r = 0; r < rows; r++) {
        float *S_r = t->P + r * cols, *dS_r = t->dS + r * cols;
        /* A row without keys has lse = -inf, and all its S are -inf: exp(-inf - 0) = 0. */
        const float lse = t->lse_i[r] == -INFINITY ? 0.0f : t->lse_i[r];
        for (int c = 0; c < cols; c++)
            dS_r[c] -= t->delta_i[r];
        for (int c = 0; cap > 0.0f && c < cols; c++) /* slope of cap * tanh(s / cap) */
            dS_r[c] *= S_r[c] == -INFINITY ? 0.0f : 1.0f - (S_r[c] / cap) * (S_r[c] / cap);
        softmax_exp_row(S_r, S_r, cols, lse); /* P, with no maximum and no division */
        for (int c = 0; c < cols; c++) {
            S_r[c] = S_r[c] > 1.0f ? 1.0f : S_r[c]; /* lse is rounded: P stays at most 1 */
            dS_r[c] *= S_r[c];
        }
    }
}

/* Queries i .. of head h for one tile of keys. dQ [Nq][d] of this head and part. */
static void visit_tile(const Problem *p, const float *delta, GradientTiles *t, float *dQ, int b,
                       int h, int i, int j, int cols)
{
    const ScoreRule rule = {p->scale, p->softcap, p->from, p->to, p->mask, p->Nk};
    const int d = p->d, rows = (int)smaller(TILE_ROWS, p->Nq - i);
    const int64_t ld = p->H * d, query = query_row(p, b, h, i);
    if (sees_nothing(&rule, i, rows, j, cols))
        return;
    load_tile(&t->door, t->Q_i, (const float *)p->Q + query, ld, rows);
    load_tile(&t->door, t->dO_i, (const float *)p->dO + query, ld, rows);
    load_tile(&t->door, t->dQ_i, dQ + (int64_t)i * d, d, rows);
    load_floats(&t->door, t->lse_i, p->lse + lse_row(p, b, h, i), rows);
    load_floats(&t->door, t->delta_i, delta + lse_row(p, b, h, i), rows);
    clear_empty(t, rows);
    recompute_tile(&rule, t, i, rows, j, cols);
    matmul(TRANSPOSED, AS_IS, cols, d, rows, 1.0f, t->P, cols, t->dO_i, d, 1.0f, t->dV_j, d);
    matmul(TRANSPOSED, AS_IS, cols, d, rows, p->scale, t->dS, cols, t->Q_i, d, 1.0f, t->dK_j, d);
    matmul(AS_IS, AS_IS, rows, d, cols, p->scale, t->dS, cols, t->K_j, d, 1.0f, t->dQ_i, d);
    store_tile(&t->door, dQ + (int64_t)i * d, d, t->dQ_i, rows);
}

/* Tiles part, part + parts, ... of one kv head: under a causal mask the early tiles of keys are
 * seen by many more queries than the late ones. dQ [group][Nq][d] of this part. */
static void backward_part(const Problem *p, const float *delta, GradientTiles *t, float *dQ, int b,
                          int h_kv, int64_t part)
{
    const int group = p->H / p->Hkv;
    const int64_t ld = p->Hkv * p->d, floats = (int64_t)p->Nq * p->d; /* of a query head */
    start_floats(t, dQ, group * floats);
    for (int64_t j = part * TILE_KEYS; j < p->Nk; j += parts_of(p) * TILE_KEYS) {
        const int cols = (int)smaller(TILE_KEYS, p->Nk - j);
        const int64_t key = key_row(p, b, h_kv, (int)j);
        load_tile(&t->door, t->K_j, (const float *)p->K + key, ld, cols);
        load_tile(&t->door, t->V_j, (const float *)p->V + key, ld, cols);
        memset(t->dK_j, 0, (size_t)(cols * p->d) * sizeof *t->dK_j);
        memset(t->dV_j, 0, (size_t)(cols * p->d) * sizeof *t->dV_j);
        for (int g = 0; g < group; g++)
            for (int i = 0; i < p->Nq; i += TILE_ROWS)
                visit_tile(p, delta, t, dQ + g * floats, b, h_kv * group + g, i, (int)j, cols);
        store_tile(&t->door, (float *)p->dK + key, ld, t->dK_j, cols); /* nobody else has them */
        store_tile(&t->door, (float *)p->dV + key, ld, t->dV_j, cols);
    }
}

/* dQ of each query = the parts, first to last. parts_dQ [B][Hkv][parts][group][Nq][d] */
static void add_parts(const Problem *p, const float *parts_dQ)
{
    const int64_t heads = (int64_t)p->B * p->H, group = p->H / p->Hkv, parts = parts_of(p);
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
    for (int64_t row = 0; row < heads * p->Nq; row++) {
        const int64_t head = row / p->Nq, i = row % p->Nq; /* head: batch * H + h */
        float *dQ = (float *)p->dQ + query_row(p, (int)(head / p->H), (int)(head % p->H), (int)i);
        memset(dQ, 0, (size_t)p->d * sizeof *dQ);
        for (int64_t part = 0; part < parts; part++) {
            const int64_t task = head / group * parts + part;
            const float *from = parts_dQ + ((task * group + head % group) * p->Nq + i) * p->d;
            for (int x = 0; x < p->d; x++)
                dQ[x] += from[x];
        }
    }
    access_counts_add(parts * heads * p->Nq * p->d, heads * p->Nq * p->d);
}

static void backward(const Problem *p)
{
    const int64_t parts = parts_of(p), tasks = p->B * p->Hkv * parts;
    const int64_t dQ_floats = (int64_t)p->H / p->Hkv * p->Nq * p->d; /* of a task */
    const int threads = (int)smaller(tasks, p->threads);
    float *delta = p->work, *parts_dQ = delta + (int64_t)p->B * p->H * p->Nq;
    float *of_threads = parts_dQ + tasks * dQ_floats;
    make_delta(p, delta);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        GradientTiles t = place_gradients(of_threads + thread * gradient_floats(p->d), p->d);
        for (int64_t task = thread; task < tasks; task += threads) {
            const int kv = (int)(task / parts); /* batch * Hkv + kv head */
            backward_part(p, delta, &t, parts_dQ + task * dQ_floats, kv / p->Hkv, kv % p->Hkv,
                          task % parts);
        }
        report_moved(&t.door);
    }
    add_parts(p, parts_dQ);
}

static int64_t work(const Problem *p, int backward)
{
    const int64_t parts = parts_of(p), threads = smaller(p->B * p->Hkv * parts, p->threads);
    (void)backward;
    return (int64_t)sizeof(float) *
           (p->B * p->H * (int64_t)p->Nq * (parts * p->d + 1) + threads * gradient_floats(p->d));
}

static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){TILE_ROWS, TILE_KEYS};
}

RUNG(flash_backward, v1_fa2_backward, "delta once, lse only, tiles of keys side by side", F32, NULL,
     backward, work, tiles, FULL);
