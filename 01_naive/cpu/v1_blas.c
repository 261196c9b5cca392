/* SPDX-License-Identifier: MIT
 *
 * v1_blas: the same three lines as v0_loops, as two matrix products and a softmax.
 *
 * S = Q K^T and O = P V are products of matrices, and a BLAS runs those near the peak of the
 * machine: it keeps tiles in registers and caches, which the loops of v0 do not. What is left to
 * us is the softmax between them, with the vector exp of units/exp_rows.h.
 *
 * Each row is normalised after the second product: sum_j (p_ij / l_i) V_j = (sum_j p_ij V_j) / l_i
 * costs d divisions a row instead of Nk.
 *
 * A row of one head lies H * d floats behind the row before it, which a BLAS takes as it is: its
 * "leading dimension".
 *
 * Threads take whole heads; where the heads do not divide among the threads, all of them share one
 * head after the other by rows. Memory: one Nq x Nk matrix for each head in work (backward: two).
 * All of it goes to memory and comes back between the steps, and that is what separates this
 * variant from the speed of a single large product.
 *
 * Interface: the rung of stage 01 that takes every mask and a softcap, and stage 04's row at 100 %
 * memory.
 */
#include <math.h>
#include <string.h>

#include "problem.h"
#include "units/exp_rows.h"
#include "units/scores.h"
#include "units/threads.h"

/* --- who works on what -------------------------------------------------------------------------*/

/* Heads in work at a time. Threads that each take a head never wait for each other, so that is
 * better, unless the last round of heads would leave many of them without work. */
static int heads_at_a_time(const Problem *p, int backward)
{
    const int heads = p->B * (backward ? p->Hkv : p->H);
    return heads % p->threads == 0 || heads >= 8 * p->threads ? p->threads : 1;
}

/* Where piece `part` of `parts` nearly equal pieces of 0 .. n begins; part = parts gives n. */
static int part_start(int n, int part, int parts)
{
    return (int)((int64_t)n * part / parts);
}

/* The matrices of the head in work. The tensors' rows lie ld_q and ld_k floats apart. */
typedef struct Head {
    const Problem *p;
    ScoreRule rule;
    const float *Q, *O, *dO; /* [Nq][d], dO a copy without gaps */
    const float *K, *V;      /* [Nk][d] */
    float *lse;              /* [Nq] */
    int64_t ld_q, ld_k;
    int b, h;
    float *S, *dS; /* [Nq][Nk]; S becomes P in place, dS holds dP first */
    float *l;      /* [Nq] row sums; backward has the lse and needs none */
} Head;

static int64_t head_floats(const Problem *p, int backward)
{
    const int64_t square = (int64_t)p->Nq * p->Nk;
    return backward ? 2 * square + (int64_t)p->Nq * p->d : square + p->Nq;
}

static int64_t work(const Problem *p, int backward)
{
    return (int64_t)sizeof(float) * heads_at_a_time(p, backward) * head_floats(p, backward);
}

/* Query head h of batch b. memory: head_floats. */
static Head open_head(const Problem *p, int b, int h, float *memory)
{
    Head head = {.p = p, .b = b, .h = h, .ld_q = p->H * p->d, .ld_k = p->Hkv * p->d};
    head.rule = (ScoreRule){p->scale, p->softcap, p->from, p->to, p->mask, p->Nk};
    head.Q = (const float *)p->Q + query_row(p, b, h, 0);
    head.O = (const float *)p->O + query_row(p, b, h, 0);
    head.K = (const float *)p->K + key_row(p, b, kv_head(p, h), 0);
    head.V = (const float *)p->V + key_row(p, b, kv_head(p, h), 0);
    head.lse = p->lse + lse_row(p, b, h, 0);
    head.S = memory;
    head.l = head.dS = memory + (int64_t)p->Nq * p->Nk;
    head.dO = head.dS + (int64_t)p->Nq * p->Nk;
    return head;
}

