/* SPDX-License-Identifier: MIT
 *
 * weight_tiles.c: clipping and dropout without an N x N matrix.
 *
 * The online softmax keeps unnormalised sums and divides at the end. That works because the weights
 * enter O linearly: a common factor can wait. Dropout is linear too. Clipping is not: it needs each
 * P_ij itself, and P_ij needs the maximum m_i and the sum l_i of all keys. So with a clip there are
 * two walks, the first for these numbers. The second can compute any tile of P from scratch:
 *
 *     for each tile i of queries:
 *         for each tile j that it sees anything of:  m_i, l_i grow
 *         for each tile j that it sees anything of:
 *             P = exp(scale * Q_i K_j^T - m_i) / l_i
 *             W = P clipped and dropped                        (weights.h)
 *             O_i += W V_j
 *
 * Not exp(S - lse_i): lse is rounded and from another kernel: where a score is 10^5 weights of a
 * row then sum to 0.99 or 1.01, at 10^9 to 0 or infinity. Backward has only lse; there P is cut off
 * at 1.
 *
 * Dropout's random numbers belong to pairs, not to tiles or threads, so they do not care how the
 * matrix was cut.
 *
 * Backward makes two walks, each of which owns what it writes, so that no sum depends on the order
 * in which threads arrive: tiles of queries own their rows of dQ, tiles of keys their rows of dK
 * and dV. S and dW are computed in both (seven products for five). Clipping asks for one walk more:
 * delta_i = sum_j P_ij dP_ij is a sum over all keys of a row, and rowsum(dO * O) is not equal to it
 * any more.
 *
 *     for each tile i of queries:                      for each tile j of keys:
 *         delta_i                                          for each head of the group, each tile i:
 *         for each tile j:  dQ_i += scale dS K_j               dV_j += W^T dO_i
 *                                                              dK_j += scale dS^T Q_i
 *
 * Memory: a few tiles for each thread and one number a row.
 *
 * Interface: window_weigh_tiles, window_weigh_tiles_backward (window_library.h).
 */
#include "attention/backward/backward_library.h"
#include "attention/window/window_library.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "attention/rows.h"
#include "attn_options.h"
#include "sequences.h"
#include "units/exp_rows.h"
#include "weights.h"
#include "window_walk.h"

enum { Br = 64, Bc = 64 };

/* One thread's tiles. */
typedef struct Tiles {
    float *Q_i, *dO_i;   /* [Br][d] */
    float *O_i;          /* [Br][d] */
    float *K_j, *V_j;    /* [Bc][d] */
    float *S;            /* [Br][Bc] */
    float *P, *W, *dS;   /* [Br][Bc]; dS is dW, then dP first */
    int64_t index_k[Bc]; /* of keys within their sequence */
    float *memory;
} Tiles;

static int make_tiles(int64_t d, Tiles *t)
{
    t->memory = workspace_alloc((size_t)(3 * Br * d + 2 * Bc * d + 4 * Br * Bc) * sizeof(float));
    if (!t->memory)
        return 0;
    t->Q_i = t->memory;
    t->dO_i = t->Q_i + Br * d;
    t->O_i = t->dO_i + Br * d;
    t->K_j = t->O_i + Br * d;
    t->V_j = t->K_j + Bc * d;
    t->S = t->V_j + Bc * d;
    t->P = t->S + Br * Bc;
    t->W = t->P + Br * Bc;
    t->dS = t->W + Br * Bc;
    return 1;
}

/* What a walk works on: one sequence, and where its rows lie in arrays of the whole problem. */
typedef struct Walk {
    const AttnArgs *whole;
    const WindowPart *part;
    WeightRule rule;
    float *delta; /* [B][H][Nq] of the whole problem; backward only */
    FlashSums sums;
} Walk;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- one tile ----------------------------------------------------------------------------------*/

static void load_keys(const AttnArgs *args, Tiles *t, int64_t b, int64_t h_kv, int64_t j,
                      int64_t cols)
{
    int64_t sequence;
    attn_load_rows(&args->K, b, h_kv, j, cols, t->K_j);
    attn_load_rows(&args->V, b, h_kv, j, cols, t->V_j);
    for (int64_t c = 0; c < cols; c++)
        t->index_k[c] = window_index(args->positions_k, j + c, &sequence);
}

