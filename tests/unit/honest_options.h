/* SPDX-License-Identifier: MIT
 *
 * honest_options.h: attention with stage 05's options in float32 and 16 bits as a careful kernel
 * would compute it (honest_attention.h does it without options), and the same with one mistake, to
 * see that the bounds of the oracle let the first pass and not the second. And the backward pass of
 * attention without options: delta from the rounded O, P from the float32 lse, P and dS rounded to
 * the storage type.
 *
 * Qn and Kn are rounded to the dtype, the temperature is part of a float32 scale, weights are made
 * from the largest score and the sum of a row, backward from a finished float32 lse, and rounded
 * before they meet V, gradients of Qn and Kn stay float32
 * until the gradient of the normalisation has been taken.
 *
 * Interface:
 * - Mistake. HonestOptions: order of sums, root of a GPU, and what to do wrong.
 * - honest_options_run: writes O, lse, dQ, dK, dV, dwq, dwk of args.
 * - honest_backward: writes dQ, dK, dV of args without options, after honest_forward.
 */
#ifndef HONEST_OPTIONS_H
#define HONEST_OPTIONS_H

#include <math.h>

#include "attn_pairs.h"
#include "harness/io/philox.h"
#include "honest_attention.h"

typedef enum Mistake {
    RIGHT,
    CAP_AND_TEMPERATURE,  /* both, instead of the cap alone */
    NORM_UNROUNDED,       /* Qn and Kn never rounded to the dtype */
    NORM_WHOLE_HEAD,      /* one group instead of several */
    NORM_WITHOUT_WEIGHTS, /* in its gradient */
    CLIP_WITH_ROWSUM,     /* delta = rowsum(dO * O) though weights are clipped */
    CLIP_GRADIENT_PASSES, /* where the weight is clipped, too */
    DROPOUT_UNSCALED,     /* kept weights not multiplied by 1/(1-p) */
    DROPOUT_BEFORE_CLIP,  /* the wrong order */
    DROPOUT_OF_KEYS_ONLY, /* the counter forgets the row */
    LSE_OF_WEIGHTS,       /* lse = log of what is left after the clip and dropout */
    DW_LAST_BATCH,        /* dwq, dwk of the last batch alone */
    MISTAKE_COUNT
} Mistake;

typedef struct HonestOptions {
    Honest way;
    Mistake mistake;
    float tilt; /* relative: added to Qn and Kn before they are rounded */
} HonestOptions;

/* What one run needs: plain arguments (normalised Q and K, the scale) and float32 sums. */
typedef struct HonestRun {
    const HonestOptions *how;
    const AttnArgs *args;
    AttnArgs plain;
    Storage Qn, Kn;
    float *dQn, *dKn, *dV; /* [B][N][heads][d] */
} HonestRun;

static inline float honest_root(const HonestOptions *how, float mean)
{
    const float r = 1 / sqrtf(mean);
    return how->way.scale_first ? nextafterf(nextafterf(r, 2 * r), 2 * r) : r; /* 2 ulp */
}

/* r of the group of channel x in row (b, n, h) of t */
static inline float honest_size(const HonestOptions *how, const AttnOptions *o, const Tensor *t,
                                int64_t b, int64_t n, int64_t h, int64_t x, int64_t group)
{
    float squares = 0;
    for (int64_t y = 0; y < group; y++) {
        const int64_t at = x / group * group + (how->way.backwards ? group - 1 - y : y);
        squares += honest_at(t, b, n, h, at) * honest_at(t, b, n, h, at);
    }
    return honest_root(how, squares / (float)group + o->norm_eps);
}

static inline int64_t honest_group(const HonestOptions *how, const AttnArgs *a)
{
    return how->mistake == NORM_WHOLE_HEAD ? a->shape.d : a->options->norm_group;
}

/* Xn is float32 where nothing is rounded. */
static inline void honest_normalise(const HonestRun *r, const Tensor *X, const float *w,
                                    const Tensor *Xn)
{
    const int64_t group = honest_group(r->how, r->args), d = X->shape[3];
    for (int64_t b = 0; b < X->shape[0]; b++)
        for (int64_t n = 0; n < X->shape[1]; n++)
            for (int64_t h = 0; h < X->shape[2]; h++)
                for (int64_t x = 0; x < d; x++) {
                    const float size = honest_size(r->how, r->args->options, X, b, n, h, x, group);
                    const float value = honest_at(X, b, n, h, x) * size * w[h * d + x];
                    case_set(Xn, b, n, h, x, value * (1 + r->how->tilt));
                }
}

