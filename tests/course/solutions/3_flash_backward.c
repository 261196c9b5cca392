/* SPDX-License-Identifier: MIT
 *
 * 3_flash_backward.c: a solution of assignment 3, for the tests of the course kit. It is part of
 * no handout.
 *
 * P and dS are computed again, one number at a time, from Q, K and lse. dV and dK add over queries,
 * dQ over keys; no array has more than N * d elements.
 *
 * Interface:
 * - backward_delta_variant, backward_dv_variant, backward_dk_variant, backward_dq_variant:
 *   docs/course/include/backward_steps.h.
 */
#include <math.h>
#include <string.h>

#include "backward_steps.h"

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

static void add_scaled(float *to, float factor, const float *from, int d)
{
    for (int x = 0; x < d; x++)
        to[x] += factor * from[x];
}

static int sees(int i, int j, int causal)
{
    return !causal || j <= i;
}

int backward_delta_variant(const float *O, const float *dO, float *delta, int N, int d)
{
    for (int i = 0; i < N; i++)
        delta[i] = dot(O + (long)i * d, dO + (long)i * d, d);
    return 0;
}

int backward_dv_variant(const float *Q, const float *K, const float *lse, const float *dO,
                        float *dV, int N, int d, int causal)
{
    float scale = 1.0f / sqrtf((float)d);
    memset(dV, 0, sizeof(float) * (size_t)N * (size_t)d);
    for (int j = 0; j < N; j++)
        for (int i = 0; i < N; i++)
            if (sees(i, j, causal)) {
                float p = expf(scale * dot(Q + (long)i * d, K + (long)j * d, d) - lse[i]);
                add_scaled(dV + (long)j * d, p, dO + (long)i * d, d);
            }
    return 0;
}

/* scale * dS_ij */
static float score_gradient(const float *q, const float *k, const float *v, const float *dO,
                            float lse, float delta, int d)
{
    float scale = 1.0f / sqrtf((float)d);
    return scale * expf(scale * dot(q, k, d) - lse) * (dot(dO, v, d) - delta);
}

int backward_dk_variant(const float *Q, const float *K, const float *V, const float *lse,
                        const float *dO, const float *delta, float *dK, int N, int d, int causal)
{
    memset(dK, 0, sizeof(float) * (size_t)N * (size_t)d);
    for (int j = 0; j < N; j++)
        for (int i = 0; i < N; i++)
            if (sees(i, j, causal)) {
                long q = (long)i * d, k = (long)j * d;
                add_scaled(dK + k, score_gradient(Q + q, K + k, V + k, dO + q, lse[i], delta[i], d),
                           Q + q, d);
            }
    return 0;
}

int backward_dq_variant(const float *Q, const float *K, const float *V, const float *lse,
                        const float *dO, const float *delta, float *dQ, int N, int d, int causal)
{
    memset(dQ, 0, sizeof(float) * (size_t)N * (size_t)d);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            if (sees(i, j, causal)) {
                long q = (long)i * d, k = (long)j * d;
                add_scaled(dQ + q, score_gradient(Q + q, K + k, V + k, dO + q, lse[i], delta[i], d),
                           K + k, d);
            }
    return 0;
}