static void load_gradient(const Walk *walk, Tiles *t, int64_t b, int64_t h, int64_t i, int64_t rows)
{
    const AttnArgs *args = &walk->part->args;
    attn_load_rows(&args->dO, b, h, i, rows, t->dO_i);
    attn_clear_empty(args->lse + window_part_row(walk->whole, walk->part, b, h) + i, rows,
                     args->shape.d, t->dO_i);
}

/* S and P of the loaded tiles. lse [rows] */
static void probabilities(const AttnArgs *args, Tiles *t, const float *lse, int64_t i, int64_t rows,
                          int64_t j, int64_t cols)
{
    attn_score_block(args, t->Q_i, i, rows, t->K_j, j, cols, t->S, Bc);
    for (int64_t r = 0; r < rows; r++) /* lse = -inf: zeros */
        softmax_exp_row(t->S + r * Bc, t->P + r * Bc, cols, lse[r]);
    for (int64_t e = 0; e < rows * Bc; e++)
        t->P[e] = t->P[e] > 1.0f ? 1.0f : t->P[e];
}

static WeightPlace place_of(const AttnArgs *args, const Tiles *t, int64_t b, int64_t h, int64_t i)
{
    int64_t sequence;
    const int64_t index = window_index(args->positions_q, i, &sequence);
    return (WeightPlace){b + sequence, h, index, t->index_k};
}

/* P of row r is exp(S - m), m and l gain the tile; returns the factor of what was summed before. A
 * NaN gets into m, and from there into l. */
static float join_sums(Tiles *t, int64_t r, int64_t cols, float *m, float *l)
{
    const float most = row_max(t->S + r * Bc, cols), m_new = *m > most ? *m : most;
    const float alpha = *l == 0.0f ? 0.0f : expf(*m - m_new);
    *l = alpha * *l + softmax_exp_row(t->S + r * Bc, t->P + r * Bc, cols, m_new);
    *m = m_new;
    return alpha;
}

static void scale_row(float *row, int64_t n, float factor)
{
    for (int64_t c = 0; factor != 1.0f && c < n; c++)
        row[c] *= factor;
}

/* P, and dP in t->dS. */
static void gradient_of_p(const Walk *walk, Tiles *t, int64_t b, int64_t h, int64_t i, int64_t rows,
                          int64_t j, int64_t cols)
{
    const AttnArgs *args = &walk->part->args;
    const int64_t d = args->shape.d;
    probabilities(args, t, args->lse + window_part_row(walk->whole, walk->part, b, h) + i, i, rows,
                  j, cols);
    matmul(AS_IS, TRANSPOSED, rows, cols, d, 1.0f, t->dO_i, d, t->V_j, d, 0.0f, t->dS, Bc);
    for (int64_t r = 0; r < rows; r++)
        weigh_row_backward(&walk->rule, place_of(args, t, b, h, i + r), cols, t->P + r * Bc,
                           t->dS + r * Bc);
}

/* dS of the loaded tiles: what the softmax and the cap make of dP. S holds capped scores, so that
 * tanh is S / cap; with a hidden one, -inf, the slope would be -inf, and 0 times that is NaN. */
static void gradient_of_s(const Walk *walk, Tiles *t, int64_t b, int64_t h, int64_t i, int64_t rows,
                          int64_t j, int64_t cols)
{
    const float cap = walk->whole->softcap;
    const float *delta = walk->delta + window_part_row(walk->whole, walk->part, b, h) + i;
    gradient_of_p(walk, t, b, h, i, rows, j, cols);
    for (int64_t r = 0; r < rows; r++) {
        const float *S_r = t->S + r * Bc, *P_r = t->P + r * Bc;
        float *dS_r = t->dS + r * Bc;
        for (int64_t c = 0; c < cols; c++)
            dS_r[c] = P_r[c] * (dS_r[c] - delta[r]);
        for (int64_t c = 0; cap > 0.0f && c < cols; c++) /* slope of the cap: 1 - tanh^2 */
            dS_r[c] *= S_r[c] == -INFINITY ? 0.0f : 1.0f - (S_r[c] / cap) * (S_r[c] / cap);
    }
}

/* --- walks over the tiles ----------------------------------------------------------------------*/

