/* SPDX-License-Identifier: MIT
 *
 * plain_options.h: attention with every option of stage 05, in float64, written down once more as
 * the definition says it and slowly: no tiles, no bounds, nothing of the oracle's code. Tests
 * compare the oracle with it and differentiate it numerically.
 *
 * Interface:
 * - OptionCase: a Case (oracle_case.h) with options. option_case_new / option_case_free.
 * - Plain: float64 copies of the inputs, which a test may move. plain_new / plain_free.
 * - plain_forward: O, lse and the weights; plain_loss: sum dO O. oracle_element: from Plain's order
 *   to the oracle's.
 */
#ifndef PLAIN_OPTIONS_H
#define PLAIN_OPTIONS_H

#include <math.h>

#include "attn_pairs.h"
#include "harness/io/philox.h"
#include "oracle_case.h"

typedef struct OptionCase {
    Case *c;
    AttnOptions options;
    float *wq, *wk, *dwq, *dwk;
} OptionCase;

typedef struct Plain {
    const AttnArgs *args;
    double *Q, *K, *V, *dO;              /* [B][N][heads][d] */
    double *wq, *wk;                     /* [H*d], [Hkv*d] */
    double *O;                           /* like Q */
    double *lse;                         /* [B][H][Nq] */
    double *P, *A;                       /* [B][H][Nq][Nk]: probabilities, and what multiplies V */
    int64_t low, high, between, dropped; /* visible pairs by what happened to them */
    double kink;                         /* the smallest distance of a clip's argument to 0 or 1 */
    int rounds;                          /* 1: Qn and Kn are rounded to the dtype */
} Plain;

static inline OptionCase option_case_new(const Option *like, AttnDtype dtype, int larger, float by)
{
    OptionCase o = {.c = case_option(like, dtype, larger, by)};
    const AttnShape *s = &o.c->args.shape;
    float **const all[] = {&o.wq, &o.wk, &o.dwq, &o.dwk};
    for (int n = 0; n < 4; n++) {
        const int64_t count = (n % 2 ? s->Hkv : s->H) * s->d;
        *all[n] = malloc(sizeof(float) * (size_t)count);
        assert_non_null(*all[n]);
        for (int64_t e = 0; e < count; e++)
            (*all[n])[e] = 1 + case_normal() / 4;
    }
    o.options = (AttnOptions){1, 0, 1, 0, 7, 0, 1e-5f, o.wq, o.wk, o.dwq, o.dwk};
    return o;
}

static inline void option_case_free(OptionCase *o)
{
    case_free(o->c);
    free(o->wq);
    free(o->wk);
    free(o->dwq);
    free(o->dwk);
}

static inline double *plain_copy(const Tensor *t)
{
    double *to = malloc(sizeof *to * (size_t)tensor_count(t)), *at = to;
    assert_non_null(to);
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t h = 0; h < t->shape[2]; h++)
                for (int64_t x = 0; x < t->shape[3]; x++)
                    *at++ = case_get(t, b, n, h, x);
    return to;
}

static inline double *plain_zeros(int64_t count)
{
    double *to = calloc((size_t)count, sizeof *to);
    assert_non_null(to);
    return to;
}

static inline Plain plain_new(const AttnArgs *a)
{
    const AttnShape s = a->shape;
    Plain p = {.args = a};
    p.Q = plain_copy(&a->Q);
    p.K = plain_copy(&a->K);
    p.V = plain_copy(&a->V);
    p.dO = plain_copy(&a->dO);
    p.O = plain_zeros(s.B * s.Nq * s.H * s.d);
    p.lse = plain_zeros(s.B * s.H * s.Nq);
    p.P = plain_zeros(s.B * s.H * s.Nq * s.Nk);
    p.A = plain_zeros(s.B * s.H * s.Nq * s.Nk);
    p.wq = plain_zeros(s.H * s.d);
    p.wk = plain_zeros(s.Hkv * s.d);
    for (int64_t e = 0; e < s.H * s.d; e++)
        p.wq[e] = a->options->wq[e];
    for (int64_t e = 0; e < s.Hkv * s.d; e++)
        p.wk[e] = a->options->wk[e];
    return p;
}

static inline void plain_free(Plain *p)
{
    double *all[] = {p->Q, p->K, p->V, p->dO, p->wq, p->wk, p->O, p->lse, p->P, p->A};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
}

/* Channel x of the normalised row [d]. */
static inline double plain_norm(const Plain *p, const double *row, const double *w, int64_t x)
{
    const AttnOptions *o = p->args->options;
    const int64_t group = o->norm_group;
    double squares = 0, value;
    if (group == 0)
        return row[x];
    for (int64_t y = x / group * group; y < (x / group + 1) * group; y++)
        squares += row[y] * row[y];
    value = w[x] * row[x] / sqrt(squares / (double)group + (double)o->norm_eps);
    return p->rounds ? dtype_round_f64(p->args->Q.dtype, value) : value;
}

