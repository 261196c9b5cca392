/* SPDX-License-Identifier: MIT
 *
 * oracle_stream.c: sampled rows, tile by tile of keys. O and lse in one walk; its softmax is the
 * online one, in float64: m is the largest score so far, and what was summed before is scaled when
 * it grows. dQ in a second walk, from the O and lse of a run: oracle_given.c says why, and which
 * bounds it has. Those of O and lse are oracle_core.c's.
 *
 * Interface: oracle_core.h (oracle_stream_groups), oracle_tiles.h (oracle_given_rows).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/oracle_tiles.h"
#include "tensor.h"

static const double u = ORACLE_U;

/* One sampled row of one head. Arrays [d]. */
typedef struct RowSum {
    int64_t i, n;   /* n: keys that it sees */
    double m, l, A; /* largest score, sum of exp(s - m), largest sum_x scale |q||k| */
    double *q, *q_size, *dO, *dO_size;
    double *y, *yc, *yf; /* sums of P V, P|V| and eta |V|; P lacks 1/l until finish_forward */
    double *z, *zc, *zf; /* dQ */
    OracleRowState state;
} RowSum;

#define ROW_ARRAYS 10

typedef struct Rows {
    const OraclePlan *p;
    RowSum *row;
    double *memory;
    int64_t count;
} Rows;

/* y += w^T M where M are rows of tile, and likewise for sums of magnitudes. */
static void add_forward(void *all, int64_t at, const OracleTile *tile, OracleScratch *m)
{
    const Rows *rows = all;
    const OraclePlan *p = rows->p;
    RowSum *r = &rows->row[at];
    const int64_t d = p->args->shape.d, n = oracle_tile_seen(p, tile, 1, r->i, m->index);
    double max = r->m, slope;
    if (n == 0)
        return;
    oracle_dot_columns(&tile->Xt, m->index[0], m->index[n - 1] + 1, r->q, r->q_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++) {
        const double size = fabs(p->scale) * m->size[m->index[t]];
        m->P[t] = oracle_cap_score(p, m->dot[m->index[t]], &slope);
        max = m->P[t] > max ? m->P[t] : max;
        r->A = size > r->A ? size : r->A;
    }
    if (max > r->m) {
        const double before = exp(r->m - max); /* 0 in the first tile */
        r->m = max;
        r->l *= before;
        for (int64_t x = 0; x < d; x++) {
            r->y[x] *= before;
            r->yc[x] *= before;
        }
    }
    r->n += n;
    for (int64_t t = 0; t < n; t++) {
        r->l += m->P[t] = oracle_weight(m->P[t], max);
        m->wf[t] = p->eta;
    }
    oracle_weigh_rows(&tile->Y, m->index, n, 0, d, m->P, m->P, m->wf, r->y, r->yc, r->yf);
}

static void add_gradient(void *all, int64_t at, const OracleTile *tile, OracleScratch *m)
{
    const Rows *rows = all;
    const OraclePlan *p = rows->p;
    const RowSum *r = &rows->row[at];
    const int64_t n = oracle_tile_seen(p, tile, 1, r->i, m->index);
    double *g = m->unsure;
    if (n == 0)
        return;
    oracle_dot_columns(&tile->Xt, m->index[0], m->index[n - 1] + 1, r->q, r->q_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++) {
        const int64_t j = m->index[t];
        m->P[t] = oracle_weight(oracle_cap_score(p, m->dot[j], &m->slope[t]), r->state.lse);
        g[t] = oracle_given_error(p, m->size[j], r->state.lse, (double)r->n);
    }
    oracle_dot_columns(&tile->Yt, m->index[0], m->index[n - 1] + 1, r->dO, r->dO_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++)
        oracle_weigh_pair(p, &r->state, m->P[t], m->slope[t], m->dot[m->index[t]],
                          m->size[m->index[t]], g[t], &m->w[t], &m->wc[t], &m->wf[t]);
    oracle_weigh_rows(&tile->X, m->index, n, 0, p->args->shape.d, m->w, m->wc, m->wf, r->z, r->zc,
                      r->zf);
}

static void finish_forward(const OraclePlan *p, RowSum *r, const OracleTarget *O,
                           const OracleTarget *lse)
{
    const int64_t d = p->args->shape.d;
    OracleRowState *state = &r->state;
    state->lse = r->m + log(r->l);
    if (state->lse == -INFINITY) {
        oracle_target_fill(O, d, 0, 0, 0);
        oracle_target_fill(lse, 1, -INFINITY, r->n > 0 ? INFINITY : 0, 0);
        return;
    }
    for (int64_t x = 0; x < d; x++) {
        r->y[x] /= r->l;
        r->yc[x] /= r->l;
    }
    oracle_row_errors(p, r->A, r->n, state);
    for (int64_t x = 0; x < d; x++) {
        r->yf[x] += p->u16 * r->yc[x];
        r->yc[x] *= u * oracle_grown(p, state->output);
    }
    oracle_finish(p, d, r->y, r->yf, r->yc, O);
    oracle_target_fill(lse, 1, state->lse, 0, u * (state->forward + fabs(state->lse)));
}

