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
 * O(Br d + Bc d + Br Bc), whatever N is. K and V are read again for every tile of Br queries; stage
 * 03 asks how large Br should be and what a GPU gains.
 *
 * Interface:
 * - attention_v4_fused_rows: all masks, windows, segments, GQA, softcap, dtypes; args->threads
 *   threads over (batch, head, query tile).
 */
#include "alloc.h"
#include "exp.h"
#include "tensor.h"
#include "tiled_softmax.h"

#define Br 32 /* query rows of a tile */
#define Bc 64 /* keys of a tile: Br x Bc scores are 8 KiB and stay in L1 */

/* What one thread works in. */
typedef struct Tile {
    float *Q_i;  /* [Br][d] */
    float *K_jt; /* [d][Bc]: transposed, so that the inner loop runs over keys and vectorises */
    float *V_j;  /* [Bc][d] */
    float *S;    /* [Br][Bc] scores, then probabilities */
    float *O_i;  /* [Br][d], not yet divided by l_i */
    float *row;  /* [d] */
    SoftmaxState state[Br];
} Tile;

/* Scores of rows 0..rows-1 against keys 0..cols-1 of the tile, before scale and cap. */
static void tile_scores(const Tile *t, int64_t rows, int64_t d)
{
    for (int64_t r = 0; r < rows; r++) {
        float *S_r = t->S + r * Bc;
        for (int c = 0; c < Bc; c++)
            S_r[c] = 0.0f;
        for (int64_t x = 0; x < d; x++) {
            float q = t->Q_i[r * d + x];
            const float *k = t->K_jt + x * Bc;
            for (int c = 0; c < Bc; c++)
                S_r[c] += q * k[c];
        }
    }
}

/* Scale, cap and mask. In a clean tile nobody has to be asked who sees whom. */
static void tile_mask(const AttnArgs *args, const Tile *t, int64_t i, int64_t rows, int64_t j,
                      int64_t cols, int ask)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float *s = &t->S[r * Bc + c];
            *s = ask && !attn_sees(args, i + r, j + c) ? -INFINITY : attn_score(args, *s);
        }
}

/* The online update of one tile: state and output move from "keys before j" to "keys up to j". */
static void tile_update(Tile *t, int64_t rows, int64_t cols, int64_t d)
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
        for (int64_t c = 0; c < cols; c++) {
            const float *v = t->V_j + c * d;
            for (int64_t x = 0; x < d; x++)
                O_r[x] += P_r[c] * v[x];
        }
    }
}

static void tile_load_keys(const AttnArgs *args, Tile *t, int64_t b, int64_t kv_head, int64_t j,
                           int64_t cols)
{
    int64_t d = args->shape.d;
    for (int64_t c = 0; c < cols; c++) {
        tensor_read_row(&args->K, b, j + c, kv_head, t->row);
        for (int64_t x = 0; x < d; x++)
            t->K_jt[x * Bc + c] = t->row[x];
        tensor_read_row(&args->V, b, j + c, kv_head, t->V_j + c * d);
    }
}

/* All keys for one tile of queries i .. i+rows-1. */
static void attend_tile(const AttnArgs *args, Tile *t, int64_t b, int64_t h, int64_t i)
{
    const AttnShape *n = &args->shape;
    int64_t d = n->d, kv_head = h / (n->H / n->Hkv);
    int64_t rows = n->Nq - i < Br ? n->Nq - i : Br;
    AttnRange range_q = attn_range(args->positions_q, i, rows);

    for (int64_t r = 0; r < rows; r++) {
        tensor_read_row(&args->Q, b, i + r, h, t->Q_i + r * d);
        t->state[r] = softmax_empty();
    }
    for (int64_t e = 0; e < rows * d; e++)
        t->O_i[e] = 0.0f;

    for (int64_t j = 0; j < n->Nk; j += Bc) {
        int64_t cols = n->Nk - j < Bc ? n->Nk - j : Bc;
        AttnTile class = attn_tile_class(args->rule, range_q,
                                         attn_range(args->positions_k, j, cols));
        if (class == ATTN_TILE_SKIP)
            continue;
        tile_load_keys(args, t, b, kv_head, j, cols);
        tile_scores(t, rows, d);
        tile_mask(args, t, i, rows, j, cols, class == ATTN_TILE_MASKED || args->mask);
        tile_update(t, rows, cols, d);
    }

    for (int64_t r = 0; r < rows; r++) {
        float inverse = softmax_inverse(t->state[r]);
        for (int64_t x = 0; x < d; x++)
            t->O_i[r * d + x] *= inverse;
        tensor_write_row(&args->O, b, i + r, h, t->O_i + r * d);
        args->lse[(b * n->H + h) * n->Nq + i + r] = softmax_lse(t->state[r]);
    }
}

AttnStatus attention_v4_fused_rows(const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    int64_t d = n->d, Tr = (n->Nq + Br - 1) / Br;
    int64_t tiles = n->B * n->H * Tr;
    int threads = tiles < args->threads ? (int)tiles : args->threads;
    int64_t floats = (2 * Br + 2 * Bc + 1) * d + Br * Bc; /* of one thread */
    float *workspace = workspace_alloc((size_t)(threads * floats) * sizeof *workspace);
    if (!workspace)
        return ATTN_NO_MEMORY;
    /* The last tile has fewer keys than the loops of tile_scores compute: the rest must be
     * numbers, because NaN is what the allocator leaves. */
    for (int64_t e = 0; e < threads * floats; e++)
        workspace[e] = 0.0f;

#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        Tile t;
        t.Q_i = workspace + thread * floats;
        t.K_jt = t.Q_i + Br * d;
        t.V_j = t.K_jt + Bc * d;
        t.O_i = t.V_j + Bc * d;
        t.row = t.O_i + Br * d;
        t.S = t.row + d;
        /* Neighbouring tiles go to different threads: under a causal mask the late ones are long.
         */
        for (int64_t tile = thread; tile < tiles; tile += threads)
            attend_tile(args, &t, tile / (n->H * Tr), tile / Tr % n->H, tile % Tr * Br);
    }
    workspace_free(workspace);
    return ATTN_OK;
}