/* Tile i of queries: O. With a clip the first walk is for m and l, else it is the only one. */
static void weigh_queries(const Walk *walk, Tiles *t, int64_t b, int64_t h, int64_t i)
{
    const AttnArgs *args = &walk->part->args;
    const int64_t d = args->shape.d, rows = smaller(Br, args->shape.Nq - i);
    const IndexSpan span = span_of_keys(args, i, rows);
    float m[Br], l[Br];
    attn_load_rows(&args->Q, b, h, i, rows, t->Q_i);
    memset(t->O_i, 0, (size_t)(rows * d) * sizeof *t->O_i);
    for (int64_t r = 0; r < rows; r++)
        m[r] = -INFINITY, l[r] = 0.0f;
    for (int clips = walk->rule.clips, again = 0; again <= clips; again++)
        for (int64_t j = span.first / Bc * Bc; j < span.last; j += Bc) {
            const int64_t cols = smaller(Bc, args->shape.Nk - j);
            if (window_tile(args, i, rows, j, cols) == ATTN_TILE_SKIP)
                continue;
            load_keys(args, t, b, attn_kv_head(&args->shape, h), j, cols);
            attn_score_block(args, t->Q_i, i, rows, t->K_j, j, cols, t->S, Bc);
            for (int64_t r = 0; r < rows; r++) {
                float *P_r = t->P + r * Bc;
                if (!again)
                    scale_row(t->O_i + r * d, d, join_sums(t, r, cols, &m[r], &l[r]));
                else if (softmax_exp_row(t->S + r * Bc, P_r, cols, m[r]) != 0.0f)
                    scale_row(P_r, cols, 1.0f / l[r]);
                if (again == clips)
                    weigh_row(&walk->rule, place_of(args, t, b, h, i + r), cols, P_r,
                              t->W + r * Bc);
            }
            if (again == clips)
                attn_weighted_sum(t->W, Bc, rows, cols, t->V_j, d, 1.0f, t->O_i);
        }
    for (int64_t r = 0; r < rows && !walk->rule.clips; r++)
        scale_row(t->O_i + r * d, d, l[r] == 0.0f ? 0.0f : 1.0f / l[r]);
    attn_store_rows(&args->O, b, h, i, rows, t->O_i);
}

/* Tile i of queries: delta with a clip, or dQ (delta_only = 0). Two walks over the same tiles. */
static void walk_queries(const Walk *walk, Tiles *t, int64_t b, int64_t h, int64_t i,
                         int delta_only)
{
    const AttnArgs *args = &walk->part->args;
    const AttnShape *n = &args->shape;
    const int64_t d = n->d, rows = smaller(Br, n->Nq - i), ld = n->H * d;
    const IndexSpan span = span_of_keys(args, i, rows);
    float *delta = walk->delta + window_part_row(walk->whole, walk->part, b, h) + i;
    float *dQ =
        walk->sums.dQ + ((b * walk->whole->shape.Nq + walk->part->first_q + i) * n->H + h) * d;
    for (int64_t r = 0; delta_only && r < rows; r++)
        delta[r] = 0.0f;
    for (int64_t j = span.first / Bc * Bc; j < span.last; j += Bc) {
        const int64_t cols = smaller(Bc, n->Nk - j);
        if (window_tile(args, i, rows, j, cols) == ATTN_TILE_SKIP)
            continue;
        load_keys(args, t, b, attn_kv_head(n, h), j, cols);
        if (!delta_only) {
            gradient_of_s(walk, t, b, h, i, rows, j, cols);
            matmul(AS_IS, AS_IS, rows, d, cols, args->scale, t->dS, Bc, t->K_j, d, 1.0f, dQ, ld);
            continue;
        }
        gradient_of_p(walk, t, b, h, i, rows, j, cols);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                delta[r] += t->P[r * Bc + c] * t->dS[r * Bc + c];
    }
}

static void gradients_of_queries(const Walk *walk, Tiles *t, int64_t b, int64_t h, int64_t i)
{
    const AttnArgs *args = &walk->part->args;
    const int64_t rows = smaller(Br, args->shape.Nq - i);
    attn_load_rows(&args->Q, b, h, i, rows, t->Q_i);
    load_gradient(walk, t, b, h, i, rows);
    if (walk->rule.clips)
        walk_queries(walk, t, b, h, i, 1);
    walk_queries(walk, t, b, h, i, 0);
}

