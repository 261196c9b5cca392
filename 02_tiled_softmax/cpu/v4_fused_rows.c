/* SPDX-License-Identifier: MIT
 *
 * v4_fused_rows: attention one tile at a time. The N x N matrix of scores never exists.
 *
 * v0-v3 still store all scores S, because the product P V comes after the softmax. The online state
 * removes that reason too. Apply the same correction alpha to the output row that v1 applies to
 * the sum:
 *
 *     for each tile j of Bc keys:
 *         s     = scale * Q_i K_j^T                 Br x Bc scores, reused for every tile
 *         m_new = max(m_i, max_c s_c)               alpha = exp(m_i - m_new)
 *         P_c   = exp(s_c - m_new)
 *         l_i   = l_i * alpha + sum_c P_c
 *         O_i   = O_i * alpha + P V_j
 *     O_i = O_i / l_i                               one division at the end
 *
 * Memory for one thread: a query tile, a key tile, a score tile and an output tile, that is
 * O(Br d + Bc d + Br Bc), whatever N is. Products and masks are stage 01's, on tiles. K and V are
 * read again for every tile of Br queries; stage 03 asks how large Br should be and what a GPU
 * gains.
 *
 * Interface:
 * - attention_v4_fused_rows: all masks, windows, segments, GQA, softcap, dtypes; args->threads
 *   threads over (batch, head, query tile).
 */
#include <math.h>

#include "attn_pairs.h"
#include "exp/exp.h"
#include "naive.h"
#include "tiled_softmax.h"

#define Br FUSED_TILE_ROWS /* query rows of a tile */
#define Bc 256             /* keys of a tile: Br x Bc scores are 128 KiB and stay in the L2 cache */

/* What one thread works in. */
typedef struct Tile {
    float *Q_i; /* [Br][d] */
    float *O_i; /* [Br][d], not yet divided by l_i */
    float *K_j; /* [Bc][d] */
    float *V_j; /* [Bc][d] */
    float *S;   /* [Br][Bc] scores, then probabilities */
    SoftmaxState state[Br];
} Tile;

/* The online update of one tile: the state moves from "keys before j" to "keys up to j", the
 * scores become probabilities relative to the new maximum, and the output follows it. */
static void update_rows(Tile *t, int64_t rows, int64_t cols, int64_t d)
{
    for (int64_t r = 0; r < rows; r++) {
        float *P_r = t->S + r * Bc;
        float *O_r = t->O_i + r * d;
        SoftmaxState *state = &t->state[r];
        float tile_max = row_max(P_r, cols);
        float m_new = state->m > tile_max ? state->m : tile_max;
        float shift = softmax_shift(m_new);
        float alpha = expf(state->m - shift);
        state->l = state->l * alpha + softmax_exp_row(P_r, P_r, cols, shift);
        state->m = m_new;
        for (int64_t x = 0; x < d; x++)
            O_r[x] *= alpha;
    }
}

/* All keys for one tile of queries i .. i+rows-1. */
static void attend_tile(const AttnArgs *args, Tile *t, int64_t b, int64_t h, int64_t i)
{
    const AttnShape *n = &args->shape;
    int64_t d = n->d, kv_head = naive_kv_head(n, h);
    int64_t rows = n->Nq - i < Br ? n->Nq - i : Br;
    AttnRange range_q = attn_range(args->positions_q, i, rows);

    naive_load_rows(&args->Q, b, h, i, rows, t->Q_i);
    for (int64_t r = 0; r < rows; r++)
        t->state[r] = softmax_empty();
    for (int64_t e = 0; e < rows * d; e++)
        t->O_i[e] = 0.0f;

    for (int64_t j = 0; j < n->Nk; j += Bc) {
        int64_t cols = n->Nk - j < Bc ? n->Nk - j : Bc;
        AttnRange range_k = attn_range(args->positions_k, j, cols);
        /* A tile that no query of this one may look at costs nothing, not even its loads. */
        if (attn_tile_class(args->rule, range_q, range_k) == ATTN_TILE_SKIP)
            continue;
        naive_load_rows(&args->K, b, kv_head, j, cols, t->K_j);
        naive_load_rows(&args->V, b, kv_head, j, cols, t->V_j);
        naive_scores(args, t->Q_i, i, rows, t->K_j, j, cols, t->S, Bc);
        update_rows(t, rows, cols, d);
        naive_weighted_sum(t->S, Bc, rows, cols, t->V_j, d, 1.0f, t->O_i);
    }

    for (int64_t r = 0; r < rows; r++) {
        float inverse = softmax_inverse(t->state[r]);
        for (int64_t x = 0; x < d; x++)
            t->O_i[r * d + x] *= inverse;
        args->lse[(b * n->H + h) * n->Nq + i + r] = softmax_lse(t->state[r]);
    }
    naive_store_rows(&args->O, b, h, i, rows, t->O_i);
}

AttnStatus attention_v4_fused_rows(const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    int64_t d = n->d, Tr = (n->Nq + Br - 1) / Br;
    int64_t tiles = n->B * n->H * Tr;
    int threads = tiles < args->threads ? (int)tiles : args->threads;
    int64_t floats = 2 * (Br + Bc) * d + Br * Bc; /* of one thread: no N in it */
    float *workspace = workspace_alloc((size_t)(threads * floats) * sizeof *workspace);
    if (!workspace)
        return ATTN_NO_MEMORY;

#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        Tile t;
        t.Q_i = workspace + thread * floats;
        t.O_i = t.Q_i + Br * d;
        t.K_j = t.O_i + Br * d;
        t.V_j = t.K_j + Bc * d;
        t.S = t.V_j + Bc * d;
        /* Neighbouring tiles go to different threads: under a causal mask the last tiles of a head
         * see many more keys than the first. */
        for (int64_t tile = thread; tile < tiles; tile += threads)
            attend_tile(args, &t, tile / (n->H * Tr), tile / Tr % n->H, tile % Tr * Br);
    }
    workspace_free(workspace);
    return ATTN_OK;
}
