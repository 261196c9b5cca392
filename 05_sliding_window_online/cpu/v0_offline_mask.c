/* SPDX-License-Identifier: MIT
 *
 * v0_offline_mask: attention with a window, the way one writes it down first.
 *
 *     hidden_ij = may query i not see key j?           [Nq][Nk], for all heads
 *     S = scale * Q K^T, capped, -inf where hidden     [Nq][Nk], all of it
 *     P = softmax of each row                          in its place
 *     W = P clipped and dropped                        in its place
 *     O = W V
 *
 * Everything that stage 05 knows is a line here, and every line works on whole matrices: the others
 * are compared with this. Its two products are OpenBLAS's, its softmax is a vector loop, its rows
 * are shared by all threads. And yet a window of 256 keys costs what no window costs: a masked
 * score is computed, stored, read, exponentiated to 0 and multiplied with V like any other.
 *
 * Backward:
 *
 *     P = exp(S - lse)             dW = dO V^T                     dP by weights.h
 *     dS = P (dP - delta)          delta_i = sum_j P_ij dP_ij
 *     dQ = scale dS K              dK = scale dS^T Q               dV = W^T dO
 *
 * Memory: 5 N^2 bytes forward, 9 N^2 backward. Large heads go one after the other, small ones are
 * dealt out to the threads, which then have matrices of their own. Several sequences in one tensor
 * are one more thing that the mask hides.
 *
 * Interface: sliding_window_v0_offline_mask, sliding_window_v0_offline_mask_backward
 * (sliding_window.h).
 */
#include <math.h>
#include <string.h>

#include "attention/backward/backward_library.h"
#include "attention/rows.h"
#include "attention/team.h"
#include "attention/window/cpu/weights.h"
#include "units/exp.h"

/* A small head costs less than that threads wait for each other: on a busy machine a wait takes as
 * long as the system lets another program run. Few heads are shared from TINY multiply-adds of a
 * product on, many heads when a matrix of theirs is larger than SMALL. */
#define TINY  32768
#define SMALL 131072

/* The matrices of one head in work. */
typedef struct Matrices {
    float *S;         /* [Nq][Nk] S, then P, then W */
    float *dS;        /* [Nq][Nk] backward: dW, then dP, then dS */
    float *Q, *O;     /* [Nq][d] */
    float *K, *V;     /* [Nk][d] */
    float *dO;        /* [Nq][d] */
    float *row;       /* [threads][Nk] */
    int64_t *index_k; /* [Nk] index of a key within its sequence */
    uint8_t *hidden;  /* [Nq][Nk] */
    void *memory;
} Matrices;

static size_t head_floats(const AttnShape *n, int backward)
{
    const int64_t Q = n->Nq * n->d, K = n->Nk * n->d, pairs = n->Nq * n->Nk;
    return (size_t)(backward ? 2 * pairs + 3 * Q + 2 * K : pairs + 2 * Q + 2 * K);
}

/* Those of `heads` heads. The size of the memory is asked for first, since Linux promises what it
 * has not. */
static AttnStatus make_matrices(const AttnArgs *args, int backward, int heads, Matrices *m)
{
    const size_t Nq = (size_t)args->shape.Nq, Nk = (size_t)args->shape.Nk;
    const size_t own = (size_t)heads * head_floats(&args->shape, backward);
    const size_t floats = own + (size_t)args->threads * Nk;
    const size_t bytes = Nk * sizeof(int64_t) + floats * sizeof(float) + Nq * Nk;
    m->memory = memory_enough_for(bytes) ? workspace_alloc(bytes) : NULL;
    if (!m->memory)
        return ATTN_NO_MEMORY;
    m->index_k = m->memory;
    m->S = (float *)(m->index_k + Nk);
    m->row = m->S + own;
    m->hidden = (uint8_t *)(m->S + floats);
    return ATTN_OK;
}

/* Those of head number `head` among them. */
static Matrices matrices_of(const AttnArgs *args, int backward, const Matrices *all, int head)
{
    const int64_t pairs = args->shape.Nq * args->shape.Nk, Q_d = args->shape.Nq * args->shape.d;
    Matrices m = *all;
    m.S += (size_t)head * head_floats(&args->shape, backward);
    m.dS = m.S + pairs;
    m.Q = m.S + (backward ? 2 : 1) * pairs;
    m.O = m.Q + Q_d;
    m.dO = m.O + Q_d;
    m.K = m.O + (backward ? 2 : 1) * Q_d;
    m.V = m.K + args->shape.Nk * args->shape.d;
    return m;
}