/* Index within the sequence; the cases have one segment per sequence, or one sequence whose
 * segments follow each other. */
static inline int64_t plain_index(AttnPositions map, int64_t n)
{
    int64_t first = 0;
    for (int64_t s = 0; s < map.count; s++)
        if (map.segments[s].first <= n &&
            (s == 0 || map.segments[s].sequence != map.segments[s - 1].sequence))
            first = map.segments[s].first;
    return n - first;
}

/* clip and dropout of one probability */
static inline double plain_weight(Plain *p, int64_t b, int64_t h, int64_t i, int64_t j, double P)
{
    const AttnArgs *a = p->args;
    const AttnOptions *o = a->options;
    const double t = ((double)o->clip_high - o->clip_low) * P + o->clip_low;
    double A = t < 0 ? 0 : t > 1 ? 1 : t;
    const int64_t sequence = attn_position(a->positions_q, i).sequence;
    if (o->clip_low < 0)
        p->kink = fmin(p->kink, fabs(t));
    if (o->clip_high > 1)
        p->kink = fmin(p->kink, fabs(1 - t));
    p->low += t < 0;
    p->high += t > 1;
    p->between += t > 0 && t < 1;
    if (o->dropout > 0) {
        const int keep = attn_keeps(o, attn_dropout_threshold(o->dropout), b + sequence, h,
                                    plain_index(a->positions_q, i), plain_index(a->positions_k, j));
        p->dropped += !keep;
        A *= keep ? 1 / (1 - (double)o->dropout) : 0;
    }
    return A;
}

static inline void plain_row(Plain *p, int64_t b, int64_t h, int64_t i)
{
    const AttnArgs *a = p->args;
    const AttnShape s = a->shape;
    const int64_t kv = h / (s.H / s.Hkv), row = (b * s.H + h) * s.Nq + i;
    double *P = p->P + row * s.Nk, *A = p->A + row * s.Nk,
           *O = p->O + ((b * s.Nq + i) * s.H + h) * s.d;
    const double *q = p->Q + ((b * s.Nq + i) * s.H + h) * s.d;
    double sum = 0;
    memset(O, 0, sizeof *O * (size_t)s.d);
    for (int64_t j = 0; j < s.Nk; j++) {
        const double *k = p->K + ((b * s.Nk + j) * s.Hkv + kv) * s.d;
        double score = 0;
        A[j] = 0;
        P[j] = -1; /* not seen */
        if (!attn_sees(a, i, j))
            continue;
        for (int64_t x = 0; x < s.d; x++)
            score += plain_norm(p, q, p->wq + h * s.d, x) * plain_norm(p, k, p->wk + kv * s.d, x);
        score *= a->scale;
        score = a->softcap > 0 ? a->softcap * tanh(score / a->softcap)
                               : score / a->options->temperature;
        sum += P[j] = exp(score);
    }
    p->lse[row] = log(sum);
    for (int64_t j = 0; j < s.Nk; j++) {
        if (P[j] < 0) {
            P[j] = 0;
            continue;
        }
        P[j] /= sum;
        A[j] = plain_weight(p, b, h, i, j, P[j]);
        for (int64_t x = 0; x < s.d; x++)
            O[x] += A[j] * p->V[((b * s.Nk + j) * s.Hkv + kv) * s.d + x];
    }
}

static inline void plain_forward(Plain *p)
{
    const AttnShape s = p->args->shape;
    p->low = p->high = p->between = p->dropped = 0;
    p->kink = INFINITY;
    for (int64_t row = 0; row < s.B * s.H * s.Nq; row++)
        plain_row(p, row / (s.H * s.Nq), row / s.Nq % s.H, row % s.Nq);
}

static inline double plain_loss(Plain *p)
{
    const AttnShape s = p->args->shape;
    double sum = 0;
    plain_forward(p);
    for (int64_t e = 0; e < s.B * s.Nq * s.H * s.d; e++)
        sum += p->dO[e] * p->O[e];
    return sum;
}

/* Element e of a contiguous [B][N][heads][d] is element [b][h][n][x] of an oracle's array. */
static inline int64_t oracle_element(int64_t e, int64_t N, int64_t heads, int64_t d)
{
    const int64_t x = e % d, h = e / d % heads, n = e / (d * heads) % N, b = e / (d * heads * N);
    return ((b * heads + h) * N + n) * d + x;
}

#endif
