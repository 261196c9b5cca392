/* SPDX-License-Identifier: MIT
 *
 * v0_loops: attention as the formula is written, one loop for each index.
 *
 *     S_ij = scale * sum_x Q_ix K_jx              one score for every (query, key)
 *     P_ij = exp(S_ij - lse_i)                    each row becomes probabilities
 *     O_ix = sum_j P_ij V_jx                      each output is a weighted mean of the values
 *
 * Two matrices of Nq x Nk numbers appear and vanish again, only to make one of Nq x d. That is the
 * cost that the rest of this suite gets rid of.
 *
 * The softmax subtracts the largest score of the row, m, first: exp(s - m) cannot overflow, and
 * the factor exp(-m) cancels between numerator and sum.
 *
 * Backward is the chain rule through the same three lines, last line first. The softmax ties a row
 * together: raising one score lowers the other probabilities, which is what delta_i accounts for.
 *
 *     dV_jx = sum_i P_ij dO_ix                    dP_ij = sum_x dO_ix V_jx
 *     dS_ij = P_ij (dP_ij - delta_i)              delta_i = sum_x dO_ix O_ix
 *     dQ_ix = scale sum_j dS_ij K_jx              dK_jx = scale sum_i dS_ij Q_ix
 *
 * Memory: Nq x Nk floats, in backward twice that; one head at a time, one thread.
 *
 * Interface: the rung of stage 01 that takes every mask and a softcap.
 */
#include "problem.h"

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* y += a * row, over d channels */
static void add_scaled(float *y, float a, const float *row, int d)
{
    for (int x = 0; x < d; x++)
        y[x] += a * row[x];
}

static void clear(float *y, int64_t count)
{
    for (int64_t x = 0; x < count; x++)
        y[x] = 0.0f;
}

/* --- forward -----------------------------------------------------------------------------------*/

/* Scores S_i [Nk] become probabilities in place. Returns lse_i; a row without keys becomes zeros
 * and -inf. */
static float softmax(float *S_i, int Nk)
{
    float m_i = -INFINITY, l_i = 0.0f;
    for (int j = 0; j < Nk; j++)
        m_i = S_i[j] > m_i ? S_i[j] : m_i;
    if (m_i == -INFINITY)
        m_i = 0.0f; /* nothing visible: -inf - 0 stays -inf, while -inf - -inf would be NaN */
    for (int j = 0; j < Nk; j++)
        l_i += S_i[j] = expf(S_i[j] - m_i);
    for (int j = 0; j < Nk && l_i != 0.0f; j++)
        S_i[j] /= l_i;
    return m_i + logf(l_i); /* log(0) = -inf: what an empty row should say */
}

/* One head: all scores, then all probabilities, then all outputs. S, then P [Nq][Nk] */
static void attend_head(const Problem *p, int b, int h, float *S)
{
    const int Nq = p->Nq, Nk = p->Nk, d = p->d, h_kv = kv_head(p, h);
    const float *Q = p->Q, *K = p->K, *V = p->V;
    float *O = p->O;
    for (int i = 0; i < Nq; i++)
        for (int j = 0; j < Nk; j++) /* exp(-inf) = 0 takes a hidden key out of the row */
            S[(int64_t)i * Nk + j] =
                sees(p, i, j)
                    ? score(p, dot(Q + query_row(p, b, h, i), K + key_row(p, b, h_kv, j), d))
                    : -INFINITY;
    for (int i = 0; i < Nq; i++)
        p->lse[lse_row(p, b, h, i)] = softmax(S + (int64_t)i * Nk, Nk);
    for (int i = 0; i < Nq; i++) { /* S holds P now */
        float *O_i = O + query_row(p, b, h, i);
        clear(O_i, d);
        for (int j = 0; j < Nk; j++)
            if (sees(p, i, j)) /* what it does not see may be Inf or NaN, and 0 * NaN is NaN */
                add_scaled(O_i, S[(int64_t)i * Nk + j], V + key_row(p, b, h_kv, j), d);
    }
}

static void forward(const Problem *p)
{
    for (int b = 0; b < p->B; b++)
        for (int h = 0; h < p->H; h++)
            attend_head(p, b, h, p->work);
}

/* --- backward ----------------------------------------------------------------------------------*/

/* One row of the two matrices that backward needs. s_ij is computed again from Q and K; with the
 * lse of the forward pass P_ij = exp(s_ij - lse_i) needs no maximum and no sum. P_i, dS_i [Nk] */
static void gradient_row(const Problem *p, int b, int h, int i, float *P_i, float *dS_i)
{
    const int64_t row = query_row(p, b, h, i);
    const float *Q_i = (const float *)p->Q + row, *dO_i = (const float *)p->dO + row;
    const float lse_i = p->lse[lse_row(p, b, h, i)], cap = p->softcap;
    const float delta_i = dot(dO_i, (const float *)p->O + row, p->d);
    for (int j = 0; j < p->Nk; j++) {
        const int64_t key = key_row(p, b, kv_head(p, h), j);
        P_i[j] = dS_i[j] = 0.0f;
        if (!sees(p, i, j))
            continue;
        const float s = score(p, dot(Q_i, (const float *)p->K + key, p->d));
        /* d/dx of cap * tanh(x / cap) is 1 - tanh^2, and tanh is s / cap */
        const float slope = cap > 0.0f ? 1.0f - (s / cap) * (s / cap) : 1.0f;
        P_i[j] = expf(s - lse_i);
        dS_i[j] = P_i[j] * (dot(dO_i, (const float *)p->V + key, p->d) - delta_i) * slope;
    }
}

/* Everything that one query head adds. P, dS [Nq][Nk] */
static void gradient_head(const Problem *p, int b, int h, float *P, float *dS)
{
    const int Nq = p->Nq, Nk = p->Nk, d = p->d, h_kv = kv_head(p, h);
    float *dQ = p->dQ, *dK = p->dK, *dV = p->dV;
    for (int i = 0; i < Nq; i++)
        gradient_row(p, b, h, i, P + (int64_t)i * Nk, dS + (int64_t)i * Nk);
    for (int i = 0; i < Nq; i++) {
        const int64_t row = query_row(p, b, h, i);
        for (int j = 0; j < Nk; j++) {
            const int64_t key = key_row(p, b, h_kv, j), ij = (int64_t)i * Nk + j;
            if (!sees(p, i, j))
                continue; /* a row without keys may have padding with anything in it for dO */
            add_scaled(dV + key, P[ij], (const float *)p->dO + row, d);
            add_scaled(dQ + row, p->scale * dS[ij], (const float *)p->K + key, d);
            add_scaled(dK + key, p->scale * dS[ij], (const float *)p->Q + row, d);
        }
    }
}

static void backward(const Problem *p)
{
    float *P = p->work, *dS = P + (int64_t)p->Nq * p->Nk;
    clear(p->dQ, (int64_t)p->B * p->Nq * p->H * p->d);
    clear(p->dK, (int64_t)p->B * p->Nk * p->Hkv * p->d);
    clear(p->dV, (int64_t)p->B * p->Nk * p->Hkv * p->d);
    for (int b = 0; b < p->B; b++)
        for (int h = 0; h < p->H; h++)
            gradient_head(p, b, h, P, dS);
}

static int64_t work(const Problem *p, int backward)
{
    return (int64_t)sizeof(float) * p->Nq * p->Nk * (backward ? 2 : 1);
}

RUNG(naive, v0_loops, "the formula, one loop for each index", F32, forward, backward, work, NULL,
     FULL);