/* The samples of a group, head by head. */
static int rows_make(Rows *rows, const Oracle *o, const OraclePlan *p, int64_t b, int64_t kv_head,
                     int backward)
{
    const AttnArgs *a = p->args;
    const int64_t d = a->shape.d, heads = a->shape.H / a->shape.Hkv;
    double *at;
    rows->p = p;
    rows->count = heads * o->rows.count;
    rows->row = calloc((size_t)rows->count, sizeof *rows->row);
    at = rows->memory = calloc((size_t)(rows->count * ROW_ARRAYS * d), sizeof *at);
    if (!rows->row || !rows->memory)
        return -1;
    for (int64_t n = 0; n < rows->count; n++) {
        RowSum *r = &rows->row[n];
        double **const arrays[ROW_ARRAYS] = {&r->q,  &r->q_size, &r->dO, &r->dO_size, &r->y,
                                             &r->yc, &r->yf,     &r->z,  &r->zc,      &r->zf};
        const int64_t head = kv_head * heads + n / o->rows.count;
        for (int k = 0; k < ROW_ARRAYS; k++, at += d)
            *arrays[k] = at;
        r->i = o->rows.index[n % o->rows.count];
        r->m = -INFINITY;
        oracle_read_row(&a->Q, b, r->i, head, r->q, r->q_size);
        if (backward)
            oracle_read_row(&a->dO, b, r->i, head, r->dO, r->dO_size);
    }
    return 0;
}

static OracleWalk walk_of(Rows *rows, const Oracle *o, int64_t b, int64_t kv_head)
{
    return (OracleWalk){.p = rows->p,
                        .X = &rows->p->args->K,
                        .Y = &rows->p->args->V,
                        .b = b,
                        .head = kv_head,
                        .of_keys = 1,
                        .sample = &o->rows,
                        .count = rows->count,
                        .all = rows};
}

/* Place of the group's first row in o->lse. */
static int64_t first_row(const Oracle *o, int64_t b, int64_t kv_head)
{
    const AttnShape *s = &o->shape;
    return (b * s->H + kv_head * (s->H / s->Hkv)) * o->rows.count;
}

/* O and lse of the sampled rows of group (b, kv_head). */
static int stream_rows(Oracle *o, const OraclePlan *p, int64_t b, int64_t kv_head, int threads)
{
    const int64_t d = o->shape.d, first = first_row(o, b, kv_head);
    Rows rows = {.p = p};
    int bad = rows_make(&rows, o, p, b, kv_head, 0);
    OracleWalk walk = walk_of(&rows, o, b, kv_head);
    walk.visit = add_forward;
    bad = bad || oracle_tiles_walk(&walk, threads) != 0;
    for (int64_t n = 0; !bad && n < rows.count; n++) {
        const OracleTarget O = oracle_target_at(&o->O, (first + n) * d),
                           lse = oracle_target_at(&o->lse, first + n);
        finish_forward(p, &rows.row[n], &O, &lse);
        o->beyond |= oracle_is_beyond(p, rows.row[n].state.g);
    }
    free(rows.row);
    free(rows.memory);
    return bad ? -1 : 0;
}

int oracle_given_rows(Oracle *o, const OraclePlan *p, int64_t b, int64_t kv_head, int threads)
{
    const AttnArgs *a = p->args;
    const int64_t d = o->shape.d, first = first_row(o, b, kv_head);
    Rows rows = {.p = p};
    int bad = rows_make(&rows, o, p, b, kv_head, 1);
    OracleWalk walk = walk_of(&rows, o, b, kv_head);
    walk.visit = add_gradient;
    for (int64_t n = 0; !bad && n < rows.count; n++) {
        RowSum *r = &rows.row[n];
        const int64_t head = kv_head * (a->shape.H / a->shape.Hkv) + n / o->rows.count;
        r->n = oracle_seen(p, 1, r->i, NULL);
        r->state = oracle_given_row(p, b, head, r->i, r->dO);
    }
    bad = bad || oracle_tiles_walk(&walk, threads) != 0;
    for (int64_t n = 0; !bad && n < rows.count; n++) {
        const RowSum *r = &rows.row[n];
        const OracleTarget dQ = oracle_target_at(&o->dQ, (first + n) * d);
        if (r->n == 0) /* exactly 0, without the rounding that oracle_finish allows for */
            oracle_target_fill(&dQ, d, 0, 0, 0);
        else
            oracle_finish(p, d, r->z, r->zf, r->zc, &dQ);
    }
    free(rows.row);
    free(rows.memory);
    return bad ? -1 : 0;
}

int oracle_stream_groups(Oracle *o, const OraclePlan *p, int backward, int threads)
{
    const int64_t Hkv = o->shape.Hkv;
    int bad = 0;
    for (int64_t group = 0; !bad && group < o->shape.B * Hkv; group++) {
        oracle_find_taint(o, p, group, backward, threads);
        bad = stream_rows(o, p, group / Hkv, group % Hkv, threads);
    }
    return bad;
}
