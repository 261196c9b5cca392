/* SPDX-License-Identifier: MIT
 *
 * v0_offline_mask: attention with a window, the way one writes it down first.
 *
 *     hidden_ij = may query i not see key j?           [Nq][Nk], for all heads
 *     S = scale * Q K^T, capped, -inf where hidden     [Nq][Nk], all of it
 *     P = softmax of each row                          in its place
 *     O = P V
 *
 * Every line works on whole matrices: the others are compared with this. Its two products are
 * OpenBLAS's, its softmax is a vector loop, its rows are shared by all threads. And yet a window of
 * 256 keys costs what no window costs: a masked score is computed, stored, read, exponentiated to 0
 * and multiplied with V like any other.
 *
 * Backward:
 *
 *     P = exp(S - lse)             dP = dO V^T
 *     dS = P (dP - delta)          delta_i = dO_i . O_i
 *     dQ = scale dS K              dK = scale dS^T Q               dV = P^T dO
 *
 * Memory: 5 N^2 bytes forward, 9 N^2 backward. Large heads go one after the other, small ones are
 * dealt out to the threads, which then have matrices of their own.
 *
 * Interface: the rung of stage 05 that computes every pair; it takes every mask and a softcap.
 */
#include <math.h>
#include <string.h>

#include "problem.h"
#include "units/exp_rows.h"
#include "units/product.h"
#include "units/threads.h"

/* A small head costs less than that threads wait for each other: on a busy machine a wait takes as
 * long as the system lets another program run. Few heads are shared from TINY multiply-adds of a
 * product on, many heads when a matrix of theirs is larger than SMALL. */
#define TINY  32768
#define SMALL 131072

/* Do all threads work on one head after the other? Otherwise each has heads of its own. */
static int shares_heads(const Problem *p, int backward)
{
    const int64_t heads = (int64_t)p->B * (backward ? p->Hkv : p->H),
                  pairs = (int64_t)p->Nq * p->Nk;
    return pairs >= TINY / p->d && (heads < 8 * (int64_t)p->threads || pairs > SMALL);
}

/* Where piece `part` of `parts` nearly equal pieces of 0 .. n begins; part = parts gives n. */
static int part_start(int n, int part, int parts)
{
    return (int)((int64_t)n * part / parts);
}

/* The matrices of the head in work. The tensors' rows lie ld_q and ld_k floats apart. */
typedef struct Head {
    const Problem *p;
    const float *Q, *O;    /* [Nq][d] */
    const float *K, *V;    /* [Nk][d] */
    float *lse;            /* [Nq] */
    const uint8_t *hidden; /* [Nq][Nk] */
    float *S, *dS;         /* [Nq][Nk] S becomes P in place, dS holds dP first */
    float *dO;             /* [Nq][d] a copy */
    int64_t ld_q, ld_k;
    int b, h;
} Head;

static int64_t head_floats(const Problem *p, int backward)
{
    const int64_t pairs = (int64_t)p->Nq * p->Nk;
    return backward ? 2 * pairs + (int64_t)p->Nq * p->d : pairs;
}

static int64_t matrices_bytes(const Problem *p, int backward)
{
    const int heads = shares_heads(p, backward) ? 1 : p->threads;
    return (int64_t)sizeof(float) * heads * head_floats(p, backward);
}

/* What all heads have in common comes behind the matrices. */
static int64_t work(const Problem *p, int backward)
{
    return matrices_bytes(p, backward) + (int64_t)p->Nq * p->Nk;
}

static uint8_t *hidden_of(const Problem *p, int backward)
{
    return (uint8_t *)p->work + matrices_bytes(p, backward);
}

/* Query head h of batch b, with the matrices of thread `thread`. */
static Head open_head(const Problem *p, int b, int h, int backward, int thread)
{
    Head head = {.p = p, .b = b, .h = h, .ld_q = p->H * p->d, .ld_k = p->Hkv * p->d};
    head.Q = (const float *)p->Q + query_row(p, b, h, 0);
    head.O = (const float *)p->O + query_row(p, b, h, 0);
    head.K = (const float *)p->K + key_row(p, b, kv_head(p, h), 0);
    head.V = (const float *)p->V + key_row(p, b, kv_head(p, h), 0);
    head.lse = p->lse + lse_row(p, b, h, 0);
    head.hidden = hidden_of(p, backward);
    head.S = (float *)p->work + thread * head_floats(p, backward);
    head.dS = head.S + (int64_t)p->Nq * p->Nk;
    head.dO = head.dS + (int64_t)p->Nq * p->Nk;
    return head;
}

