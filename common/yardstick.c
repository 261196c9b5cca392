/* SPDX-License-Identifier: MIT
 *
 * yardstick.c: attention as a framework computes it in low precision, to see what error is usual.
 *
 * FlashAttention's tests compare a kernel not with a tolerance but with this: every matrix that a
 * plain implementation would store (scaled Q, S, P, dP, dS and the results) is rounded to the
 * storage type, every sum is float32. For f32 nothing is rounded. One row of scores exists at a
 * time. Nothing is shared with the oracle or with any variant, so that an error in one of them does
 * not hide here. Stage 05's options: yardstick_options.c.
 *
 * Interface: yardstick.h.
 */
#include "yardstick.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor.h"
#include "yardstick_options.h"

/* Pair-channels, masked ones too: of all rows of a group for its dK and dV; of the sampled rows of
 * the largest cases. */
#define GROUP_BUDGET 4e10
#define ROWS_BUDGET  2e9

/* One key/value head as float rows, and the sums that all its query heads add to. */
typedef struct PlainHead {
    const AttnArgs *args;
    AttnDtype dtype;
    AttnPosition *q_at, *k_at;
    float *Kt, *Vt;         /* [d][Nk]: a row of scores is then d long additions of rows */
    float *K, *V;           /* [Nk][d] */
    float *dK, *dV;         /* [Nk][d], backward */
    float *q, *dO, *O, *dQ; /* [d] */
    float *S, *P, *dP;      /* [Nk] */
    float *slope;           /* [Nk] */
    float *A, *gain;        /* [Nk] what multiplies V, and its derivative by P */
    YardstickOptions options;
    uint8_t *seen; /* [Nk] */
    float *memory;
} PlainHead;

static float round_to(const PlainHead *p, float x)
{
    return p->dtype == ATTN_F32 ? x : dtype_round(p->dtype, x);
}