/* The mask of all heads. Stage 01's attn_mask_rows finds a row's visible keys by halving, into a
 * row of floats. */
static void fill_hidden(const AttnArgs *args, const Matrices *m)
{
    const int64_t Nk = args->shape.Nk;
    const int threads = args->threads;
    int64_t sequence;
    for (int64_t j = 0; j < Nk; j++)
        m->index_k[j] = window_index(args->positions_k, j, &sequence);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const AttnTeam team = attn_team(&args->shape, 1);
        float *row = m->row + team.thread * Nk;
        for (int64_t i = team.i0; i < team.i1; i++) {
            memset(row, 0, (size_t)Nk * sizeof *row);
            attn_mask_rows(args, i, 1, 0, Nk, row, Nk);
            for (int64_t j = 0; j < Nk; j++)
                m->hidden[i * Nk + j] = row[j] != 0.0f;
        }
    }
}

/* S = scale * Q K^T, rows i0 .. i1-1. */
static void multiply(const AttnArgs *args, const Matrices *m, int64_t i0, int64_t i1)
{
    const int64_t Nk = args->shape.Nk, d = args->shape.d;
    matmul(AS_IS, TRANSPOSED, i1 - i0, Nk, d, args->scale, m->Q + i0 * d, d, m->K, d, 0.0f,
           m->S + i0 * Nk, Nk);
}

/* The cap, then the mask, in one row of S while the softmax has it in the cache. A select, not an
 * addition of -inf: a hidden score may be infinite, and inf - inf is NaN. */
static void cap_and_hide(const AttnArgs *args, const Matrices *m, int64_t i)
{
    const int64_t Nk = args->shape.Nk;
    const float cap = args->softcap;
    float *S_i = m->S + i * Nk;
    const uint8_t *hidden = m->hidden + i * Nk;
    for (int64_t j = 0; cap > 0.0f && j < Nk; j++)
        S_i[j] = cap * tanhf(S_i[j] / cap);
    for (int64_t j = 0; j < Nk; j++)
        S_i[j] = hidden[j] ? -INFINITY : S_i[j];
}

/* Where query i of head (b, h) stands for the random numbers. */
static WeightPlace place_of(const AttnArgs *args, const Matrices *m, int64_t b, int64_t h,
                            int64_t i)
{
    int64_t sequence;
    const int64_t index = window_index(args->positions_q, i, &sequence);
    return (WeightPlace){b + sequence, h, index, m->index_k};
}

/* --- forward -----------------------------------------------------------------------------------*/

/* Rows i0 .. i1-1 of one head, from S to O. lse [Nq] */
static void forward_rows(const AttnArgs *args, const Matrices *m, int64_t b, int64_t h, float *lse,
                         int64_t i0, int64_t i1)
{
    const WeightRule rule = weight_rule(args);
    const int64_t Nk = args->shape.Nk, d = args->shape.d;
    if (i0 == i1)
        return;
    multiply(args, m, i0, i1);
    for (int64_t i = i0; i < i1; i++) {
        float *S_i = m->S + i * Nk, m_i, l_i, inverse;
        cap_and_hide(args, m, i);
        m_i = row_max(S_i, Nk);
        if (m_i == -INFINITY)
            m_i = 0.0f; /* an empty row: exp(-inf - 0) = 0, where -inf - -inf would be NaN */
        l_i = softmax_exp_row(S_i, S_i, Nk, m_i);
        lse[i] = m_i + logf(l_i); /* log(0) = -inf */
        inverse = l_i == 0.0f ? 0.0f : 1.0f / l_i;
        for (int64_t j = 0; j < Nk; j++)
            S_i[j] *= inverse;
        if (rule.clips || rule.drops)
            weigh_row(&rule, place_of(args, m, b, h, i), Nk, S_i, S_i);
    }
    attn_weighted_sum(m->S + i0 * Nk, Nk, i1 - i0, Nk, m->V, d, 0.0f, m->O + i0 * d);
}