/* --- the mask ----------------------------------------------------------------------------------*/

/* One row of the mask of all heads. */
static void fill_hidden(const Problem *p, uint8_t *hidden, int i)
{
    uint8_t *row = hidden + (int64_t)i * p->Nk;
    memset(row, 1, (size_t)p->Nk);
    for (int j = first_key(p, i); j < end_key(p, i); j++)
        row[j] = p->mask ? p->mask[(int64_t)i * p->Nk + j] != 0 : 0;
}

/* S = scale * Q K^T, rows i0 .. i1-1. */
static void multiply(const Head *head, int i0, int i1)
{
    const int64_t Nk = head->p->Nk;
    matmul(AS_IS, TRANSPOSED, i1 - i0, Nk, head->p->d, head->p->scale, head->Q + i0 * head->ld_q,
           head->ld_q, head->K, head->ld_k, 0.0f, head->S + i0 * Nk, Nk);
}

/* The cap, then the mask, in one row of S while the softmax has it in the cache. A select, not an
 * addition of -inf: a hidden score may be infinite, and inf - inf is NaN. */
static void cap_and_hide(const Head *head, int i)
{
    const int64_t Nk = head->p->Nk;
    const float cap = head->p->softcap;
    float *S_i = head->S + i * Nk;
    const uint8_t *hidden = head->hidden + i * Nk;
    for (int64_t j = 0; cap > 0.0f && j < Nk; j++)
        S_i[j] = cap * tanhf(S_i[j] / cap);
    for (int64_t j = 0; j < Nk; j++)
        S_i[j] = hidden[j] ? -INFINITY : S_i[j];
}

/* --- forward -----------------------------------------------------------------------------------*/

/* Rows i0 .. i1-1 of one head, from Q to O and lse. */
static void forward_rows(const Head *head, int i0, int i1)
{
    const Problem *p = head->p;
    const int64_t Nk = p->Nk;
    if (i0 == i1)
        return;
    multiply(head, i0, i1);
    for (int i = i0; i < i1; i++) {
        float *S_i = head->S + i * Nk, m_i, l_i, inverse;
        cap_and_hide(head, i);
        m_i = row_max(S_i, Nk);
        if (m_i == -INFINITY)
            m_i = 0.0f; /* an empty row: exp(-inf - 0) = 0, where -inf - -inf would be NaN */
        l_i = softmax_exp_row(S_i, S_i, Nk, m_i);
        head->lse[i] = m_i + logf(l_i); /* log(0) = -inf */
        inverse = l_i == 0.0f ? 0.0f : 1.0f / l_i;
        for (int64_t j = 0; j < Nk; j++)
            S_i[j] *= inverse;
    }
    matmul(AS_IS, AS_IS, i1 - i0, p->d, Nk, 1.0f, head->S + i0 * Nk, Nk, head->V, head->ld_k, 0.0f,
           (float *)p->O + query_row(p, head->b, head->h, i0), head->ld_q);
}

static void forward(const Problem *p)
{
    const int heads = p->B * p->H, shared = shares_heads(p, 0), parts = p->threads;
    uint8_t *hidden = hidden_of(p, 0);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    { /* one parallel region for all heads: a region for each would be a wait for each */
#pragma omp for schedule(static)
        for (int i = 0; i < p->Nq; i++)
            fill_hidden(p, hidden, i);
        for (int bh = 0; shared && bh < heads; bh++) {
            const Head head = open_head(p, bh / p->H, bh % p->H, 0, 0);
#pragma omp for schedule(static) nowait /* a thread's rows are its own */
            for (int part = 0; part < parts; part++)
                forward_rows(&head, part_start(p->Nq, part, parts),
                             part_start(p->Nq, part + 1, parts));
        }
#pragma omp for schedule(dynamic)
        for (int bh = 0; bh < (shared ? 0 : heads); bh++) {
            const Head head = open_head(p, bh / p->H, bh % p->H, 0, thread_number());
            forward_rows(&head, 0, p->Nq);
        }
    }
}

/* --- backward ----------------------------------------------------------------------------------*/

/* dO without the rows that see no key. Such rows are often padding with anything in it. Their P is
 * 0, but 0 * NaN is NaN, and dV = P^T dO is a sum over all rows. */
