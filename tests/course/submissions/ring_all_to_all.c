/* SPDX-License-Identifier: MIT
 *
 * ring_all_to_all.c: a right ring method, both passes, in which every rank sends its keys and
 * values to every other one. No ring: --require ring refuses it. Gradients of keys go back to their
 * owner as sums.
 *
 * Interface: ring_method_variant, ring_method_variant_backward (docs/course/include/ring_method.h).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ring_method.h"

static int sees(const RingPart *p, int i, int owner, int j)
{
    const int ahead = p->position[owner][j] - p->position[p->rank][i];
    return (p->left < 0 || ahead >= -p->left) && (p->right < 0 || ahead <= p->right);
}

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* K and V of all ranks: kv[r] holds rank r's keys, then its values. */
static void exchange(const RingPart *p, float **kv)
{
    const size_t row = (size_t)(p->Hkv * p->d);
    const size_t own = row * (size_t)p->tokens[p->rank];
    for (int r = 0; r < p->world; r++)
        kv[r] = calloc(2 * row * (size_t)p->tokens[r], sizeof **kv);
    memcpy(kv[p->rank], p->K, own * sizeof(float));
    memcpy(kv[p->rank] + own, p->V, own * sizeof(float));
    for (int r = 0; r < p->world; r++)
        if (r != p->rank)
            p->send(p, r, kv[p->rank], 2 * own * sizeof(float));
    for (int r = 0; r < p->world; r++)
        if (r != p->rank)
            p->receive(p, r, kv[r], 2 * row * (size_t)p->tokens[r] * sizeof(float));
}

static void forward_row(const RingPart *p, float *const *kv, int h, int i)
{
    const int d = p->d, head = h / (p->H / p->Hkv) * d;
    const long row = (long)p->Hkv * d;
    const float *q = p->Q + ((long)i * p->H + h) * d;
    float *o = p->O + ((long)i * p->H + h) * d, m = -INFINITY, l = 0.0f;
    memset(o, 0, sizeof *o * (size_t)d);
    for (int r = 0; r < p->world; r++)
        for (int j = 0; j < p->tokens[r]; j++) {
            const float *k = kv[r] + j * row + head, *v = k + p->tokens[r] * row;
            float s, m_new, alpha, w;
            if (!sees(p, i, r, j))
                continue;
            s = p->scale * dot(q, k, d);
            m_new = fmaxf(m, s);
            alpha = m == -INFINITY ? 0.0f : expf(m - m_new);
            w = expf(s - m_new);
            for (int x = 0; x < d; x++)
                o[x] = alpha * o[x] + w * v[x];
            l = alpha * l + w;
            m = m_new;
        }
    for (int x = 0; x < d && l > 0.0f; x++)
        o[x] /= l;
    p->lse[h * p->tokens[p->rank] + i] = l > 0.0f ? m + logf(l) : -INFINITY;
}

int ring_method_variant(const RingPart *p)
{
    float *kv[64];
    exchange(p, kv);
    for (int h = 0; h < p->H; h++)
        for (int i = 0; i < p->tokens[p->rank]; i++)
            forward_row(p, kv, h, i);
    return 0;
}

/* What query (h, i) adds to dQ, and to the sums dkv of all keys. */
static void backward_row(const RingPart *p, float *const *kv, float *const *dkv, int h, int i)
{
    const int d = p->d, head = h / (p->H / p->Hkv) * d;
    const long row = (long)p->Hkv * d, at = ((long)i * p->H + h) * d;
    const float delta = dot(p->dO + at, p->O + at, d);
    for (int r = 0; r < p->world; r++)
        for (int j = 0; j < p->tokens[r]; j++) {
            const long key = j * row + head, value = key + p->tokens[r] * row;
            float P, dS;
            if (!sees(p, i, r, j))
                continue;
            P = expf(p->scale * dot(p->Q + at, kv[r] + key, d) -
                     p->lse[h * p->tokens[p->rank] + i]);
            dS = p->scale * P * (dot(p->dO + at, kv[r] + value, d) - delta);
            for (int x = 0; x < d; x++) {
                p->dQ[at + x] += dS * kv[r][key + x];
                dkv[r][key + x] += dS * p->Q[at + x];
                dkv[r][value + x] += P * p->dO[at + x];
            }
        }
}

int ring_method_variant_backward(const RingPart *p)
{
    const size_t row = (size_t)(p->Hkv * p->d), own = row * (size_t)p->tokens[p->rank];
    float *kv[64], *dkv[64], *part = calloc(2 * own, sizeof *part);
    exchange(p, kv);
    memset(p->dQ, 0, sizeof *p->dQ * (size_t)(p->tokens[p->rank] * p->H * p->d));
    for (int r = 0; r < p->world; r++)
        dkv[r] = calloc(2 * row * (size_t)p->tokens[r], sizeof *part);
    for (int h = 0; h < p->H; h++)
        for (int i = 0; i < p->tokens[p->rank]; i++)
            backward_row(p, kv, dkv, h, i);
    for (int r = 0; r < p->world; r++)
        if (r != p->rank)
            p->send(p, r, dkv[r], 2 * row * (size_t)p->tokens[r] * sizeof(float));
    memcpy(p->dK, dkv[p->rank], own * sizeof(float));
    memcpy(p->dV, dkv[p->rank] + own, own * sizeof(float));
    for (int r = 0; r < p->world; r++) {
        if (r == p->rank)
            continue;
        p->receive(p, r, part, 2 * own * sizeof(float));
        for (size_t n = 0; n < own; n++) {
            p->dK[n] += part[n];
            p->dV[n] += part[own + n];
        }
    }
    return 0;
}
