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
 * Memory: 5 N^2 bytes forward, 9 N^2 backward. Heads go one after the other. Several sequences in
 * one tensor are one more thing that the mask hides.
 *
 * Interface: sliding_window_v0_offline_mask, sliding_window_v0_offline_mask_backward
 * (sliding_window.h).
 */
#include <math.h>
#include <string.h>

#include "exp/exp.h"
#include "library/backward_library.h"
#include "library/cpu/weights.h"
#include "attention/rows.h"

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

/* The size of the memory is asked for first, since Linux promises what it has not. */
static AttnStatus make_matrices(const AttnArgs *args, int backward, Matrices *m)
{
    const size_t Nq = (size_t)args->shape.Nq, Nk = (size_t)args->shape.Nk;
    const size_t d = (size_t)args->shape.d, pairs = Nq * Nk;
    const size_t floats = (backward ? 2 : 1) * pairs + (backward ? 3 : 2) * Nq * d + 2 * Nk * d +
                          (size_t)args->threads * Nk;
    const size_t bytes = Nk * sizeof(int64_t) + floats * sizeof(float) + pairs;
    m->memory = memory_enough_for(bytes) ? workspace_alloc(bytes) : NULL;
    if (!m->memory)
        return ATTN_NO_MEMORY;
    m->index_k = m->memory;
    m->S = (float *)(m->index_k + Nk);
    m->dS = m->S + pairs;
    m->Q = m->S + (backward ? 2 : 1) * pairs;
    m->O = m->Q + Nq * d;
    m->dO = m->O + Nq * d;
    m->K = m->O + (backward ? 2 : 1) * Nq * d;
    m->V = m->K + Nk * d;
    m->row = m->V + Nk * d;
    m->hidden = (uint8_t *)(m->row + (size_t)args->threads * Nk);
    return ATTN_OK;
}

/* Where piece `part` of `parts` nearly equal pieces of 0 .. n begins. */
static int64_t part_start(int64_t n, int part, int parts)
{
    return n * part / parts;
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
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        float *row = m->row + part * Nk;
        for (int64_t i = part_start(args->shape.Nq, part, threads);
             i < part_start(args->shape.Nq, part + 1, threads); i++) {
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

static void forward_head(const AttnArgs *args, const Matrices *m, int64_t b, int64_t h, float *lse)
{
    const AttnShape *n = &args->shape;
    const int threads = args->threads;
    attn_load_rows(&args->Q, b, h, 0, n->Nq, m->Q);
    attn_load_rows(&args->K, b, attn_kv_head(n, h), 0, n->Nk, m->K);
    attn_load_rows(&args->V, b, attn_kv_head(n, h), 0, n->Nk, m->V);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++)
        forward_rows(args, m, b, h, lse, part_start(n->Nq, part, threads),
                     part_start(n->Nq, part + 1, threads));
    attn_store_rows(&args->O, b, h, 0, n->Nq, m->O);
}

static AttnStatus run_forward(const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    Matrices m;
    if (make_matrices(args, 0, &m) != ATTN_OK)
        return ATTN_NO_MEMORY;
    fill_hidden(args, &m);
    for (int64_t bh = 0; bh < n->B * n->H; bh++)
        forward_head(args, &m, bh / n->H, bh % n->H, args->lse + bh * n->Nq);
    workspace_free(m.memory);
    return ATTN_OK;
}

AttnStatus sliding_window_v0_offline_mask(const AttnArgs *args)
{
    return window_plain_run(args, run_forward);
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
 * there: the end of the parallel loop before this one waits for them.
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

/* dQ [Nq][H][d], dK and dV [Nk][Hkv][d] begin with this head's first row. */
static void backward_head(const AttnArgs *args, const Matrices *m, int64_t b, int64_t h,
                          const float *lse, float *dQ, float *dK, float *dV)
{
    const AttnShape *n = &args->shape;
    const int threads = args->threads;
    attn_load_rows(&args->Q, b, h, 0, n->Nq, m->Q);
    attn_load_rows(&args->K, b, attn_kv_head(n, h), 0, n->Nk, m->K);
    attn_load_rows(&args->V, b, attn_kv_head(n, h), 0, n->Nk, m->V);
    attn_load_rows(&args->O, b, h, 0, n->Nq, m->O);
    attn_load_rows(&args->dO, b, h, 0, n->Nq, m->dO);
    attn_clear_empty(lse, n->Nq, n->d, m->dO);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++)
        backward_rows(args, m, b, h, lse, dQ, part, part_start(n->Nq, part, threads),
                      part_start(n->Nq, part + 1, threads));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++)
        backward_keys(args, m, dK, dV, part_start(n->Nk, part, threads),
                      part_start(n->Nk, part + 1, threads));
}

static AttnStatus add_gradients(const AttnArgs *args, FlashSums sums)
{
    const AttnShape *n = &args->shape;
    Matrices m;
    if (make_matrices(args, 1, &m) != ATTN_OK)
        return ATTN_NO_MEMORY;
    fill_hidden(args, &m);
    for (int64_t bh = 0; bh < n->B * n->H; bh++) {
        const int64_t b = bh / n->H, h = bh % n->H;
        const int64_t q = (b * n->Nq * n->H + h) * n->d;
        const int64_t k = (b * n->Nk * n->Hkv + attn_kv_head(n, h)) * n->d;
        backward_head(args, &m, b, h, args->lse + bh * n->Nq, sums.dQ + q, sums.dK + k,
                      sums.dV + k);
    }
    workspace_free(m.memory);
    return ATTN_OK;
}

AttnStatus sliding_window_v0_offline_mask_backward(const AttnArgs *args)
{
    return window_plain_backward(args, add_gradients);
}