/* y[0..n) += a * x[0..n) */
static void add_scaled(float *restrict y, float a, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void head_free(PlainHead *p)
{
    free(p->memory);
    free(p->q_at);
    free(p->k_at);
    free(p->seen);
}

static int head_make(PlainHead *p, const AttnArgs *args)
{
    const AttnShape *s = &args->shape;
    const int64_t kd = s->Nk * s->d;
    float *at;
    memset(p, 0, sizeof *p);
    p->args = args;
    p->dtype = args->Q.dtype;
    p->q_at = malloc(sizeof *p->q_at * (size_t)s->Nq);
    p->k_at = malloc(sizeof *p->k_at * (size_t)s->Nk);
    p->seen = malloc((size_t)s->Nk);
    at = p->memory = calloc((size_t)(6 * kd + 4 * s->d + 6 * s->Nk), sizeof(float));
    if (!p->q_at || !p->k_at || !p->seen || !p->memory) {
        head_free(p);
        return -1;
    }
    float **const big[] = {&p->Kt, &p->Vt, &p->K, &p->V, &p->dK, &p->dV};
    float **const rows[] = {&p->q, &p->dO, &p->O, &p->dQ};
    float **const scores[] = {&p->S, &p->P, &p->dP, &p->slope, &p->A, &p->gain};
    for (int n = 0; n < 6; n++, at += kd)
        *big[n] = at;
    for (int n = 0; n < 4; n++, at += s->d)
        *rows[n] = at;
    for (int n = 0; n < 6; n++, at += s->Nk)
        *scores[n] = at;
    p->options = yardstick_options(args);
    for (int64_t i = 0; i < s->Nq; i++)
        p->q_at[i] = attn_position(args->positions_q, i);
    for (int64_t j = 0; j < s->Nk; j++)
        p->k_at[j] = attn_position(args->positions_k, j);
    return 0;
}

static void head_load(PlainHead *p, int64_t b, int64_t kv)
{
    const AttnShape *s = &p->args->shape;
    for (int64_t j = 0; j < s->Nk; j++) {
        tensor_read_row(&p->args->K, b, j, kv, p->K + j * s->d);
        tensor_read_row(&p->args->V, b, j, kv, p->V + j * s->d);
        if (p->options.group)
            yardstick_normalise(&p->options, p->options.wk + kv * s->d, s->d, p->K + j * s->d);
    }
    /* 16 tokens at a time: whole cache lines of Kt and Vt are written */
    for (int64_t first = 0; first < s->Nk; first += 16)
        for (int64_t x = 0; x < s->d; x++)
            for (int64_t j = first; j < first + 16 && j < s->Nk; j++) {
                p->Kt[x * s->Nk + j] = p->K[j * s->d + x];
                p->Vt[x * s->Nk + j] = p->V[j * s->d + x];
            }
    memset(p->dK, 0, sizeof(float) * (size_t)(s->Nk * s->d));
    memset(p->dV, 0, sizeof(float) * (size_t)(s->Nk * s->d));
}

/* P and O of row i of query head h; returns 0 when it sees no key. */
static int row_forward(PlainHead *p, int64_t b, int64_t h, int64_t i)
{
    const AttnArgs *a = p->args;
    const int64_t Nk = a->shape.Nk, d = a->shape.d;
    float max = -INFINITY, sum = 0;
    int any = 0;
    tensor_read_row(&a->Q, b, i, h, p->q);
    if (p->options.group)
        yardstick_normalise(&p->options, p->options.wq + h * d, d, p->q);
    memset(p->S, 0, sizeof(float) * (size_t)Nk);
    for (int64_t x = 0; x < d; x++) {
        p->q[x] = round_to(p, p->q[x] * p->options.scale); /* scale first */
        add_scaled(p->S, p->q[x], p->Kt + x * Nk, Nk);
    }
    for (int64_t j = 0; j < Nk; j++) {
        float s = round_to(p, p->S[j]);
        p->seen[j] = (uint8_t)(attn_visible(a->rule, p->q_at[i], p->k_at[j]) &&
                               !(a->mask && a->mask[i * Nk + j]));
        p->slope[j] = 1;
        if (a->softcap > 0) {
            const float t = round_to(p, tanhf(round_to(p, s / a->softcap)));
            p->slope[j] = 1 - t * t;
            s = round_to(p, t * a->softcap);
        }
        p->S[j] = s;
        if (p->seen[j]) {
            any = 1;
            max = s > max ? s : max;
        }
    }
    memset(p->O, 0, sizeof(float) * (size_t)d);
    if (!any)
        return 0;
    for (int64_t j = 0; j < Nk; j++)
        sum += p->P[j] = p->seen[j] ? expf(p->S[j] - max) : 0;
    for (int64_t j = 0; j < Nk; j++) {
        p->P[j] = round_to(p, p->P[j] / sum);
        if (!p->seen[j])
            continue;
        p->A[j] =
            yardstick_weight(&p->options, b + p->q_at[i].sequence, h, i, j, p->P[j], &p->gain[j]);
        add_scaled(p->O, p->A[j], p->V + j * d, d);
    }
    return 1;
}

/* Makes dQ of row i and, with keys, adds it to dK and dV. row_forward of the same row came just
 * before. */
static void row_backward(PlainHead *p, int64_t b, int64_t h, int64_t i, int keys)
{
    const AttnArgs *a = p->args;
    const int64_t Nk = a->shape.Nk, d = a->shape.d;
    float delta = 0;
    tensor_read_row(&a->dO, b, i, h, p->dO);
    memset(p->dP, 0, sizeof(float) * (size_t)Nk);
    for (int64_t x = 0; x < d; x++)
        add_scaled(p->dP, p->dO[x], p->Vt + x * Nk, Nk);
    for (int64_t j = 0; j < Nk; j++) {
        p->dP[j] = round_to(p, p->dP[j]);
        if (!p->seen[j])
            continue;
        p->dP[j] = round_to(p, p->gain[j] * p->dP[j]);
        delta += p->P[j] * p->dP[j];
    }
    for (int64_t j = 0; j < Nk; j++) {
        float dS;
        if (!p->seen[j])
            continue;
        dS = round_to(p, round_to(p, p->P[j] * (p->dP[j] - delta)) * p->slope[j]);
        if (keys) {
            add_scaled(p->dV + j * d, p->A[j], p->dO, d);
            add_scaled(p->dK + j * d, dS, p->q, d); /* q holds scale already */
        }
        add_scaled(p->dQ, dS * p->options.scale, p->K + j * d, d);
    }
    if (p->options.group)
        yardstick_normalise_gradient(&p->options, &a->Q, b, i, h, p->options.wq + h * d, p->dQ);
}

/* Largest |round(plain[x]) - expected[x]| of one row, or what it was. A NaN is left out: it means a
 * non-finite input, about which this figure says nothing. */
static double worse(const PlainHead *p, double so_far, const float *plain, const double *expected)
{
    for (int64_t x = 0; x < p->args->shape.d; x++) {
        const double error = fabs((double)round_to(p, plain[x]) - expected[x]);
        so_far = error > so_far && error < INFINITY ? error : so_far;
    }
    return so_far;
}

static int64_t find_index(const OracleSample *s, int64_t i)
{
    int64_t low = 0, high = s->count;
    while (low < high) {
        const int64_t mid = (low + high) / 2;
        if (s->index[mid] < i)
            low = mid + 1;
        else
            high = mid;
    }
    return low < s->count && s->index[low] == i ? low : -1;
}

/* One key/value head with its query heads: only sampled rows, or all where dK and dV are wanted. */
static void run_group(PlainHead *p, const Oracle *o, int64_t group, int backward, Yardstick *y)
{
    const AttnShape *s = &o->shape;
    const int64_t heads = s->H / s->Hkv, b = group / s->Hkv, kv = group % s->Hkv;
    const double of_keys = (double)(heads * s->Nq) * (double)(s->Nk * s->d);
    const double of_rows = (double)(s->B * s->H * o->rows.count) * (double)(s->Nk * s->d);
    const int dQ = backward && !o->given, keys = dQ && of_keys <= GROUP_BUDGET;
    const int64_t slot = keys ? find_index(&o->kv_heads, group) : -1;
    /* of the largest cases as many of the sampled rows as can be afforded, the last among them */
    const int64_t step = o->whole || keys ? 1 : (int64_t)(of_rows / ROWS_BUDGET) + 1;
    y->dQ = dQ ? 0 : NAN;
    y->dK = y->dV = keys ? 0 : NAN;
    head_load(p, b, kv);
    for (int64_t h = kv * heads; h < (kv + 1) * heads; h++)
        for (int64_t i = 0; i < s->Nq; i++) {
            const int64_t t = find_index(&o->rows, i);
            const int64_t at = ((b * s->H + h) * o->rows.count + t) * s->d;
            int sees;
            if ((t < 0 && slot < 0) || (o->rows.count - 1 - t) % step != 0)
                continue;
            sees = row_forward(p, b, h, i);
            memset(p->dQ, 0, sizeof(float) * (size_t)s->d);
            if (dQ && sees)
                row_backward(p, b, h, i, slot >= 0);
            if (t < 0)
                continue;
            y->O = worse(p, y->O, p->O, o->O.value + at);
            if (dQ)
                y->dQ = worse(p, y->dQ, p->dQ, o->dQ.value + at);
        }
    for (int64_t t = 0; slot >= 0 && t < o->keys.count; t++) {
        const int64_t j = o->keys.index[t], at = (slot * o->keys.count + t) * s->d;
        if (p->options.group)
            yardstick_normalise_gradient(&p->options, &p->args->K, b, j, kv,
                                         p->options.wk + kv * s->d, p->dK + j * s->d);
        y->dK = worse(p, y->dK, p->dK + j * s->d, o->dK.value + at);
        y->dV = worse(p, y->dV, p->dV + j * s->d, o->dV.value + at);
    }
}

int yardstick_run(Yardstick *y, const Oracle *o, const AttnArgs *args, int backward, int threads)
{
    const AttnShape *s = &o->shape;
    const int64_t groups = s->B * s->Hkv;
    const double work = (double)s->H * (double)s->B * (double)s->Nq * (double)(s->Nk * s->d);
    const int workers = work < 1e6 ? 1 : threads < groups ? threads : (int)groups;
    int bad = 0;
    memset(y, 0, sizeof *y);
    (void)workers; /* without OpenMP */
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (int64_t group = 0; group < groups; group++) {
        PlainHead p;
        Yardstick mine = {0, 0, 0, 0};
        const int failed = head_make(&p, args) != 0;
        if (!failed) {
            run_group(&p, o, group, backward, &mine);
            head_free(&p);
        }
#pragma omp critical(yardstick_worst)
        {
            bad |= failed;
            y->O = mine.O > y->O ? mine.O : y->O;
            y->dQ = mine.dQ > y->dQ || isnan(mine.dQ) ? mine.dQ : y->dQ;
            y->dK = mine.dK > y->dK || isnan(mine.dK) ? mine.dK : y->dK;
            y->dV = mine.dV > y->dV || isnan(mine.dV) ? mine.dV : y->dV;
        }
    }
    return bad ? -1 : 0;
}
