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
 * P_ij is 0 where query i does not see key j. Such products are left out: V_j, K_j, Q_i or dO_i may
 * be NaN, and 0 * NaN is NaN.
 *
 * Memory: Nq x Nk floats, in backward twice that; one head at a time, one thread.
 *
 * Interface: naive_v0_loops, naive_v0_loops_backward (naive.h).
 */
#include <math.h>

#include "attn_pairs.h"
#include "naive.h"

static float dot(const float *a, const float *b, int64_t d)
{
    float sum = 0.0f;
    int64_t x;
    for (x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* y += a * row, over d channels */
static void add_scaled(float *y, float a, const float *row, int64_t d)
{
    int64_t x;
    for (x = 0; x < d; x++)
        y[x] += a * row[x];
}

static void clear(float *y, int64_t count)
{
    int64_t x;
    for (x = 0; x < count; x++)
        y[x] = 0.0f;
}

/* S_ij, or -inf where query i may not see key j: exp(-inf) = 0 removes the key from the row. */
static float score(const AttnArgs *args, const float *Q_i, const float *K_j, int64_t i, int64_t j)
{
    return attn_sees(args, i, j) ? attn_score(args, dot(Q_i, K_j, args->shape.d)) : -INFINITY;
}

/* Scores S_i [Nk] become probabilities in place. Returns lse_i; a row without keys becomes zeros
 * and -inf. */
static float softmax(float *S_i, int64_t Nk)
{
    float m_i = -INFINITY, l_i = 0.0f;
    int64_t j;
    for (j = 0; j < Nk; j++)
        m_i = S_i[j] > m_i ? S_i[j] : m_i;
    if (m_i == -INFINITY)
        m_i = 0.0f; /* nothing visible: -inf - 0 stays -inf, while -inf - -inf would be NaN */
    for (j = 0; j < Nk; j++)
        l_i += S_i[j] = expf(S_i[j] - m_i);
    for (j = 0; j < Nk && l_i != 0.0f; j++)
        S_i[j] /= l_i;
    return m_i + logf(l_i); /* log(0) = -inf: what an empty row should say */
}

/* Q O [Nq][d], K V [Nk][d], S and in its place P [Nq][Nk]: one head, float */
AttnStatus naive_v0_loops(const AttnArgs *args)
{
    const int64_t H = args->shape.H, Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    float *Q = workspace_alloc(sizeof(float) * (size_t)((2 * Nq + 2 * Nk) * d));
    float *S = workspace_alloc(sizeof(float) * (size_t)Nq * (size_t)Nk);
    float *O = Q + Nq * d, *K = O + Nq * d, *V = K + Nk * d;
    int64_t b, h, i, j;
    for (b = 0; Q && S && b < args->shape.B; b++)
        for (h = 0; h < H; h++) {
            naive_load_rows(&args->Q, b, h, 0, Nq, Q);
            naive_load_rows(&args->K, b, naive_kv_head(&args->shape, h), 0, Nk, K);
            naive_load_rows(&args->V, b, naive_kv_head(&args->shape, h), 0, Nk, V);
            for (i = 0; i < Nq; i++)
                for (j = 0; j < Nk; j++)
                    S[i * Nk + j] = score(args, Q + i * d, K + j * d, i, j);
            for (i = 0; i < Nq; i++)
                args->lse[(b * H + h) * Nq + i] = softmax(S + i * Nk, Nk);
            clear(O, Nq * d);
            for (i = 0; i < Nq; i++)
                for (j = 0; j < Nk; j++) /* S holds P now */
                    if (S[i * Nk + j] != 0.0f || attn_sees(args, i, j))
                        add_scaled(O + i * d, S[i * Nk + j], V + j * d, d);
            naive_store_rows(&args->O, b, h, 0, Nq, O);
        }
    workspace_free(S);
    workspace_free(Q);
    return Q && S ? ATTN_OK : ATTN_NO_MEMORY;
}

/* One row of the two matrices that backward needs. s_ij is computed again from Q and K; with the
 * lse of the forward pass P_ij = exp(s_ij - lse_i) needs no maximum and no sum. */
static void gradient_row(const AttnArgs *args, int64_t i, const float *Q_i, const float *K,
                         const float *V, const float *dO_i, float delta_i, float lse_i, float *P_i,
                         float *dS_i)
{
    const int64_t d = args->shape.d;
    const float cap = args->softcap;
    int64_t j;
    for (j = 0; j < args->shape.Nk; j++) {
        const float s = score(args, Q_i, K + j * d, i, j);
        /* d/dx of cap * tanh(x / cap) is 1 - tanh^2, and tanh is s / cap */
        const float slope = cap > 0.0f ? 1.0f - (s / cap) * (s / cap) : 1.0f;
        P_i[j] = s == -INFINITY ? 0.0f : expf(s - lse_i);
        dS_i[j] = s == -INFINITY ? 0.0f : P_i[j] * (dot(dO_i, V + j * d, d) - delta_i) * slope;
    }
}

/* Everything that one query head adds. Q O dO dQ [Nq][d], K V dK dV [Nk][d], P dS [Nq][Nk] */
static void gradient_head(const AttnArgs *args, const float *Q, const float *K, const float *V,
                          const float *O, const float *dO, const float *lse, float *P, float *dS,
                          float *dQ, float *dK, float *dV)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    int64_t i, j;
    for (i = 0; i < Nq; i++)
        gradient_row(args, i, Q + i * d, K, V, dO + i * d, dot(dO + i * d, O + i * d, d), lse[i],
                     P + i * Nk, dS + i * Nk);
    for (i = 0; i < Nq; i++)
        for (j = 0; j < Nk; j++) {
            if (P[i * Nk + j] == 0.0f && !attn_sees(args, i, j))
                continue;
            add_scaled(dV + j * d, P[i * Nk + j], dO + i * d, d);
            add_scaled(dQ + i * d, args->scale * dS[i * Nk + j], K + j * d, d);
            add_scaled(dK + j * d, args->scale * dS[i * Nk + j], Q + i * d, d);
        }
}

AttnStatus naive_v0_loops_backward(const AttnArgs *args)
{
    const AttnShape *shape = &args->shape;
    const int64_t H = shape->H, Hkv = shape->Hkv, Nq = shape->Nq, Nk = shape->Nk, d = shape->d;
    float *Q = workspace_alloc(sizeof(float) * (size_t)((4 * Nq + 4 * Nk) * d));
    float *P = workspace_alloc(2 * sizeof(float) * (size_t)Nq * (size_t)Nk);
    float *O = Q + Nq * d, *dO = O + Nq * d, *dQ = dO + Nq * d;
    float *K = dQ + Nq * d, *V = K + Nk * d, *dK = V + Nk * d, *dV = dK + Nk * d;
    int64_t b, h;
    for (b = 0; Q && P && b < shape->B; b++)
        for (h = 0; h < H; h++) {
            const int64_t h_kv = naive_kv_head(shape, h), group = H / Hkv;
            naive_load_rows(&args->Q, b, h, 0, Nq, Q);
            naive_load_rows(&args->O, b, h, 0, Nq, O);
            naive_load_rows(&args->dO, b, h, 0, Nq, dO);
            naive_clear_empty(args->lse + (b * H + h) * Nq, Nq, d, dO);
            naive_load_rows(&args->K, b, h_kv, 0, Nk, K);
            naive_load_rows(&args->V, b, h_kv, 0, Nk, V);
            if (h % group == 0) /* first query head of its group: new sums */
                clear(dK, 2 * Nk * d);
            clear(dQ, Nq * d);
            gradient_head(args, Q, K, V, O, dO, args->lse + (b * H + h) * Nq, P, P + Nq * Nk, dQ,
                          dK, dV);
            naive_store_rows(&args->dQ, b, h, 0, Nq, dQ);
            if (h % group == group - 1) { /* last one: its keys have heard from every query */
                naive_store_rows(&args->dK, b, h_kv, 0, Nk, dK);
                naive_store_rows(&args->dV, b, h_kv, 0, Nk, dV);
            }
        }
    workspace_free(P);
    workspace_free(Q);
    return Q && P ? ATTN_OK : ATTN_NO_MEMORY;
}
