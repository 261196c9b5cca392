/* SPDX-License-Identifier: MIT
 *
 * low_precision_rows.c: attention as a framework computes it in low precision, row by row: scores
 * that are rounded when they would be stored, softmax, gradients; of the keys only those between
 * the first and the last that the row sees, since masked scores reach no result.
 *
 * Interface: low_precision_rows.h.
 */
#include "check/low_precision_rows.h"
#include "attn_options.h"
#include "attn_pairs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor.h"

#define STRETCH  1024 /* keys */
#define CHANNELS 16   /* a cache line of V */

float plain_round(const PlainHead *p, float x)
{
    return p->dtype == ATTN_F32 ? x : dtype_round(p->dtype, x);
}

/* One body for several instruction sets, chosen at program start by what the processor can. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) &&                  \
    !defined(__clang__)
#define PLAIN_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define PLAIN_CLONES
#endif

/* y[0..n) += a * x[0..n) */
PLAIN_CLONES static void add_scaled(float *restrict y, float a, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* y[j] = sum_x a[x] Mt[x][j] for j of keys from .. end-1, a stretch that stays in the L1 cache at a
 * time. Mt [d][Nk] */
static void row_times(const float *a, const float *Mt, float *y, int64_t Nk, int64_t d,
                      int64_t from, int64_t end)
{
    for (int64_t at = from; at < end; at += STRETCH) {
        const int64_t n = end - at < STRETCH ? end - at : STRETCH;
        memset(y + at, 0, sizeof(float) * (size_t)n);
        for (int64_t x = 0; x < d; x++)
            add_scaled(y + at, a[x], Mt + x * Nk + at, n);
    }
}

void plain_free(PlainHead *p)
{
    free(p->memory);
    free(p->q_at);
    free(p->k_at);
    free(p->seen);
}

/* Rows of 4 d + 7 Nk floats each. */
static void place_rows(PlainHead *p, float *at)
{
    const int64_t d = p->args->shape.d, Nk = p->args->shape.Nk;
    for (int64_t n = 0; n < p->places; n++) {
        PlainRow *r = &p->row[n];
        float **const of_d[] = {&r->q, &r->dO, &r->O, &r->dQ};
        float **const of_keys[] = {&r->S, &r->P, &r->dP, &r->slope, &r->A, &r->gain, &r->dS};
        for (int m = 0; m < 4; m++, at += d)
            *of_d[m] = at;
        for (int m = 0; m < 7; m++, at += Nk)
            *of_keys[m] = at;
        r->seen = p->seen + n * Nk;
    }
}

int plain_make(PlainHead *p, const AttnArgs *args)
{
    const AttnShape *s = &args->shape;
    const int64_t kd = s->Nk * s->d, places = ROW_FLOATS / (s->Nk + 1);
    float *at;
    memset(p, 0, sizeof *p);
    p->args = args;
    p->dtype = args->Q.dtype;
    p->places = places < 1 ? 1 : places < ROWS_MOST ? places : ROWS_MOST;
    p->q_at = malloc(sizeof *p->q_at * (size_t)s->Nq);
    p->k_at = malloc(sizeof *p->k_at * (size_t)s->Nk);
    p->seen = malloc((size_t)(p->places * s->Nk));
    at = p->memory = calloc((size_t)(6 * kd + p->places * (4 * s->d + 7 * s->Nk)), sizeof(float));
    if (!p->q_at || !p->k_at || !p->seen || !p->memory) {
        plain_free(p);
        return -1;
    }
    float **const big[] = {&p->Kt, &p->Vt, &p->K, &p->V, &p->dK, &p->dV};
    for (int n = 0; n < 6; n++, at += kd)
        *big[n] = at;
    place_rows(p, at);
    p->options = low_precision_options(args);
    for (int64_t i = 0; i < s->Nq; i++)
        p->q_at[i] = attn_position(args->positions_q, i);
    for (int64_t j = 0; j < s->Nk; j++)
        p->k_at[j] = attn_position(args->positions_k, j);
    return 0;
}

void plain_load(PlainHead *p, int64_t b, int64_t kv, int keys, int threads)
{
    const AttnShape *s = &p->args->shape;
    (void)threads; /* without OpenMP */
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t j = 0; j < s->Nk; j++) {
        tensor_read_row(&p->args->K, b, j, kv, p->K + j * s->d);
        tensor_read_row(&p->args->V, b, j, kv, p->V + j * s->d);
        if (p->options.group)
            low_precision_normalise(&p->options, p->options.wk + kv * s->d, s->d, p->K + j * s->d);
    }
    /* 16 tokens at a time: whole cache lines of Kt and Vt are written */
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < s->Nk; first += 16)
        for (int64_t x = 0; x < s->d; x++)
            for (int64_t j = first; j < first + 16 && j < s->Nk; j++) {
                p->Kt[x * s->Nk + j] = p->K[j * s->d + x];
                p->Vt[x * s->Nk + j] = p->V[j * s->d + x];
            }
    if (!keys)
        return;
    memset(p->dK, 0, sizeof(float) * (size_t)(s->Nk * s->d));
    memset(p->dV, 0, sizeof(float) * (size_t)(s->Nk * s->d));
}