/* Tile j of keys: dK and dV, from all query heads of its group, in order. */
static void gradients_of_keys(const Walk *walk, Tiles *t, int64_t b, int64_t h_kv, int64_t j)
{
    const AttnArgs *args = &walk->part->args;
    const AttnShape *n = &args->shape;
    const int64_t d = n->d, cols = smaller(Bc, n->Nk - j), ld = n->Hkv * d, group = n->H / n->Hkv;
    const IndexSpan span = span_of_queries(args, j, cols);
    const int64_t at = ((b * walk->whole->shape.Nk + walk->part->first_k + j) * n->Hkv + h_kv) * d;
    load_keys(args, t, b, h_kv, j, cols);
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++)
        for (int64_t i = span.first / Br * Br; i < span.last; i += Br) {
            const int64_t rows = smaller(Br, n->Nq - i);
            if (window_tile(args, i, rows, j, cols) == ATTN_TILE_SKIP)
                continue;
            attn_load_rows(&args->Q, b, h, i, rows, t->Q_i);
            load_gradient(walk, t, b, h, i, rows);
            gradient_of_s(walk, t, b, h, i, rows, j, cols);
            for (int64_t r = 0; r < rows; r++)
                weigh_row(&walk->rule, place_of(args, t, b, h, i + r), cols, t->P + r * Bc,
                          t->W + r * Bc);
            matmul(TRANSPOSED, AS_IS, cols, d, rows, 1.0f, t->W, Bc, t->dO_i, d, 1.0f,
                   walk->sums.dV + at, ld);
            matmul(TRANSPOSED, AS_IS, cols, d, rows, args->scale, t->dS, Bc, t->Q_i, d, 1.0f,
                   walk->sums.dK + at, ld);
        }
}

/* --- who does what -----------------------------------------------------------------------------*/

typedef void (*TileFn)(const Walk *walk, Tiles *t, int64_t b, int64_t h, int64_t first);

/* A tile of queries (or keys) with everything that it has to meet is one task: what it writes
 * belongs to nobody else, and the order inside of it is fixed, so that the result does not depend
 * on who takes which task. Under a window all tasks are nearly equal; dynamic scheduling is for
 * causal masks without one, where the last rows see the most.
 *
 * Threads share the tiles of all heads: `tiles` tiles of `size` indexes in each of `heads`
 * heads. */
static AttnStatus share_tiles(const Walk *walk, TileFn do_tile, int64_t heads, int64_t tiles,
                              int64_t size)
{
    const AttnShape *n = &walk->part->args.shape;
    const int threads = walk->part->args.threads;
    AttnStatus status = ATTN_OK;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Tiles t;
        const int ready = make_tiles(n->d, &t);
        if (!ready) {
#pragma omp atomic write
            status = ATTN_NO_MEMORY;
        }
#pragma omp for schedule(dynamic)
        for (int64_t at = 0; at < n->B * heads * tiles; at++)
            if (ready) /* every thread has to come to the loop, with memory or without */
                do_tile(walk, &t, at / (heads * tiles), at / tiles % heads, at % tiles * size);
        workspace_free(t.memory);
    }
    return status;
}

static int64_t tiles_of(int64_t N, int64_t size)
{
    return (N + size - 1) / size;
}

static AttnStatus weigh_part(const AttnArgs *args, WindowPart *part, void *unused)
{
    const Walk walk = {args, part, weight_rule(args), NULL, {NULL, NULL, NULL}};
    (void)unused;
    return share_tiles(&walk, weigh_queries, args->shape.H, tiles_of(part->args.shape.Nq, Br), Br);
}

AttnStatus window_weigh_tiles(const AttnArgs *args)
{
    return window_each_part(args, weigh_part, NULL);
}

/* `with` is a Walk without a part. */
static AttnStatus gradients_of_part(const AttnArgs *args, WindowPart *part, void *with)
{
    const AttnShape *n = &part->args.shape;
    Walk walk = *(const Walk *)with;
    AttnStatus status;
    walk.part = part;
    status = share_tiles(&walk, gradients_of_queries, args->shape.H, tiles_of(n->Nq, Br), Br);
    if (status == ATTN_OK)
        status = share_tiles(&walk, gradients_of_keys, args->shape.Hkv, tiles_of(n->Nk, Bc), Bc);
    return status;
}

AttnStatus window_weigh_tiles_backward(const AttnArgs *args, FlashSums sums)
{
    const AttnShape *n = &args->shape;
    Walk walk = {args, NULL, weight_rule(args), NULL, sums};
    AttnStatus status;
    walk.delta = workspace_alloc((size_t)(n->B * n->H * n->Nq) * sizeof *walk.delta);
    if (!walk.delta)
        return ATTN_NO_MEMORY;
    if (!attn_clips(args)) /* else gradients_of_queries computes it */
        flash_backward_delta(args, walk.delta);
    status = window_each_part(args, gradients_of_part, &walk);
    workspace_free(walk.delta);
    return status;
}
