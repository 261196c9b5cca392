/* SPDX-License-Identifier: MIT
 *
 * honest_attention.h: attention in float32 and 16 bits as a careful kernel would compute it, for
 * the tests of the bounds: every rounding happens, none is unnecessary, the order of sums is free.
 *
 * Online softmax over tiles of keys, P rounded to the storage type before P V. (The backward pass,
 * with and without options: honest_options.h.)
 *
 * Interface:
 * - Honest: the choices that two right kernels may make differently.
 * - honest_forward: writes O and lse of a Case.
 * - Shares, shares_add, shares_report: how much of their bounds right results use.
 */
#ifndef HONEST_ATTENTION_H
#define HONEST_ATTENTION_H

#include <math.h>

#include "attn_pairs.h"
#include "judge_case.h"

typedef struct Honest {
    int64_t tile;    /* keys per tile of the online softmax */
    int backwards;   /* keys and channels from last to first */
    int scale_first; /* scale multiplies q (in float32) instead of the score */
    int flush;       /* P below float32's normal range becomes 0, as on a GPU with ftz */
} Honest;

/* tensor element as float */
static inline float honest_at(const Tensor *t, int64_t b, int64_t n, int64_t h, int64_t x)
{
    return case_get(t, b, n, h, x);
}

static inline float honest_dot(const Honest *w, const Tensor *s, const Tensor *t, int64_t b,
                               int64_t i, int64_t h, int64_t j, int64_t kv, float by)
{
    const int64_t d = s->shape[3];
    float sum = 0;
    for (int64_t n = 0; n < d; n++) {
        const int64_t x = w->backwards ? d - 1 - n : n;
        sum += by * honest_at(s, b, i, h, x) * honest_at(t, b, j, kv, x);
    }
    return sum;
}

/* Score of (i, j), and the slope of the cap. */
static inline float honest_score(const Honest *w, const AttnArgs *a, int64_t b, int64_t h,
                                 int64_t i, int64_t j, float *slope)
{
    const int64_t kv = h / (a->shape.H / a->shape.Hkv);
    float s = honest_dot(w, &a->Q, &a->K, b, i, h, j, kv, w->scale_first ? a->scale : 1);
    if (!w->scale_first)
        s *= a->scale;
    *slope = 1;
    if (a->softcap > 0) {
        const float t = tanhf(s / a->softcap);
        *slope = 1 - t * t;
        s = a->softcap * t;
    }
    return s;
}

static inline void honest_row(const Honest *w, const AttnArgs *a, int64_t b, int64_t h, int64_t i)
{
    const AttnShape s = a->shape;
    const int64_t kv = h / (s.H / s.Hkv), tiles = (s.Nk + w->tile - 1) / w->tile;
    float m_i = -INFINITY, l_i = 0, slope, O[1024] = {0};
    for (int64_t n = 0; n < tiles; n++) {
        const int64_t first = (w->backwards ? tiles - 1 - n : n) * w->tile;
        const int64_t last = first + w->tile < s.Nk ? first + w->tile : s.Nk;
        float m_new = m_i, alpha;
        for (int64_t j = first; j < last; j++)
            if (attn_sees(a, i, j))
                m_new = fmaxf(m_new, honest_score(w, a, b, h, i, j, &slope));
        if (m_new == -INFINITY)
            continue;
        alpha = expf(m_i - m_new);
        l_i *= alpha;
        for (int64_t x = 0; x < s.d; x++)
            O[x] *= alpha;
        for (int64_t j = first; j < last; j++) {
            if (!attn_sees(a, i, j))
                continue;
            const float P = expf(honest_score(w, a, b, h, i, j, &slope) - m_new);
            l_i += P;
            for (int64_t x = 0; x < s.d; x++)
                O[x] += dtype_round(a->V.dtype, P) * honest_at(&a->V, b, j, kv, x);
        }
        m_i = m_new;
    }
    for (int64_t x = 0; x < s.d; x++)
        case_set(&a->O, b, i, h, x, l_i > 0 ? O[x] / l_i : 0);
    a->lse[(b * s.H + h) * s.Nq + i] = l_i > 0 ? m_i + logf(l_i) : -INFINITY;
}

static inline void honest_forward(const Honest *w, const AttnArgs *a)
{
    for (int64_t b = 0; b < a->shape.B; b++)
        for (int64_t h = 0; h < a->shape.H; h++)
            for (int64_t i = 0; i < a->shape.Nq; i++)
                honest_row(w, a, b, h, i);
}

static inline float *honest_zeros(const Tensor *t)
{
    float *sum = calloc((size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]), 4);
    assert_non_null(sum);
    return sum;
}

static inline void honest_store(const Tensor *t, float *sum)
{
    for (int64_t b = 0, e = 0; b < t->shape[0]; b++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t h = 0; h < t->shape[2]; h++)
                for (int64_t x = 0; x < t->shape[3]; x++)
                    case_set(t, b, n, h, x, sum[e++]);
    free(sum);
}

/* The worst share of each bound so far. */
typedef double Shares[3][CHECK_COUNT];

static inline void shares_add(Shares worst, AttnDtype dtype, const Check *check)
{
    for (int which = 0; which < CHECK_COUNT; which++)
        worst[dtype][which] = fmax(worst[dtype][which], check->array[which].worst_ratio);
}

/* Of the first `arrays`. A bound that right results never come near would say nothing. */
static inline void shares_report(const char *whose, Shares worst, int arrays)
{
    static const char *const names[] = {"O", "lse", "dQ", "dK", "dV", "dwq", "dwk"};
    for (int dtype = 0; dtype < 3; dtype++) {
        char line[160];
        for (int which = 0, at = 0; which < arrays; which++)
            at += snprintf(line + at, sizeof line - (size_t)at, " %s %.3f", names[which],
                           worst[dtype][which]);
        print_message("# worst share of the bound, %s, %s:%s\n", whose,
                      dtype_name((AttnDtype)dtype), line);
        for (int which = 0; which < arrays; which++)
            assert_true(worst[dtype][which] > (which < CHECK_DWQ ? 0.01 : 0.001) &&
                        worst[dtype][which] <= 1);
    }
}

#endif
