/* SPDX-License-Identifier: MIT
 *
 * v1_blas: the same three lines, as two matrix products and a softmax.
 *
 * S = Q K^T and O = P V are products of matrices, and a BLAS runs those near the peak of the
 * machine: it keeps tiles in registers and caches, which the loops of v0 do not. What is left to
 * us is the softmax between them, with the vector exp of common/exp/exp.h.
 *
 * Each row is normalised after the second product: sum_j (p_ij / l_i) V_j = (sum_j p_ij V_j) / l_i
 * costs d divisions a row instead of Nk.
 *
 * Threads take whole heads; where large heads do not divide among the threads, all of them share
 * one head after the other by rows. Memory: one Nq x Nk matrix for each head in work (backward:
 * two).
 * All of it goes to memory and comes back between the steps, and that is what separates this
 * variant from the speed of a single large product.
 *
 * Interface: naive_v1_blas, naive_v1_blas_backward (naive.h).
 */
#include <math.h>

#include "exp/exp.h"
#include "naive.h"
#include "naive_team.h"

/* Multiply-adds of one product below which a head costs less than that threads wait for each
 * other: on a busy machine a wait takes as long as the system lets another program run. */
#define SHARED_ABOVE 32768

/* A thread with a head of its own never waits, so that is better, unless the last round of heads
 * would leave many threads without work. */
static int heads_are_shared(const AttnShape *shape, int threads, int64_t heads)
{
    return heads % threads != 0 && heads < 8 * threads &&
           shape->Nq * shape->Nk >= SHARED_ABOVE / shape->d;
}

/* The float matrices of the head in work. */
typedef struct Head {
    float *Q, *O, *dO, *dQ; /* [Nq][d] */
    float *K, *V, *dK, *dV; /* [Nk][d] */
    float *S, *dS;          /* [Nq][Nk]; S becomes P in place, dS holds dP first */
    float *l;               /* [Nq] row sums */
    float *lse;             /* [Nq] of args */
} Head;

static size_t head_bytes(const AttnShape *shape, int backward)
{
    const size_t Nq = (size_t)shape->Nq, Nk = (size_t)shape->Nk, d = (size_t)shape->d;
    return sizeof(float) *
           (backward ? 2 * Nq * Nk + 4 * (Nq + Nk) * d : Nq * Nk + 2 * (Nq + Nk) * d + Nq);
}

/* Cuts `memory` of head_bytes into the matrices. */
static Head head_make(const AttnShape *shape, int backward, float *memory)
{
    const int64_t Nq_d = shape->Nq * shape->d, Nk_d = shape->Nk * shape->d;
    Head head = {0};
    head.S = memory;
    memory += shape->Nq * shape->Nk;
    head.Q = memory;
    head.O = head.Q + Nq_d;
    head.K = head.O + Nq_d;
    head.V = head.K + Nk_d;
    head.l = head.V + Nk_d;
    if (backward) {
        head.dK = head.V + Nk_d;
        head.dV = head.dK + Nk_d;
        head.dO = head.dV + Nk_d;
        head.dQ = head.dO + Nq_d;
        head.dS = head.dQ + Nq_d;
        head.l = NULL; /* backward has the lse, it needs no sums */
    }
    return head;
}

/* Rows i0 .. i1-1 of one head, from Q to O and lse. */
static void forward_rows(const AttnArgs *args, const Head *head, int64_t i0, int64_t i1)
{
    const int64_t Nk = args->shape.Nk, d = args->shape.d;
    float *S = head->S + i0 * Nk;
    int64_t i, x;
    if (i0 == i1)
        return;
    naive_scores(args, head->Q + i0 * d, i0, i1 - i0, head->K, 0, Nk, S, Nk);
    for (i = i0; i < i1; i++) {
        float *S_i = head->S + i * Nk;
        float m_i = row_max(S_i, Nk);
        if (m_i == -INFINITY)
            m_i = 0.0f; /* an empty row: exp(-inf - 0) = 0, where -inf - -inf would be NaN */
        head->l[i] = softmax_exp_row(S_i, S_i, Nk, m_i);
        head->lse[i] = m_i + logf(head->l[i]);
    }
    naive_weighted_sum(S, Nk, i1 - i0, Nk, head->V, d, 0.0f, head->O + i0 * d);
    for (i = i0; i < i1; i++) {
        const float inverse = head->l[i] == 0.0f ? 0.0f : 1.0f / head->l[i];
        for (x = 0; x < d; x++)
            head->O[i * d + x] *= inverse;
    }
}

