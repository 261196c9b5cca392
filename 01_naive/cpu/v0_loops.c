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

/* S_ij, or -inf where query i may not see key j: exp(-inf) = 0 removes the key from the row. */
static float score_at(const Problem *p, int b, int h, int i, int j)
{
    const float *Q_i = (const float *)p->Q + query_row(p, b, h, i);
    const float *K_j = (const float *)p->K + key_row(p, b, kv_head(p, h), j);
    return sees(p, i, j) ? score(p, dot(Q_i, K_j, p->d)) : -INFINITY;
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

/* One head: all scores, then all probabilities, then all outputs. S and in its place P [Nq][Nk] */
static void attend_head(const Problem *p, int b, int h, float *S)
{
    const int64_t Nk = p->Nk;
    for (int i = 0; i < p->Nq; i++)
        for (int j = 0; j < p->Nk; j++)
            S[i * Nk + j] = score_at(p, b, h, i, j);
    for (int i = 0; i < p->Nq; i++)
        p->lse[lse_row(p, b, h, i)] = softmax(S + i * Nk, p->Nk);
    for (int i = 0; i < p->Nq; i++) {
        float *O_i = (float *)p->O + query_row(p, b, h, i);
        clear(O_i, p->d);
        for (int j = 0; j < p->Nk; j++) { /* S holds P now */
            const float *V_j = (const float *)p->V + key_row(p, b, kv_head(p, h), j);
            /* a key that it does not see may be Inf or NaN, and 0 * NaN is NaN */
            if (S[i * Nk + j] != 0.0f || sees(p, i, j))
                add_scaled(O_i, S[i * Nk + j], V_j, p->d);
        }
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
    const float *dO_i = (const float *)p->dO + query_row(p, b, h, i);
    const float *O_i = (const float *)p->O + query_row(p, b, h, i);
    const float delta_i = dot(dO_i, O_i, p->d), lse_i = p->lse[lse_row(p, b, h, i)];
    const float cap = p->softcap;
    for (int j = 0; j < p->Nk; j++) {
        const float *V_j = (const float *)p->V + key_row(p, b, kv_head(p, h), j);
        const float s = score_at(p, b, h, i, j);
        /* d/dx of cap * tanh(x / cap) is 1 - tanh^2, and tanh is s / cap */
        const float slope = cap > 0.0f ? 1.0f - (s / cap) * (s / cap) : 1.0f;
        P_i[j] = s == -INFINITY ? 0.0f : expf(s - lse_i);
        dS_i[j] = s == -INFINITY ? 0.0f : P_i[j] * (dot(dO_i, V_j, p->d) - delta_i) * slope;
    }
}

/* Everything that one query head adds. P, dS [Nq][Nk] */
static void gradient_head(const Problem *p, int b, int h, float *P, float *dS)
{
    const int64_t Nk = p->Nk;
    const int h_kv = kv_head(p, h);
    float *dQ = p->dQ, *dK = p->dK, *dV = p->dV;
    for (int i = 0; i < p->Nq; i++)
        gradient_row(p, b, h, i, P + i * Nk, dS + i * Nk);
    for (int i = 0; i < p->Nq; i++)
        for (int j = 0; j < p->Nk; j++) {
            const int64_t row = query_row(p, b, h, i), key = key_row(p, b, h_kv, j);
            if (P[i * Nk + j] == 0.0f && !sees(p, i, j))
                continue; /* K, V, Q or dO may be Inf or NaN: padding in a row without keys, say */
            add_scaled(dV + key, P[i * Nk + j], (const float *)p->dO + row, p->d);
            add_scaled(dQ + row, p->scale * dS[i * Nk + j], (const float *)p->K + key, p->d);
            add_scaled(dK + key, p->scale * dS[i * Nk + j], (const float *)p->Q + row, p->d);
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
