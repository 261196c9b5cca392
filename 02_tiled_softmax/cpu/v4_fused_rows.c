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
 * Memory for one thread: an output tile and a score tile, that is O(Br d + Br Bc), whatever N is:
 * products take tiles of Q, K and V where they lie. K and V are read again for every tile of Br
 * queries; stage 03 asks how large Br should be and what a GPU gains.
 *
 * Interface: the rung of stage 02 that has no softmax alone: threads take query tiles.
 */
#include "problem.h"
#include "units/exp_rows.h"
#include "units/scores.h"
#include "units/softmax_state.h"

#define Br 128 /* query rows of a tile: K and V are read once for each */
#define Bc 256 /* keys of a tile: Br x Bc scores are 128 KiB and stay in the L2 cache */

/* What one thread works in. */
typedef struct Tile {
    float *O_i; /* [Br][d], unnormalised */
    float *S;   /* [Br][Bc] scores, then probabilities */
    SoftmaxState state[Br];
} Tile;

/* The online update of one tile: the state moves from "keys before j" to "keys up to j", the
 * scores become probabilities relative to the new maximum, and the output follows it. */
static void update_rows(Tile *t, int rows, int cols, int d)
{
    for (int r = 0; r < rows; r++) {
        float *P_r = t->S + r * Bc;
        float *O_r = t->O_i + r * d;
        SoftmaxState *state = &t->state[r];
        float tile_max = row_max(P_r, cols);
        float m_new = state->m > tile_max ? state->m : tile_max;
        float shift = softmax_shift(m_new);
        float alpha = expf(state->m - shift);
        state->l = state->l * alpha + softmax_exp_row(P_r, P_r, cols, shift);
        state->m = m_new;
        for (int x = 0; x < d; x++)
            O_r[x] *= alpha;
    }
}

/* All keys for one tile of queries i .. i+rows-1. */
static void attend_tile(const Problem *p, Tile *t, int b, int h, int i)
{
    const ScoreRule rule = {p->scale, p->softcap, p->from, p->to, p->mask, p->Nk};
    const int d = p->d, rows = p->Nq - i < Br ? p->Nq - i : Br, h_kv = kv_head(p, h);
    const int64_t ld_q = (int64_t)p->H * d, ld_k = (int64_t)p->Hkv * d;
    const float *Q_i = (const float *)p->Q + query_row(p, b, h, i);
    float *O = (float *)p->O + query_row(p, b, h, i);
    for (int r = 0; r < rows; r++)
        t->state[r] = softmax_empty();
    for (int e = 0; e < rows * d; e++)
        t->O_i[e] = 0.0f;

    for (int j = 0; j < p->Nk; j += Bc) {
        const int cols = p->Nk - j < Bc ? p->Nk - j : Bc;
        const int64_t key = key_row(p, b, h_kv, j);
        /* A tile that no query of this one may look at costs nothing, not even its loads. */
        if (sees_nothing(&rule, i, rows, j, cols))
            continue;
        score_block(&rule, Q_i, ld_q, i, rows, (const float *)p->K + key, ld_k, j, cols, d, t->S,
                    Bc);
        update_rows(t, rows, cols, d);
        matmul(AS_IS, AS_IS, rows, d, cols, 1.0f, t->S, Bc, (const float *)p->V + key, ld_k, 1.0f,
               t->O_i, d);
    }

    for (int r = 0; r < rows; r++) {
        const float inverse = softmax_inverse(t->state[r]);
        for (int x = 0; x < d; x++)
            O[r * ld_q + x] = t->O_i[r * d + x] * inverse;
        p->lse[lse_row(p, b, h, i + r)] = softmax_lse(t->state[r]);
    }
}

/* Floats of one thread: there is no N in them. */
static int64_t tile_floats(const Problem *p)
{
    return Br * p->d + Br * Bc;
}

static void forward(const Problem *p)
{
    const int Tr = (p->Nq + Br - 1) / Br, tiles = p->B * p->H * Tr;
#pragma omp parallel for num_threads(p->threads) schedule(static)
    for (int thread = 0; thread < p->threads; thread++) {
        Tile t;
        t.O_i = (float *)p->work + thread * tile_floats(p);
        t.S = t.O_i + Br * p->d;
        /* Neighbouring tiles go to different threads: under a causal mask the last tiles of a head
         * see many more keys than the first. */
        for (int tile = thread; tile < tiles; tile += p->threads)
            attend_tile(p, &t, tile / (p->H * Tr), tile / Tr % p->H, tile % Tr * Br);
    }
}

static int64_t work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * p->threads * tile_floats(p);
}

static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){Br, Bc};
}

RUNG(tiled_softmax, v4_fused_rows, "attention with the online state: one tile of scores exists",
     F32, forward, NULL, work, tiles, FULL);
