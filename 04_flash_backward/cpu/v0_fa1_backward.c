/* SPDX-License-Identifier: MIT
 *
 * v0_fa1_backward: FlashAttention's backward pass, Algorithm 4 as published (Dao et al., arXiv
 * 2205.14135).
 *
 *     dQ = 0                                                      in slow memory
 *     for each tile j of Bc keys:
 *         load K_j V_j                dK_j = 0, dV_j = 0          in fast memory
 *         for each tile i of Br queries:
 *             load Q_i O_i dO_i dQ_i l_i m_i
 *             S       = scale * Q_i K_j^T        P  = exp(S - m_i) / l_i
 *             dV_j   += P^T dO_i                 dP = dO_i V_j^T
 *             delta_i = rowsum(dO_i * O_i)       dS = P * (dP - delta_i)
 *             dQ_i   += scale * dS K_j           store dQ_i
 *             dK_j   += scale * dS^T Q_i
 *         store dK_j dV_j
 *
 * S and P are computed a second time, which costs one product of five, and in exchange nothing of
 * size N x N is ever kept. Two numbers of each row are enough to get P back, and even they can be
 * one: exp(S - m) / l = exp(S - (m + ln l)) = exp(S - lse).
 *
 * The prices of this form: dQ goes back to slow memory for every tile of keys, O is read as often
 * only to find delta again, and two tiles of keys may not run at the same time, because both add to
 * the same dQ. So threads take whole kv heads.
 *
 * Interface: the rung of stage 04 with keys outside and dQ in slow memory; it takes a mask and a
 * softcap too, and what moves is counted.
 */
#include "problem.h"
#include "units/exp_rows.h"
#include "units/gradient_tiles.h"
#include "units/scores.h"

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* S a second time, P by lse alone, and dS = P * (dP - delta), times the slope of a softcap. */
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

/* One step of the inner loop, for query head h. dQ [Nq][d] is slow memory of this head. */
static void visit_tile(const Problem *p, GradientTiles *t, float *dQ, int b, int h, int i, int j,
                       int cols)
{
    const ScoreRule rule = {p->scale, p->softcap, p->from, p->to, p->mask, p->Nk};
    const int d = p->d, rows = smaller(TILE_ROWS, p->Nq - i);
    const int64_t ld = p->H * d, query = query_row(p, b, h, i);
    if (sees_nothing(&rule, i, rows, j, cols))
        return;
    load_tile(&t->door, t->Q_i, (const float *)p->Q + query, ld, rows);
    load_tile(&t->door, t->O_i, (const float *)p->O + query, ld, rows);
    load_tile(&t->door, t->dO_i, (const float *)p->dO + query, ld, rows);
    load_tile(&t->door, t->dQ_i, dQ + (int64_t)i * d, d, rows);
    load_floats(&t->door, t->lse_i, p->lse + lse_row(p, b, h, i), rows);
    clear_empty(t, rows);

    for (int r = 0; r < rows; r++) {
        t->delta_i[r] = 0.0f;
        for (int x = 0; x < d; x++)
            t->delta_i[r] += t->dO_i[r * d + x] * t->O_i[r * d + x];
    }
    recompute_tile(&rule, t, i, rows, j, cols);
    matmul(TRANSPOSED, AS_IS, cols, d, rows, 1.0f, t->P, cols, t->dO_i, d, 1.0f, t->dV_j, d);
    matmul(AS_IS, AS_IS, rows, d, cols, p->scale, t->dS, cols, t->K_j, d, 1.0f, t->dQ_i, d);
    matmul(TRANSPOSED, AS_IS, cols, d, rows, p->scale, t->dS, cols, t->Q_i, d, 1.0f, t->dK_j, d);

    store_tile(&t->door, dQ + (int64_t)i * d, d, t->dQ_i, rows);
}

/* dQ to its tensor at the end: through fast memory like everything else. */
static void finish_queries(const Problem *p, GradientTiles *t, const float *dQ, int b, int h)
{
    for (int i = 0; i < p->Nq; i += TILE_ROWS) {
        const int rows = smaller(TILE_ROWS, p->Nq - i);
        load_tile(&t->door, t->dQ_i, dQ + (int64_t)i * p->d, p->d, rows);
        store_tile(&t->door, (float *)p->dQ + query_row(p, b, h, i), p->H * p->d, t->dQ_i, rows);
    }
}

/* One kv head with the query heads of its group. dQ [group][Nq][d] */
static void backward_group(const Problem *p, GradientTiles *t, float *dQ, int b, int h_kv)
{
    const int group = p->H / p->Hkv;
    const int64_t ld = p->Hkv * p->d, floats = (int64_t)p->Nq * p->d; /* of a query head */
    start_floats(t, dQ, group * floats);
    for (int j = 0; j < p->Nk; j += TILE_KEYS) {
        const int cols = smaller(TILE_KEYS, p->Nk - j);
        const int64_t key = key_row(p, b, h_kv, j);
        load_tile(&t->door, t->K_j, (const float *)p->K + key, ld, cols);
        load_tile(&t->door, t->V_j, (const float *)p->V + key, ld, cols);
        memset(t->dK_j, 0, (size_t)(cols * p->d) * sizeof *t->dK_j);
        memset(t->dV_j, 0, (size_t)(cols * p->d) * sizeof *t->dV_j);
        for (int g = 0; g < group; g++) /* all of them read K_j and V_j: they share the sums */
            for (int i = 0; i < p->Nq; i += TILE_ROWS)
                visit_tile(p, t, dQ + g * floats, b, h_kv * group + g, i, j, cols);
        store_tile(&t->door, (float *)p->dK + key, ld, t->dK_j, cols);
        store_tile(&t->door, (float *)p->dV + key, ld, t->dV_j, cols);
    }
    for (int g = 0; g < group; g++)
        finish_queries(p, t, dQ + g * floats, b, h_kv * group + g);
}

/* Of a thread: its tiles, and dQ of the group that it works on. */
static int64_t thread_floats(const Problem *p)
{
    return gradient_floats(p->d) + (int64_t)p->H / p->Hkv * p->Nq * p->d;
}

static void backward(const Problem *p)
{
    const int heads = p->B * p->Hkv, threads = smaller(heads, p->threads);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        float *mine = (float *)p->work + thread * thread_floats(p);
        GradientTiles tiles = place_gradients(mine, p->d);
        for (int head = thread; head < heads; head += threads)
            backward_group(p, &tiles, mine + gradient_floats(p->d), head / p->Hkv, head % p->Hkv);
        report_moved(&tiles.door);
    }
}

static int64_t work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * smaller(p->B * p->Hkv, p->threads) * thread_floats(p);
}

static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){TILE_ROWS, TILE_KEYS};
}

RUNG(flash_backward, v0_fa1_backward,
     "recompute S and P tile by tile, dQ back to slow memory each step", F32, NULL, backward, work,
     tiles, FULL);