/* --- forward -----------------------------------------------------------------------------------*/

/* Rows i0 .. i1-1 of one head, from Q to O and lse. */
static void forward_rows(const Head *head, int i0, int i1)
{
    const Problem *p = head->p;
    const int64_t Nk = p->Nk;
    float *O = (float *)p->O + query_row(p, head->b, head->h, 0);
    if (i0 == i1)
        return;
    score_block(&head->rule, head->Q + i0 * head->ld_q, head->ld_q, i0, i1 - i0, head->K,
                head->ld_k, 0, p->Nk, p->d, head->S + i0 * Nk, Nk);
    for (int i = i0; i < i1; i++) {
        float *S_i = head->S + i * Nk;
        float m_i = row_max(S_i, Nk);
        if (m_i == -INFINITY)
            m_i = 0.0f; /* an empty row: exp(-inf - 0) = 0, where -inf - -inf would be NaN */
        head->l[i] = softmax_exp_row(S_i, S_i, Nk, m_i);
        head->lse[i] = m_i + logf(head->l[i]);
    }
    matmul(AS_IS, AS_IS, i1 - i0, p->d, Nk, 1.0f, head->S + i0 * Nk, Nk, head->V, head->ld_k, 0.0f,
           O + i0 * head->ld_q, head->ld_q);
    for (int i = i0; i < i1; i++) {
        const float inverse = head->l[i] == 0.0f ? 0.0f : 1.0f / head->l[i];
        for (int x = 0; x < p->d; x++)
            O[i * head->ld_q + x] *= inverse;
    }
}

static void forward(const Problem *p)
{
    const int heads = p->B * p->H, lanes = heads_at_a_time(p, 0),
              parts = lanes > 1 ? 1 : p->threads;
    float *memory = p->work;
    if (lanes > 1) { /* a head for each thread */
#pragma omp parallel for num_threads(lanes) schedule(dynamic)
        for (int bh = 0; bh < heads; bh++) {
            const Head head =
                open_head(p, bh / p->H, bh % p->H, memory + thread_number() * head_floats(p, 0));
            forward_rows(&head, 0, p->Nq);
        }
        return;
    }
#pragma omp parallel num_threads(parts)
    for (int bh = 0; bh < heads;
         bh++) { /* all threads on one head, and a thread's rows are its own */
        const Head head = open_head(p, bh / p->H, bh % p->H, memory);
#pragma omp for schedule(static) nowait
        for (int part = 0; part < parts; part++)
            forward_rows(&head, part_start(p->Nq, part, parts), part_start(p->Nq, part + 1, parts));
    }
}

/* --- backward ----------------------------------------------------------------------------------*/

/* dO without the rows that see no key. Such rows are often padding with anything in it. Their P is
 * 0, but 0 * NaN is NaN, and dV = P^T dO is a sum over all rows. */
static void copy_dO(const Head *head, int i0, int i1)
{
    const Problem *p = head->p;
    for (int i = i0; i < i1; i++) {
        float *row = (float *)head->dO + (int64_t)i * p->d;
        if (head->lse[i] == -INFINITY)
            memset(row, 0, (size_t)p->d * sizeof *row);
        else
            memcpy(row, (const float *)p->dO + query_row(p, head->b, head->h, i),
                   (size_t)p->d * sizeof *row);
    }
}