static void forward_head(const AttnArgs *args, Head *head, int64_t b, int64_t h,
                         const NaiveTeam *team)
{
    const AttnShape *shape = &args->shape;
    const int64_t h_kv = naive_kv_head(shape, h), i0 = team->i0, j0 = team->j0;
    const int64_t rows = team->i1 - i0, keys = team->j1 - j0, d = shape->d;
    head->lse = args->lse + (b * shape->H + h) * shape->Nq;
    naive_team_wait(team); /* for those who still read K and V of the head before */
    naive_load_rows(&args->K, b, h_kv, j0, keys, head->K + j0 * d);
    naive_load_rows(&args->V, b, h_kv, j0, keys, head->V + j0 * d);
    naive_team_wait(team);
    naive_load_rows(&args->Q, b, h, i0, rows, head->Q + i0 * d);
    forward_rows(args, head, i0, team->i1);
    naive_store_rows(&args->O, b, h, i0, rows, head->O + i0 * d);
}

/* Rows i0 .. i1-1 of P, dS and dQ. */
static void backward_rows(const AttnArgs *args, const Head *head, int64_t i0, int64_t i1)
{
    const int64_t Nk = args->shape.Nk, d = args->shape.d;
    const float cap = args->softcap;
    int64_t i, j, x;
    if (i0 == i1)
        return;
    naive_scores(args, head->Q + i0 * d, i0, i1 - i0, head->K, 0, Nk, head->S + i0 * Nk, Nk);
    naive_matmul(NAIVE_NO, NAIVE_YES, i1 - i0, Nk, d, 1.0f, head->dO + i0 * d, d, head->V, d, 0.0f,
                 head->dS + i0 * Nk, Nk); /* dP = dO V^T */
    for (i = i0; i < i1; i++) {
        float *S_i = head->S + i * Nk, *dS_i = head->dS + i * Nk, delta_i = 0.0f;
        for (x = 0; x < d; x++)
            delta_i += head->dO[i * d + x] * head->O[i * d + x];
        for (j = 0; j < Nk; j++)
            dS_i[j] -= delta_i;
        for (j = 0; cap > 0.0f && j < Nk; j++) /* slope of the cap: 1 - tanh^2 */
            dS_i[j] *= S_i[j] == -INFINITY ? 0.0f : 1.0f - (S_i[j] / cap) * (S_i[j] / cap);
        softmax_exp_row(S_i, S_i, Nk, head->lse[i] == -INFINITY ? 0.0f : head->lse[i]);
        for (j = 0; j < Nk; j++)
            dS_i[j] *= S_i[j];
    }
    naive_matmul(NAIVE_NO, NAIVE_NO, i1 - i0, d, Nk, args->scale, head->dS + i0 * Nk, Nk, head->K,
                 d, 0.0f, head->dQ + i0 * d, d);
}

/* Keys j0 .. j1-1 of dK and dV: sums over all queries, added to those of earlier query heads. */
static void backward_keys(const AttnArgs *args, const Head *head, float beta, int64_t j0,
                          int64_t j1)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    if (j0 == j1)
        return;
    naive_matmul(NAIVE_YES, NAIVE_NO, j1 - j0, d, Nq, 1.0f, head->S + j0, Nk, head->dO, d, beta,
                 head->dV + j0 * d, d);
    naive_matmul(NAIVE_YES, NAIVE_NO, j1 - j0, d, Nq, args->scale, head->dS + j0, Nk, head->Q, d,
                 beta, head->dK + j0 * d, d);
}

/* One kv head with all query heads of its group, in order: the sums are the same every time. A
 * thread owns queries until S and dS are there, and then keys. */