/* dXn becomes dX in t, and dw gets its sums. */
static inline void honest_normalise_gradient(const HonestRun *r, const Tensor *X, const float *w,
                                             const float *dXn, const Tensor *dX, float *dw)
{
    const int64_t group = honest_group(r->how, r->args), d = X->shape[3], heads = X->shape[2];
    memset(dw, 0, sizeof *dw * (size_t)(heads * d));
    for (int64_t row = 0; row < X->shape[0] * X->shape[1] * heads; row++) {
        const int64_t h = row % heads, n = row / heads % X->shape[1], b = row / heads / X->shape[1];
        const float *g = dXn + row * d;
        for (int64_t first = 0; first < d; first += group) {
            const float size = honest_size(r->how, r->args->options, X, b, n, h, first, group);
            float mean = 0;
            for (int64_t x = first; x < first + group; x++) {
                const float hat = honest_at(X, b, n, h, x) * size;
                mean += w[h * d + x] * g[x] * hat;
                if (r->how->mistake != DW_LAST_BATCH || b == X->shape[0] - 1)
                    dw[h * d + x] += g[x] * hat;
            }
            mean /= (float)group;
            for (int64_t x = first; x < first + group; x++) {
                const float weight = r->how->mistake == NORM_WITHOUT_WEIGHTS ? 1 : w[h * d + x];
                const float hat = honest_at(X, b, n, h, x) * size;
                case_set(dX, b, n, h, x, size * (weight * g[x] - hat * mean));
            }
        }
    }
}

/* What multiplies V, and its derivative by P. */
static inline float honest_weight(const HonestRun *r, int64_t b, int64_t h, int64_t i, int64_t j,
                                  float P, float *gain)
{
    const AttnArgs *a = r->args;
    const AttnOptions *o = a->options;
    const AttnPosition q = attn_position(a->positions_q, i);
    int64_t q_first = 0, k_first = 0;
    float A = P, f = 1;
    *gain = 1;
    if (!o)
        return P;
    while (attn_position(a->positions_q, q_first).sequence != q.sequence)
        q_first++;
    while (attn_position(a->positions_k, k_first).sequence != q.sequence)
        k_first++;
    if (o->dropout > 0) {
        const int64_t row = r->how->mistake == DROPOUT_OF_KEYS_ONLY ? 0 : i - q_first;
        f = attn_keeps(o, attn_dropout_threshold(o->dropout), b + q.sequence, h, row, j - k_first)
                ? 1 / (1 - o->dropout)
                : 0;
        if (r->how->mistake == DROPOUT_UNSCALED)
            f = f > 0;
    }
    if (r->how->mistake == DROPOUT_BEFORE_CLIP)
        A *= f;
    if (o->clip_low != 0 || o->clip_high != 1) {
        const float width = o->clip_high - o->clip_low, t = width * A + o->clip_low;
        *gain = (t < 0 || t > 1) && r->how->mistake != CLIP_GRADIENT_PASSES ? 0 : width;
        A = fminf(fmaxf(t, 0), 1);
    }
    *gain *= f;
    return r->how->mistake == DROPOUT_BEFORE_CLIP ? A : A * f;
}

/* O and lse of one row. */
static inline void honest_option_row(const HonestRun *r, int64_t b, int64_t h, int64_t i)
{
    const AttnArgs *a = &r->plain;
    const AttnShape s = a->shape;
    const int64_t kv = h / (s.H / s.Hkv);
    float m_i = -INFINITY, l_i = 0, slope, O[1024] = {0}, lse, left = 0;
    for (int64_t j = 0; j < s.Nk; j++)
        if (attn_sees(a, i, j))
            m_i = fmaxf(m_i, honest_score(&r->how->way, a, b, h, i, j, &slope));
    for (int64_t j = 0; j < s.Nk; j++)
        if (attn_sees(a, i, j))
            l_i += expf(honest_score(&r->how->way, a, b, h, i, j, &slope) - m_i);
    lse = l_i > 0 ? m_i + logf(l_i) : -INFINITY;
    for (int64_t n = 0; n < s.Nk; n++) {
        const int64_t j = r->how->way.backwards ? s.Nk - 1 - n : n;
        float P, A, gain;
        if (!attn_sees(a, i, j))
            continue;
        P = expf(honest_score(&r->how->way, a, b, h, i, j, &slope) - m_i) / l_i;
        A = honest_weight(r, b, h, i, j, P, &gain);
        left += A;
        for (int64_t x = 0; x < s.d; x++)
            O[x] += dtype_round(a->V.dtype, A) * honest_at(&a->V, b, j, kv, x);
    }
    for (int64_t x = 0; x < s.d; x++)
        case_set(&a->O, b, i, h, x, O[x]);
    a->lse[(b * s.H + h) * s.Nq + i] = r->how->mistake == LSE_OF_WEIGHTS ? lse + logf(left) : lse;
}

/* P from lse, and what honest_weight makes of it. */
static inline float honest_again(const HonestRun *r, int64_t b, int64_t h, int64_t i, int64_t j,
                                 float *A, float *slope, float *gain)
{
    const AttnArgs *a = &r->plain;
    const float S = honest_score(&r->how->way, a, b, h, i, j, slope);
    float P = expf(S - a->lse[(b * a->shape.H + h) * a->shape.Nq + i]);
    if (r->how->way.flush && P < 0x1p-126f)
        P = 0;
    *A = honest_weight(r, b, h, i, j, P, gain);
    return P;
}