/* What is done to keys from .. end-1 of a row, or to these channels of its O. */
typedef void RowStep(const PlainHead *p, PlainRow *r, int64_t from, int64_t end);

/* A step has its pieces in any order: each key's, or channel's, numbers are its own. */
static void in_pieces(const PlainHead *p, PlainRow *r, int64_t from, int64_t end, int64_t piece,
                      int threads, RowStep *step)
{
    if (threads <= 1) { /* without the pragma's costs, which short rows would feel */
        step(p, r, from, end);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t at = from; at < end; at += piece)
        step(p, r, at, end - at < piece ? end : at + piece);
}

static void see(const PlainHead *p, PlainRow *r, int64_t from, int64_t end)
{
    const AttnArgs *a = p->args;
    for (int64_t j = from; j < end; j++)
        r->seen[j] = (uint8_t)(attn_visible(a->rule, p->q_at[r->i], p->k_at[j]) &&
                               !(a->mask && a->mask[r->i * a->shape.Nk + j]));
}

static void score(const PlainHead *p, PlainRow *r, int64_t from, int64_t end)
{
    const AttnArgs *a = p->args;
    row_times(r->q, p->Kt, r->S, a->shape.Nk, a->shape.d, from, end);
    for (int64_t j = from; j < end; j++) {
        float s = plain_round(p, r->S[j]);
        r->slope[j] = 1;
        if (a->softcap > 0) {
            const float t = plain_round(p, tanhf(plain_round(p, s / a->softcap)));
            r->slope[j] = 1 - t * t;
            s = plain_round(p, t * a->softcap);
        }
        r->S[j] = s;
    }
}

static void exponentiate(const PlainHead *p, PlainRow *r, int64_t from, int64_t end)
{
    (void)p;
    for (int64_t j = from; j < end; j++)
        r->P[j] = r->seen[j] ? expf(r->S[j] - r->max) : 0;
}

static void weigh(const PlainHead *p, PlainRow *r, int64_t from, int64_t end)
{
    for (int64_t j = from; j < end; j++) {
        r->P[j] = plain_round(p, r->P[j] / r->sum);
        if (r->seen[j])
            r->A[j] = low_precision_weight(&p->options, r->b + p->q_at[r->i].sequence, r->h, r->i,
                                           j, r->P[j], &r->gain[j]);
    }
}

/* Channels of O, over all keys of the row in their order. */
static void add_values(const PlainHead *p, PlainRow *r, int64_t from, int64_t end)
{
    const int64_t d = p->args->shape.d;
    memset(r->O + from, 0, sizeof(float) * (size_t)(end - from));
    for (int64_t j = r->first; j < r->end; j++)
        if (r->seen[j])
            add_scaled(r->O + from, r->A[j], p->V + j * d + from, end - from);
}