static void forward_head(const AttnArgs *args, const Matrices *m, int64_t b, int64_t h,
                         const AttnTeam *team)
{
    const AttnShape *n = &args->shape;
    const int64_t i0 = team->i0, j0 = team->j0, rows = team->i1 - i0, keys = team->j1 - j0;
    attn_team_wait(team); /* for those who still read K and V of the head before */
    attn_load_rows(&args->K, b, attn_kv_head(n, h), j0, keys, m->K + j0 * n->d);
    attn_load_rows(&args->V, b, attn_kv_head(n, h), j0, keys, m->V + j0 * n->d);
    attn_team_wait(team);
    attn_load_rows(&args->Q, b, h, i0, rows, m->Q + i0 * n->d);
    forward_rows(args, m, b, h, args->lse + (b * n->H + h) * n->Nq, i0, team->i1);
    attn_store_rows(&args->O, b, h, i0, rows, m->O + i0 * n->d);
}

/* --- backward ----------------------------------------------------------------------------------*/

/* One row: S_i [Nk] becomes W, dS_i [Nk] = dW becomes dS. row [Nk] */
static void gradient_row(const AttnArgs *args, const WeightRule *rule, WeightPlace at, float lse_i,
                         float delta_i, float *S_i, float *dS_i, float *row)
{
    const int64_t Nk = args->shape.Nk;
    const float cap = args->softcap;
    float *P_i = row;
    softmax_exp_row(S_i, P_i, Nk, lse_i == -INFINITY ? 0.0f : lse_i);
    weigh_row_backward(rule, at, Nk, P_i, dS_i);
    if (rule->clips) {
        delta_i = 0.0f;
        for (int64_t j = 0; j < Nk; j++)
            delta_i += P_i[j] * dS_i[j];
    }
    for (int64_t j = 0; j < Nk; j++)
        dS_i[j] = P_i[j] * (dS_i[j] - delta_i);
    for (int64_t j = 0; cap > 0.0f && j < Nk; j++) /* slope of the cap: 1 - tanh^2 */
        dS_i[j] *= S_i[j] == -INFINITY ? 0.0f : 1.0f - (S_i[j] / cap) * (S_i[j] / cap);
    weigh_row(rule, at, Nk, P_i, S_i);
}

/* Rows i0 .. i1-1 of W, dS and dQ. lse [Nq], dQ [Nq][H][d] */
static void backward_rows(const AttnArgs *args, const Matrices *m, int64_t b, int64_t h,
                          const float *lse, float *dQ, int part, int64_t i0, int64_t i1)
{
    const WeightRule rule = weight_rule(args);
    const int64_t Nk = args->shape.Nk, d = args->shape.d, ld_dQ = args->shape.H * d;
    if (i0 == i1)
        return;
    multiply(args, m, i0, i1);
    matmul(AS_IS, TRANSPOSED, i1 - i0, Nk, d, 1.0f, m->dO + i0 * d, d, m->V, d, 0.0f,
           m->dS + i0 * Nk, Nk); /* dW = dO V^T */
    for (int64_t i = i0; i < i1; i++) {
        float delta_i = 0.0f;
        cap_and_hide(args, m, i);
        for (int64_t x = 0; x < d; x++)
            delta_i += m->dO[i * d + x] * m->O[i * d + x];
        gradient_row(args, &rule, place_of(args, m, b, h, i), lse[i], delta_i, m->S + i * Nk,
                     m->dS + i * Nk, m->row + part * Nk);
    }
    matmul(AS_IS, AS_IS, i1 - i0, d, Nk, args->scale, m->dS + i0 * Nk, Nk, m->K, d, 0.0f,
           dQ + i0 * ld_dQ, ld_dQ);
}

/* The transposed products. A thread owns keys now, not queries, so all rows of W and dS have to be
 * there: backward_head waits for them.
 * Keys j0 .. j1-1 of dK and dV [Nk][Hkv][d], on top of what earlier heads of the group gave. */
