/* SPDX-License-Identifier: MIT
 *
 * right.c: a right submission for every small contract, by the definitions and without any speed.
 * test_grade.py grades it, and copies of it with one mistake.
 *
 * Interface: the functions of docs/course/include but those of whole stages and of rings.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backward_steps.h"
#include "flash_simple.h"
#include "sliding_window_step.h"
#include "softmax_merge.h"
#include "softmax_rows.h"
#include "softmax_twist.h"

#ifndef GROUPS
#define GROUPS 0 /* 1: softmax_twist by labels; 0: the lse of windows */
#endif

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

static float exp_above(float s, float m) /* exp(s - m), and 0 for an empty set */
{
    return s == -INFINITY ? 0.0f : expf(s - m);
}

int softmax_merge_variant(const float *m_a, const float *l_a, const float *m_b, const float *l_b,
                          float *m, float *l, int n)
{
    for (int k = 0; k < n; k++) {
        m[k] = fmaxf(m_a[k], m_b[k]);
        l[k] = l_a[k] * exp_above(m_a[k], m[k]) + l_b[k] * exp_above(m_b[k], m[k]);
    }
    return 0;
}

int softmax_rows_variant(const float *S, float *P, float *lse, int rows, int cols)
{
    for (int r = 0; r < rows; r++, S += cols, P += cols) {
        float m = -INFINITY, l = 0.0f;
        for (int c = 0; c < cols; c++)
            m = fmaxf(m, S[c]);
        for (int c = 0; c < cols; c++)
            l += exp_above(S[c], m);
        for (int c = 0; c < cols; c++)
            P[c] = l > 0.0f ? exp_above(S[c], m) / l : 0.0f;
        lse[r] = l > 0.0f ? m + logf(l) : -INFINITY;
    }
    return 0;
}

/* Slowly: width operations for each element. */
int softmax_twist_variant(const float *S, const int *label, float *out, int rows, int cols,
                          int width)
{
    for (int r = 0; r < rows; r++, S += cols, out += cols)
        for (int c = 0; c < cols; c++) {
            float m = -INFINITY, l = 0.0f;
            const int first = GROUPS ? 0 : c + 1 > width ? c + 1 - width : 0;
            const int last = GROUPS ? cols - 1 : c;
            for (int k = first; k <= last; k++)
                if (!GROUPS || label[k] == label[c])
                    m = fmaxf(m, S[k]);
            for (int k = first; k <= last; k++)
                if (!GROUPS || label[k] == label[c])
                    l += expf(S[k] - m);
            out[c] = GROUPS ? expf(S[c] - m) / l : m + logf(l);
        }
    return 0;
}

int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal)
{
    const float scale = 1.0f / sqrtf((float)d);
    for (int i = 0; i < N; i++) {
        float m = -INFINITY, l = 0.0f;
        float *O_i = O + i * d;
        memset(O_i, 0, sizeof *O_i * (size_t)d);
        for (int j = 0; j < (causal ? i + 1 : N); j++) {
            const float s = scale * dot(Q + i * d, K + j * d, d);
            const float m_new = fmaxf(m, s), alpha = exp_above(m, m_new), p = expf(s - m_new);
            l = alpha * l + p;
            for (int x = 0; x < d; x++)
                O_i[x] = alpha * O_i[x] + p * V[j * d + x];
            m = m_new;
        }
        for (int x = 0; x < d; x++)
            O_i[x] /= l;
        lse[i] = m + logf(l);
    }
    return 0;
}

int backward_delta_variant(const float *O, const float *dO, float *delta, int N, int d)
{
    for (int i = 0; i < N; i++)
        delta[i] = dot(O + i * d, dO + i * d, d);
    return 0;
}

static float weight(const float *Q, const float *K, const float *lse, int i, int j, int d)
{
    return expf(dot(Q + i * d, K + j * d, d) / sqrtf((float)d) - lse[i]);
}

int backward_dv_variant(const float *Q, const float *K, const float *lse, const float *dO,
                        float *dV, int N, int d, int causal)
{
    memset(dV, 0, sizeof *dV * (size_t)(N * d));
    for (int i = 0; i < N; i++)
        for (int j = 0; j < (causal ? i + 1 : N); j++) {
            const float p = weight(Q, K, lse, i, j, d);
            for (int x = 0; x < d; x++)
                dV[j * d + x] += p * dO[i * d + x];
        }
    return 0;
}

/* dK [N][d] or dQ [N][d], whichever is not NULL */
static int add_scores(const float *Q, const float *K, const float *V, const float *lse,
                      const float *dO, const float *delta, float *dK, float *dQ, int N, int d,
                      int causal)
{
    memset(dK ? dK : dQ, 0, sizeof *Q * (size_t)(N * d));
    for (int i = 0; i < N; i++)
        for (int j = 0; j < (causal ? i + 1 : N); j++) {
            const float dP = dot(dO + i * d, V + j * d, d);
            const float dS = weight(Q, K, lse, i, j, d) * (dP - delta[i]) / sqrtf((float)d);
            for (int x = 0; x < d; x++)
                if (dK)
                    dK[j * d + x] += dS * Q[i * d + x];
                else
                    dQ[i * d + x] += dS * K[j * d + x];
        }
    return 0;
}

int backward_dk_variant(const float *Q, const float *K, const float *V, const float *lse,
                        const float *dO, const float *delta, float *dK, int N, int d, int causal)
{
    return add_scores(Q, K, V, lse, dO, delta, dK, NULL, N, d, causal);
}

int backward_dq_variant(const float *Q, const float *K, const float *V, const float *lse,
                        const float *dO, const float *delta, float *dQ, int N, int d, int causal)
{
    return add_scores(Q, K, V, lse, dO, delta, NULL, dQ, N, d, causal);
}

static int sees(const SlidingStep *t, int r, int c)
{
    const int ahead = t->position_k + c - (t->position_q + r);
    return (t->left < 0 || ahead >= -t->left) && (t->right < 0 || ahead <= t->right);
}

int sliding_window_step_variant(const SlidingStep *t)
{
    const int d = t->d;
    for (int r = 0; r < t->rows_q; r++) {
        float *O = t->global_o + (t->first_row + r) * d, *lse = t->global_lse + t->first_row + r;
        for (int c = 0; c < t->rows_k; c++) { /* a key at a time */
            const float s = t->scale * dot(t->Q_i + r * d, t->K_j + c * d, d);
            const float most = fmaxf(*lse, s);
            const float both = most + logf(exp_above(*lse, most) + expf(s - most));
            if (!sees(t, r, c))
                continue;
            for (int x = 0; x < d; x++)
                O[x] = exp_above(*lse, both) * O[x] + expf(s - both) * t->V_j[c * d + x];
            *lse = both;
        }
    }
    return 0;
}