static void copy_dO(const Head *head, int i0, int i1)
{
    const Problem *p = head->p;
    for (int i = i0; i < i1; i++) {
        float *row = head->dO + (int64_t)i * p->d;
        if (head->lse[i] == -INFINITY)
            memset(row, 0, (size_t)p->d * sizeof *row);
        else
            memcpy(row, (const float *)p->dO + query_row(p, head->b, head->h, i),
                   (size_t)p->d * sizeof *row);
    }
}

/* One row: S_i [Nk] becomes P, dS_i [Nk] = dP becomes dS. */
static void gradient_row(const Head *head, int i)
{
    const Problem *p = head->p;
    const int64_t Nk = p->Nk, d = p->d;
    const float cap = p->softcap, lse_i = head->lse[i] == -INFINITY ? 0.0f : head->lse[i];
    float *S_i = head->S + i * Nk, *dS_i = head->dS + i * Nk, delta_i = 0.0f;
    for (int64_t x = 0; x < d; x++)
        delta_i += head->dO[i * d + x] * head->O[i * head->ld_q + x];
    for (int64_t j = 0; j < Nk; j++)
        dS_i[j] -= delta_i;
    for (int64_t j = 0; cap > 0.0f && j < Nk; j++) /* slope of the cap: 1 - tanh^2 */
        dS_i[j] *= S_i[j] == -INFINITY ? 0.0f : 1.0f - (S_i[j] / cap) * (S_i[j] / cap);
    softmax_exp_row(S_i, S_i, Nk, lse_i);
    for (int64_t j = 0; j < Nk; j++)
        dS_i[j] *= S_i[j];
}

/* Rows i0 .. i1-1 of P, dS and dQ. */
static void backward_rows(const Head *head, int i0, int i1)
{
    const Problem *p = head->p;
    const int64_t Nk = p->Nk, d = p->d;
    if (i0 == i1)
        return;
    copy_dO(head, i0, i1);
    multiply(head, i0, i1);
    matmul(AS_IS, TRANSPOSED, i1 - i0, Nk, d, 1.0f, head->dO + i0 * d, d, head->V, head->ld_k, 0.0f,
           head->dS + i0 * Nk, Nk); /* dP = dO V^T */
    for (int i = i0; i < i1; i++) {
        cap_and_hide(head, i);
        gradient_row(head, i);
    }
    matmul(AS_IS, AS_IS, i1 - i0, d, Nk, p->scale, head->dS + i0 * Nk, Nk, head->K, head->ld_k,
           0.0f, (float *)p->dQ + query_row(p, head->b, head->h, i0), head->ld_q);
}

/* The transposed products. A thread owns keys now, not queries, so all rows of P and dS have to be
 * there: `backward` waits for them.
 * Keys j0 .. j1-1 of dK and dV, on top of what earlier heads of the group gave. */
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
    const int group = p->H / p->Hkv, shared = shares_heads(p, 1), parts = p->threads;
    uint8_t *hidden = hidden_of(p, 1);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
#pragma omp for schedule(static)
        for (int i = 0; i < p->Nq; i++)
            fill_hidden(p, hidden, i);
        for (int bh = 0; shared && bh < p->B * p->H; bh++) { /* rows of all threads, then keys */
            const Head head = open_head(p, bh / p->H, bh % p->H, 1, 0);
#pragma omp for schedule(static)
            for (int part = 0; part < parts; part++)
                backward_rows(&head, part_start(p->Nq, part, parts),
                              part_start(p->Nq, part + 1, parts));
#pragma omp for schedule(static)
            for (int part = 0; part < parts; part++)
                backward_keys(&head, part_start(p->Nk, part, parts),
                              part_start(p->Nk, part + 1, parts));
        }
#pragma omp for schedule(dynamic)
        for (int kv = 0; kv < (shared ? 0 : p->B * p->Hkv); kv++)
            for (int g = 0; g < group; g++) {
                const Head head =
                    open_head(p, kv / p->Hkv, kv % p->Hkv * group + g, 1, thread_number());
                backward_rows(&head, 0, p->Nq);
                backward_keys(&head, 0, p->Nk);
            }
    }
}

RUNG(sliding_window, v0_offline_mask, "the whole score matrix and a mask", F32, forward, backward,
     work, NULL, FULL);