static void backward_keys(const AttnArgs *args, const Matrices *m, float *dK, float *dV, int64_t j0,
                          int64_t j1)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    const int64_t ld = args->shape.Hkv * d;
    if (j0 == j1)
        return;
    matmul(TRANSPOSED, AS_IS, j1 - j0, d, Nq, 1.0f, m->S + j0, Nk, m->dO, d, 1.0f, dV + j0 * ld,
           ld);
    matmul(TRANSPOSED, AS_IS, j1 - j0, d, Nq, args->scale, m->dS + j0, Nk, m->Q, d, 1.0f,
           dK + j0 * ld, ld);
}

static void backward_head(const AttnArgs *args, const Matrices *m, int64_t b, int64_t h,
                          FlashSums sums, const AttnTeam *team)
{
    const AttnShape *n = &args->shape;
    const int64_t h_kv = attn_kv_head(n, h), d = n->d;
    const int64_t i0 = team->i0, j0 = team->j0, rows = team->i1 - i0, keys = team->j1 - j0;
    const int64_t q = (b * n->Nq * n->H + h) * d, k = (b * n->Nk * n->Hkv + h_kv) * d;
    const float *lse = args->lse + (b * n->H + h) * n->Nq;
    attn_load_rows(&args->K, b, h_kv, j0, keys, m->K + j0 * d);
    attn_load_rows(&args->V, b, h_kv, j0, keys, m->V + j0 * d);
    attn_team_wait(team); /* K and V are there, nobody reads the Q and dO before */
    attn_load_rows(&args->Q, b, h, i0, rows, m->Q + i0 * d);
    attn_load_rows(&args->O, b, h, i0, rows, m->O + i0 * d);
    attn_load_rows(&args->dO, b, h, i0, rows, m->dO + i0 * d);
    attn_clear_empty(lse + i0, rows, d, m->dO + i0 * d);
    backward_rows(args, m, b, h, lse, sums.dQ + q, team->thread, i0, team->i1);
    attn_team_wait(team);
    backward_keys(args, m, sums.dK + k, sums.dV + k, j0, team->j1);
}

/* --- all heads ---------------------------------------------------------------------------------*/

/* Of all batches: a query head, or, with sums, a kv head with its group in order. */
static void run_head(const AttnArgs *args, const FlashSums *sums, const Matrices *m, int64_t head,
                     const AttnTeam *team)
{
    const AttnShape *n = &args->shape;
    const int64_t group = n->H / n->Hkv;
    if (!sums)
        forward_head(args, m, head / n->H, head % n->H, team);
    for (int64_t g = 0; sums && g < group; g++)
        backward_head(args, m, head / n->Hkv, head % n->Hkv * group + g, *sums, team);
}

/* One parallel region for all heads: a region for each would be a wait for each. */
static AttnStatus run_heads(const AttnArgs *args, const FlashSums *sums)
{
    const AttnShape *n = &args->shape;
    const int64_t heads = n->B * (sums ? n->Hkv : n->H), pairs = n->Nq * n->Nk;
    const int threads = args->threads;
    const int shared = pairs >= TINY / n->d && (heads < 8 * threads || pairs > SMALL);
    Matrices all;
    if (make_matrices(args, sums != NULL, shared ? 1 : threads, &all) != ATTN_OK)
        return ATTN_NO_MEMORY;
    fill_hidden(args, &all);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const AttnTeam team = attn_team(n, shared);
        const Matrices m = matrices_of(args, sums != NULL, &all, shared ? 0 : team.thread);
        for (int64_t head = 0; shared && head < heads; head++)
            run_head(args, sums, &m, head, &team);
#pragma omp for schedule(dynamic)
        for (int64_t head = 0; head < (shared ? 0 : heads); head++)
            run_head(args, sums, &m, head, &team);
    }
    workspace_free(all.memory);
    return ATTN_OK;
}

static AttnStatus run_forward(const AttnArgs *args)
{
    return run_heads(args, NULL);
}

AttnStatus sliding_window_v0_offline_mask(const AttnArgs *args)
{
    return window_plain_run(args, run_forward);
}

static AttnStatus add_gradients(const AttnArgs *args, FlashSums sums)
{
    return run_heads(args, &sums);
}

AttnStatus sliding_window_v0_offline_mask_backward(const AttnArgs *args)
{
    return window_plain_backward(args, add_gradients);
}