/* Rows i0 .. i1-1 of P, dS and dQ. */
static void backward_rows(const Head *head, int i0, int i1)
{
    const Problem *p = head->p;
    const int64_t Nk = p->Nk, d = p->d, ld = head->ld_q;
    const float cap = p->softcap, *dO = head->dO;
    if (i0 == i1)
        return;
    copy_dO(head, i0, i1);
    score_block(&head->rule, head->Q + i0 * ld, ld, i0, i1 - i0, head->K, head->ld_k, 0, p->Nk,
                p->d, head->S + i0 * Nk, Nk);
    matmul(AS_IS, TRANSPOSED, i1 - i0, Nk, d, 1.0f, dO + i0 * d, d, head->V, head->ld_k, 0.0f,
           head->dS + i0 * Nk, Nk); /* dP = dO V^T */
    for (int i = i0; i < i1; i++) {
        float *S_i = head->S + i * Nk, *dS_i = head->dS + i * Nk, delta_i = 0.0f;
        for (int x = 0; x < d; x++)
            delta_i += dO[i * d + x] * head->O[i * ld + x];
        for (int j = 0; j < Nk; j++)
            dS_i[j] -= delta_i;
        for (int j = 0; cap > 0.0f && j < Nk; j++) /* slope of the cap: 1 - tanh^2 */
            dS_i[j] *= S_i[j] == -INFINITY ? 0.0f : 1.0f - (S_i[j] / cap) * (S_i[j] / cap);
        softmax_exp_row(S_i, S_i, Nk, head->lse[i] == -INFINITY ? 0.0f : head->lse[i]);
        for (int j = 0; j < Nk; j++)
            dS_i[j] *= S_i[j];
    }
    matmul(AS_IS, AS_IS, i1 - i0, d, Nk, p->scale, head->dS + i0 * Nk, Nk, head->K, head->ld_k,
           0.0f, (float *)p->dQ + query_row(p, head->b, head->h, i0), ld);
}

/* Keys j0 .. j1-1 of dK and dV: sums over all queries, added to those of earlier query heads. */
static void backward_keys(const Head *head, int j0, int j1)
{
    const Problem *p = head->p;
    const int64_t Nq = p->Nq, Nk = p->Nk, d = p->d;
    const int64_t key = key_row(p, head->b, kv_head(p, head->h), j0);
    const float beta = head->h % (p->H / p->Hkv) == 0 ? 0.0f : 1.0f;
    if (j0 == j1)
        return;
    matmul(TRANSPOSED, AS_IS, j1 - j0, d, Nq, 1.0f, head->S + j0, Nk, head->dO, d, beta,
           (float *)p->dV + key, head->ld_k);
    matmul(TRANSPOSED, AS_IS, j1 - j0, d, Nq, p->scale, head->dS + j0, Nk, head->Q, head->ld_q,
           beta, (float *)p->dK + key, head->ld_k);
}

/* Query heads of a group come in order, so that the sums are the same every time. */
static void backward(const Problem *p)
{
    const int group = p->H / p->Hkv, lanes = heads_at_a_time(p, 1);
    const int parts = lanes > 1 ? 1 : p->threads;
    float *memory = p->work;
    if (lanes > 1) { /* a kv head for each thread */
#pragma omp parallel for num_threads(lanes) schedule(dynamic)
        for (int kv = 0; kv < p->B * p->Hkv; kv++)
            for (int h = 0; h < group; h++) {
                const Head head = open_head(p, kv / p->Hkv, kv % p->Hkv * group + h,
                                            memory + thread_number() * head_floats(p, 1));
                backward_rows(&head, 0, p->Nq);
                backward_keys(&head, 0, p->Nk);
            }
        return;
    }
#pragma omp parallel num_threads(parts)
    for (int bh = 0; bh < p->B * p->H; bh++) { /* all threads on one head: rows, then keys */
        const Head head = open_head(p, bh / p->H, bh % p->H, memory);
#pragma omp for schedule(static)
        for (int part = 0; part < parts; part++)
            backward_rows(&head, part_start(p->Nq, part, parts),
                          part_start(p->Nq, part + 1, parts));
#pragma omp for schedule(static)
        for (int part = 0; part < parts; part++)
            backward_keys(&head, part_start(p->Nk, part, parts),
                          part_start(p->Nk, part + 1, parts));
    }
}

RUNG(naive, v1_blas, "both products by OpenBLAS, vector exp, threads over heads", F32, forward,
     backward, work, NULL, FULL | BLAS);