/* Which keys row r->i sees: a window leaves few of them, and only these are computed. */
static void row_see(const PlainHead *p, PlainRow *r, int threads)
{
    const int64_t Nk = p->args->shape.Nk;
    in_pieces(p, r, 0, Nk, STRETCH, threads, see);
    for (r->first = 0; r->first < Nk && !r->seen[r->first];)
        r->first++;
    for (r->end = Nk; r->end > r->first && !r->seen[r->end - 1];)
        r->end--;
}

/* The steps are shared; what is summed over the keys is summed in their order, by one thread. */
void plain_forward(const PlainHead *p, PlainRow *r, int64_t b, int64_t h, int threads)
{
    const int64_t d = p->args->shape.d;
    r->b = b;
    r->h = h;
    row_see(p, r, threads);
    tensor_read_row(&p->args->Q, b, r->i, h, r->q);
    if (p->options.group)
        low_precision_normalise(&p->options, p->options.wq + h * d, d, r->q);
    for (int64_t x = 0; x < d; x++)
        r->q[x] = plain_round(p, r->q[x] * p->options.scale); /* scale first */
    in_pieces(p, r, r->first, r->end, STRETCH, threads, score);
    r->max = -INFINITY;
    for (int64_t j = r->first; j < r->end; j++)
        if (r->seen[j])
            r->max = r->S[j] > r->max ? r->S[j] : r->max;
    in_pieces(p, r, r->first, r->end, STRETCH, threads, exponentiate);
    r->sum = 0;
    for (int64_t j = r->first; j < r->end; j++)
        r->sum += r->P[j];
    in_pieces(p, r, r->first, r->end, STRETCH, threads, weigh);
    in_pieces(p, r, 0, d, CHANNELS, threads, add_values);
}

/* dS and dQ of row r->i. plain_forward of the same row came before. */
void plain_backward(const PlainHead *p, PlainRow *r, int64_t b, int64_t h)
{
    const AttnArgs *a = p->args;
    const int64_t Nk = a->shape.Nk, d = a->shape.d;
    float delta = 0;
    tensor_read_row(&a->dO, b, r->i, h, r->dO);
    row_times(r->dO, p->Vt, r->dP, Nk, d, r->first, r->end);
    memset(r->dQ, 0, sizeof(float) * (size_t)d);
    for (int64_t j = r->first; j < r->end; j++) {
        r->dP[j] = plain_round(p, r->dP[j]);
        if (!r->seen[j])
            continue;
        r->dP[j] = plain_round(p, r->gain[j] * r->dP[j]);
        delta += r->P[j] * r->dP[j];
    }
    for (int64_t j = r->first; j < r->end; j++) {
        if (!r->seen[j])
            continue;
        r->dS[j] = plain_round(p, plain_round(p, r->P[j] * (r->dP[j] - delta)) * r->slope[j]);
        add_scaled(r->dQ, r->dS[j] * p->options.scale, p->K + j * d, d);
    }
    if (p->options.group)
        low_precision_normalise_gradient(&p->options, &a->Q, b, r->i, h, p->options.wq + h * d,
                                         r->dQ);
}

/* What the first `count` rows give to key j, in the order of rows whatever the threads. */
void plain_key(PlainHead *p, int64_t count, int64_t j)
{
    const int64_t d = p->args->shape.d;
    for (int64_t n = 0; n < count; n++) {
        const PlainRow *r = &p->row[n];
        if (j < r->first || j >= r->end || !r->seen[j])
            continue;
        add_scaled(p->dV + j * d, r->A[j], r->dO, d);
        add_scaled(p->dK + j * d, r->dS[j], r->q, d); /* q holds scale already */
    }
}
