/* SPDX-License-Identifier: MIT
 *
 * low_precision.c: attention as a framework computes it in low precision, to see what error is
 * usual.
 *
 * FlashAttention's tests compare a kernel not with a tolerance but with this: every matrix that a
 * plain implementation would store (scaled Q, S, P, dP, dS and the results) is rounded to the
 * storage type, every sum is float32. For f32 nothing is rounded. A few rows of scores exist at a
 * time. Nothing is shared with the oracle or with any variant, so that an error in one of them does
 * not hide here. Rows: low_precision_rows.c.
 *
 * Interface: low_precision.h.
 */
#include "check/low_precision.h"
#include "attn_options.h"

#include <math.h>

#include "check/low_precision_rows.h"

/* Pair-channels, masked ones too: of all rows of a group for its dK and dV; of the sampled rows of
 * the largest cases. */
#define GROUP_BUDGET 4e10
#define ROWS_BUDGET  2e9
/* Pair-channels of a row that several threads share when there are fewer rows than threads. */
#define LONG_ROW 4e6

/* Largest |round(plain[x]) - expected[x]| of one row, or what it was. A NaN is left out: it means a
 * non-finite input, about which this figure says nothing. */
static double worse(const PlainHead *p, double so_far, const float *plain, const double *expected)
{
    for (int64_t x = 0; x < p->args->shape.d; x++) {
        const double error = fabs((double)plain_round(p, plain[x]) - expected[x]);
        so_far = error > so_far && error < INFINITY ? error : so_far;
    }
    return so_far;
}

/* Rows p->row[0 .. count) of query head h, then, with keys, what they give to dK and dV: on several
 * threads, of which each first has rows of its own and then keys of its own; or few long rows one
 * after the other, each on all threads. */
static void run_rows(PlainHead *p, int64_t count, int64_t b, int64_t h, int dQ, int keys,
                     int threads)
{
    const int64_t Nk = p->args->shape.Nk, d = p->args->shape.d;
    if (!dQ && !keys && count < threads && (double)Nk * (double)d >= LONG_ROW) {
        for (int64_t n = 0; n < count; n++)
            plain_forward(p, &p->row[n], b, h, threads);
        return;
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < count; n++) {
            plain_forward(p, &p->row[n], b, h, 1);
            if (dQ)
                plain_backward(p, &p->row[n], b, h);
        }
        if (keys) {
#pragma omp for schedule(dynamic, 64)
            for (int64_t j = 0; j < Nk; j++)
                plain_key(p, count, j);
        }
    }
}

/* What is to be computed of a case: dQ, and of group `slot` of o->kv_heads (-1: none) dK and dV;
 * then all rows are needed, else sampled ones, the last of every `step` among them. */
typedef struct Wanted {
    int dQ;
    int64_t slot, step;
} Wanted;

/* Of the rows that are looked at: all of them, or those of the sample. */
static int is_wanted(const Wanted *w, const Oracle *o, int64_t n)
{
    return w->slot >= 0 || (o->rows.count - 1 - n) % w->step == 0;
}

/* All rows of query head h = (b, h) that are wanted. */
static void run_head(PlainHead *p, const Oracle *o, const Wanted *w, int64_t b, int64_t h,
                     int threads, LowPrecision *y)
{
    const AttnShape *s = &o->shape;
    const int64_t all = w->slot >= 0 ? s->Nq : o->rows.count;
    for (int64_t next = 0; next < all;) {
        int64_t count = 0;
        for (; next < all && count < p->places; next++)
            if (is_wanted(w, o, next))
                p->row[count++].i = w->slot >= 0 ? next : o->rows.index[next];
        run_rows(p, count, b, h, w->dQ, w->slot >= 0, threads);
        for (int64_t n = 0; n < count; n++) {
            const int64_t t = oracle_sample_find(&o->rows, p->row[n].i);
            const int64_t at = ((b * s->H + h) * o->rows.count + t) * s->d;
            if (t < 0)
                continue;
            y->O = worse(p, y->O, p->row[n].O, o->O.value + at);
            if (w->dQ)
                y->dQ = worse(p, y->dQ, p->row[n].dQ, o->dQ.value + at);
        }
    }
}

/* One key/value head with its query heads. */
static void run_group(PlainHead *p, const Oracle *o, int64_t group, const Wanted *w, int threads,
                      LowPrecision *y)
{
    const AttnShape *s = &o->shape;
    const int64_t heads = s->H / s->Hkv, b = group / s->Hkv, kv = group % s->Hkv;
    plain_load(p, b, kv, w->slot >= 0, threads);
    for (int64_t h = kv * heads; h < (kv + 1) * heads; h++)
        run_head(p, o, w, b, h, threads, y);
    for (int64_t t = 0; w->slot >= 0 && t < o->keys.count; t++) {
        const int64_t j = o->keys.index[t], at = (w->slot * o->keys.count + t) * s->d;
        if (p->options.group)
            low_precision_normalise_gradient(&p->options, &p->args->K, b, j, kv,
                                             p->options.wk + kv * s->d, p->dK + j * s->d);
        y->dK = worse(p, y->dK, p->dK + j * s->d, o->dK.value + at);
        y->dV = worse(p, y->dV, p->dV + j * s->d, o->dV.value + at);
    }
}

int low_precision_run(LowPrecision *y, const Oracle *o, const AttnArgs *args, int backward,
                      int threads)
{
    const AttnShape *s = &o->shape;
    const double of_head = (double)s->Nq * (double)(s->Nk * s->d);
    const double of_keys = (double)(s->H / s->Hkv) * of_head;
    const double of_rows = (double)(s->B * s->H * o->rows.count) * (double)(s->Nk * s->d);
    const int dQ = backward && !o->given, keys = dQ && of_keys <= GROUP_BUDGET;
    const int workers = of_head * (double)(s->B * s->H) < 1e6 ? 1 : threads;
    PlainHead p;
    *y = (LowPrecision){0, dQ ? 0 : NAN, keys ? 0 : NAN, keys ? 0 : NAN};
    if (plain_make(&p, args) != 0)
        return -1;
    for (int64_t group = 0; group < s->B * s->Hkv; group++) {
        const Wanted w = {dQ, keys ? oracle_sample_find(&o->kv_heads, group) : -1,
                          o->whole || keys ? 1 : (int64_t)(of_rows / ROWS_BUDGET) + 1};
        run_group(&p, o, group, &w, workers, y);
    }
    plain_free(&p);
    return 0;
}