/* Adds row i of head h to the three sums. */
static inline void honest_gradient(const HonestRun *r, int64_t b, int64_t h, int64_t i)
{
    const AttnArgs *a = &r->plain;
    const AttnOptions *o = r->args->options;
    const AttnShape s = a->shape;
    const Honest *w = &r->how->way;
    const int64_t kv = h / (s.H / s.Hkv), q_at = ((b * s.Nq + i) * s.H + h) * s.d;
    float delta = honest_dot(w, &a->dO, &a->O, b, i, h, i, h, 1), A, slope, gain;
    if (o && (o->clip_low != 0 || o->clip_high != 1) && r->how->mistake != CLIP_WITH_ROWSUM) {
        delta = 0;
        for (int64_t j = 0; j < s.Nk; j++)
            if (attn_sees(a, i, j)) {
                const float P = honest_again(r, b, h, i, j, &A, &slope, &gain);
                delta += P * (gain * honest_dot(w, &a->dO, &a->V, b, i, h, j, kv, 1));
            }
    }
    for (int64_t n = 0; n < s.Nk; n++) {
        const int64_t j = w->backwards ? s.Nk - 1 - n : n;
        const int64_t k_at = ((b * s.Nk + j) * s.Hkv + kv) * s.d;
        if (!attn_sees(a, i, j))
            continue;
        const float P = honest_again(r, b, h, i, j, &A, &slope, &gain);
        const float dP = gain * honest_dot(w, &a->dO, &a->V, b, i, h, j, kv, 1);
        const float dS = dtype_round(r->args->Q.dtype, P * (dP - delta) * slope);
        A = dtype_round(a->Q.dtype, A);
        for (int64_t x = 0; x < s.d; x++) {
            r->dQn[q_at + x] += a->scale * (dS * honest_at(&a->K, b, j, kv, x));
            r->dKn[k_at + x] += a->scale * (dS * honest_at(&a->Q, b, i, h, x));
            r->dV[k_at + x] += A * honest_at(&a->dO, b, i, h, x);
        }
    }
}

/* The three sums over all rows; dV is stored. */
static inline void honest_gradients(HonestRun *r)
{
    const AttnArgs *a = r->args;
    const AttnShape s = a->shape;
    r->dQn = honest_zeros(&a->Q);
    r->dKn = honest_zeros(&a->K);
    r->dV = honest_zeros(&a->V);
    for (int64_t row = 0; row < s.B * s.H * s.Nq; row++)
        honest_gradient(r, row / (s.H * s.Nq), row / s.Nq % s.H,
                        r->how->way.backwards ? s.Nq - 1 - row % s.Nq : row % s.Nq);
    honest_store(&a->dV, r->dV);
}

static inline void honest_backward(const Honest *w, const AttnArgs *a)
{
    const HonestOptions how = {*w, RIGHT, 0};
    HonestRun r = {.how = &how, .args = a, .plain = *a};
    honest_gradients(&r);
    honest_store(&a->dQ, r.dQn);
    honest_store(&a->dK, r.dKn);
}

static inline void honest_options_run(const HonestOptions *how, const AttnArgs *a)
{
    const AttnShape s = a->shape;
    const AttnOptions *o = a->options;
    const AttnDtype dtype = how->mistake == NORM_UNROUNDED ? ATTN_F32 : a->Q.dtype;
    HonestRun r = {.how = how, .args = a, .plain = *a};
    if (a->softcap == 0 || how->mistake == CAP_AND_TEMPERATURE)
        r.plain.scale = a->scale / o->temperature;
    if (o->norm_group) {
        assert_int_equal(0, tensor_new(&r.Qn, dtype, LAYOUT_BSHD, s.B, s.Nq, s.H, s.d));
        assert_int_equal(0, tensor_new(&r.Kn, dtype, LAYOUT_BSHD, s.B, s.Nk, s.Hkv, s.d));
        honest_normalise(&r, &a->Q, o->wq, &r.Qn.view);
        honest_normalise(&r, &a->K, o->wk, &r.Kn.view);
        r.plain.Q = r.Qn.view;
        r.plain.K = r.Kn.view;
    }
    for (int64_t row = 0; row < s.B * s.H * s.Nq; row++)
        honest_option_row(&r, row / (s.H * s.Nq), row / s.Nq % s.H, row % s.Nq);
    honest_gradients(&r);
    if (!o->norm_group) {
        honest_store(&a->dQ, r.dQn);
        honest_store(&a->dK, r.dKn);
        return;
    }
    honest_normalise_gradient(&r, &a->Q, o->wq, r.dQn, &a->dQ, o->dwq);
    honest_normalise_gradient(&r, &a->K, o->wk, r.dKn, &a->dK, o->dwk);
    free(r.dQn);
    free(r.dKn);
    tensor_free(&r.Qn);
    tensor_free(&r.Kn);
}

#endif