static void backward_group(const AttnArgs *args, Head *head, int64_t b, int64_t h_kv,
                           const NaiveTeam *team)
{
    const AttnShape *shape = &args->shape;
    const int64_t Nq = shape->Nq, d = shape->d, group = shape->H / shape->Hkv;
    const int64_t i0 = team->i0, j0 = team->j0, rows = team->i1 - i0, keys = team->j1 - j0;
    int64_t h;
    naive_load_rows(&args->K, b, h_kv, j0, keys, head->K + j0 * d);
    naive_load_rows(&args->V, b, h_kv, j0, keys, head->V + j0 * d);
    for (h = h_kv * group; h < (h_kv + 1) * group; h++) {
        const float beta = h == h_kv * group ? 0.0f : 1.0f;
        head->lse = args->lse + (b * shape->H + h) * Nq;
        naive_team_wait(team); /* K and V are there, nobody reads the Q and dO before */
        naive_load_rows(&args->Q, b, h, i0, rows, head->Q + i0 * d);
        naive_load_rows(&args->O, b, h, i0, rows, head->O + i0 * d);
        naive_load_rows(&args->dO, b, h, i0, rows, head->dO + i0 * d);
        naive_clear_empty(head->lse + i0, rows, d, head->dO + i0 * d);
        backward_rows(args, head, i0, team->i1);
        naive_team_wait(team);
        backward_keys(args, head, beta, j0, team->j1);
        naive_store_rows(&args->dQ, b, h, i0, rows, head->dQ + i0 * d);
    }
    naive_store_rows(&args->dK, b, h_kv, j0, keys, head->dK + j0 * d);
    naive_store_rows(&args->dV, b, h_kv, j0, keys, head->dV + j0 * d);
}

/* The heads of a forward pass, the kv heads of a backward pass. */
static int64_t count_heads(const AttnShape *shape, int backward)
{
    return shape->B * (backward ? shape->Hkv : shape->H);
}

static void run_head(const AttnArgs *args, int backward, Head *head, int64_t bh,
                     const NaiveTeam *team)
{
    if (backward)
        backward_group(args, head, bh / args->shape.Hkv, bh % args->shape.Hkv, team);
    else
        forward_head(args, head, bh / args->shape.H, bh % args->shape.H, team);
}

/* What one thread does: in `shared` memory its part of every head, else, in memory of its own,
 * heads until none is left. */
static AttnStatus run_thread(const AttnArgs *args, int backward, float *shared)
{
    const NaiveTeam team = naive_team(&args->shape, shared != NULL);
    float *memory = shared ? shared : workspace_alloc(head_bytes(&args->shape, backward));
    Head head = {0};
    int64_t bh;
    if (memory)
        head = head_make(&args->shape, backward, memory);
    for (bh = 0; shared && bh < count_heads(&args->shape, backward); bh++)
        run_head(args, backward, &head, bh, &team);
    if (shared)
        return ATTN_OK;
#pragma omp for schedule(dynamic)
    for (bh = 0; bh < count_heads(&args->shape, backward); bh++)
        if (memory) /* every thread has to come to the loop, with memory or without */
            run_head(args, backward, &head, bh, &team);
    workspace_free(memory);
    return memory ? ATTN_OK : ATTN_NO_MEMORY;
}

/* One parallel region for all heads: a region for each would be a wait for each. */
static AttnStatus run_heads(const AttnArgs *args, int backward)
{
    const int64_t heads = count_heads(&args->shape, backward);
    const size_t bytes = head_bytes(&args->shape, backward);
    const int threads = args->threads, shares = heads_are_shared(&args->shape, threads, heads);
    float *shared = NULL;
    AttnStatus status = ATTN_OK;
    /* Ask for all threads at once: each alone could still fit. */
    if (!memory_enough_for((shares ? 1 : (size_t)threads) * bytes))
        return ATTN_NO_MEMORY;
    if (shares && !(shared = workspace_alloc(bytes)))
        return ATTN_NO_MEMORY;
#pragma omp parallel num_threads(threads) if (threads > 1)
    if (run_thread(args, backward, shared) != ATTN_OK) {
#pragma omp atomic write
        status = ATTN_NO_MEMORY;
    }
    workspace_free(shared);
    return status;
}

AttnStatus naive_v1_blas(const AttnArgs *args)
{
    return run_heads(args, 0);
}

AttnStatus naive_v1_blas_backward(const AttnArgs *args)
{
    return run_heads(args, 1);
}
