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
 * Threads take whole heads; where the heads do not divide among the threads, all of them share one
 * head after the other by rows. Memory: one Nq x Nk matrix for each head in work (backward: two).
 * All of it goes to memory and comes back between the steps, and that is what separates this
 * variant from the speed of a single large product.
 *
 * Interface: naive_v1_blas, naive_v1_blas_backward (naive.h).
 */
#include <math.h>

#include "exp/exp.h"
#include "naive.h"

/* Who works on what: `lanes` heads at a time, `team` threads on each. One of the two is 1. */
typedef struct Plan {
    int lanes, team;
} Plan;

/* A lane never waits for another one, so lanes are better, unless the last round of heads would
 * leave many of them without work. */
static Plan make_plan(int threads, int64_t heads)
{
    Plan plan = {1, threads};
    if (heads % threads == 0 || heads >= 8 * threads) {
        plan.lanes = threads;
        plan.team = 1;
    }
    return plan;
}

/* Where piece `part` of `parts` nearly equal pieces of 0 .. n begins; part = parts gives n. */
static int64_t part_start(int64_t n, int part, int parts)
{
    return n * part / parts;
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

static void forward_head(const AttnArgs *args, Head *head, int64_t b, int64_t h, int team)
{
    const AttnShape *shape = &args->shape;
    const int64_t h_kv = naive_kv_head(shape, h);
    int part;
    head->lse = args->lse + (b * shape->H + h) * shape->Nq;
    naive_load_rows(&args->Q, b, h, 0, shape->Nq, head->Q);
    naive_load_rows(&args->K, b, h_kv, 0, shape->Nk, head->K);
    naive_load_rows(&args->V, b, h_kv, 0, shape->Nk, head->V);
#pragma omp parallel for num_threads(team) schedule(static)
    for (part = 0; part < team; part++)
        forward_rows(args, head, part_start(shape->Nq, part, team),
                     part_start(shape->Nq, part + 1, team));
    naive_store_rows(&args->O, b, h, 0, shape->Nq, head->O);
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

/* One kv head with all query heads of its group, in order: the sums are the same every time. */
static void backward_group(const AttnArgs *args, Head *head, int64_t b, int64_t h_kv, int team)
{
    const AttnShape *shape = &args->shape;
    const int64_t Nq = shape->Nq, Nk = shape->Nk, group = shape->H / shape->Hkv;
    int64_t h;
    int part;
    naive_load_rows(&args->K, b, h_kv, 0, Nk, head->K);
    naive_load_rows(&args->V, b, h_kv, 0, Nk, head->V);
    for (h = h_kv * group; h < (h_kv + 1) * group; h++) {
        const float beta = h == h_kv * group ? 0.0f : 1.0f;
        head->lse = args->lse + (b * shape->H + h) * Nq;
        naive_load_rows(&args->Q, b, h, 0, Nq, head->Q);
        naive_load_rows(&args->O, b, h, 0, Nq, head->O);
        naive_load_rows(&args->dO, b, h, 0, Nq, head->dO);
        naive_clear_empty(head->lse, Nq, shape->d, head->dO);
#pragma omp parallel for num_threads(team) schedule(static)
        for (part = 0; part < team; part++)
            backward_rows(args, head, part_start(Nq, part, team), part_start(Nq, part + 1, team));
#pragma omp parallel for num_threads(team) schedule(static)
        for (part = 0; part < team; part++)
            backward_keys(args, head, beta, part_start(Nk, part, team),
                          part_start(Nk, part + 1, team));
        naive_store_rows(&args->dQ, b, h, 0, Nq, head->dQ);
    }
    naive_store_rows(&args->dK, b, h_kv, 0, Nk, head->dK);
    naive_store_rows(&args->dV, b, h_kv, 0, Nk, head->dV);
}

/* What one lane does: its own memory, then heads (backward: kv heads) until none is left. */
static AttnStatus run_lane(const AttnArgs *args, int backward, int team)
{
    const int64_t per_batch = backward ? args->shape.Hkv : args->shape.H;
    float *memory = workspace_alloc(head_bytes(&args->shape, backward));
    Head head = {0};
    int64_t bh;
    if (memory)
        head = head_make(&args->shape, backward, memory);
#pragma omp for schedule(dynamic)
    for (bh = 0; bh < args->shape.B * per_batch; bh++) {
        if (!memory)
            continue; /* every lane has to come to the loop, with memory or without */
        if (backward)
            backward_group(args, &head, bh / per_batch, bh % per_batch, team);
        else
            forward_head(args, &head, bh / per_batch, bh % per_batch, team);
    }
    workspace_free(memory);
    return memory ? ATTN_OK : ATTN_NO_MEMORY;
}

static AttnStatus run_heads(const AttnArgs *args, int backward)
{
    const int64_t heads = args->shape.B * (backward ? args->shape.Hkv : args->shape.H);
    const Plan plan = make_plan(args->threads, heads);
    AttnStatus status = ATTN_OK;
    /* Ask for all lanes at once: each alone could still fit. */
    if (!memory_enough_for((size_t)plan.lanes * head_bytes(&args->shape, backward)))
        return ATTN_NO_MEMORY;
    if (plan.lanes == 1) /* no region around the team's own: nested threads start anew each time */
        return run_lane(args, backward, plan.team);
#pragma omp parallel num_threads(plan.lanes)
    if (run_lane(args, backward, plan.team) != ATTN_OK) {
#pragma omp atomic write
        status = ATTN_NO_MEMORY;
    }
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
