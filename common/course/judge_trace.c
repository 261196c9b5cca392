/* SPDX-License-Identifier: MIT
 *
 * judge_trace.c: see judge.h. The keys of a row are gone through once, in float64, and at the
 * end of each tile that was recorded the state is compared.
 *
 * A state may be off by twice what the bounds of oracle.h allow for it (u = 2^-24, c = 4 or 16; n
 * keys so far, D and A as there):
 *     m  c u (D A + |m|)         l  relative: c u (2 D A + sqrt(n) + 8)
 *     O  likewise, of sum exp(s - m) |V|, and u16 of it for 16-bit inputs
 *
 * A record may hold anything. It is read only if it is complete, names a tile and has the tiles of
 * the first one, so that all together cost one forward pass at most.
 *
 * Interface: trace_case (judge.h).
 */
#include "attn_pairs.h"
#include "course/judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "course/runner_trace.h"
#include "tensor.h"

#define TRACE_WORK (INT64_C(1) << 29) /* pair-channels, less than a second */

typedef struct Entry {
    TraceRecord is;
    int64_t number; /* in the order of the calls */
    const float *m, *l, *O;
} Entry;

/* What the definition says of one tile of queries, for the keys 0 .. keys-1. */
typedef struct Rows {
    const JudgeCase *c;
    int64_t d, rows, keys;
    float *q, *k, *v;                 /* q [rows][d]; a row of K, of V */
    double *m, *l, *reach, *O, *size; /* reach: A; size: the sum of exp(s - m) |V| */
    int64_t *seen;
} Rows;

/* --- records -----------------------------------------------------------------------------------*/

static Entry *read_entries(const unsigned char *memory, int64_t *count)
{
    const TraceHead *head = (const TraceHead *)memory;
    const size_t room = TRACE_BYTES - sizeof *head, used = head->used < room ? head->used : room;
    const unsigned char *from = memory + sizeof *head;
    Entry *all = calloc(used / sizeof(TraceRecord) + 1, sizeof *all);
    size_t at = 0;
    *count = 0;
    while (all && used - at >= sizeof(TraceRecord)) {
        Entry *e = &all[*count];
        size_t floats;
        memcpy(&e->is, from + at, sizeof e->is);
        at += sizeof e->is;
        if (e->is.rows < 0 || e->is.d < 0)
            break;
        floats = (size_t)e->is.rows * (2 + (size_t)e->is.d);
        if (floats > (used - at) / sizeof(float))
            break;
        e->m = (const float *)(from + at);
        e->l = e->m + e->is.rows;
        e->O = e->l + e->is.rows;
        e->number = (*count)++;
        at += floats * sizeof(float);
    }
    return all;
}

static int64_t tiles(int64_t N, int32_t size)
{
    return (N + size - 1) / size;
}

/* Does a call name no tile, or change the tiles? Then *why says so. */
static int is_strange(const AttnShape *s, const Entry *e, const Entry *first, char *why,
                      size_t size)
{
    const TraceRecord *r = &e->is;
    if (r->Br <= 0 || r->Bc <= 0)
        snprintf(why, size,
                 "attn_trace(%d, %d, ...) after attn_trace_begin with tiles of %d queries and %d "
                 "keys, accepted are 1 and more",
                 r->i, r->j, r->Br, r->Bc);
    else if (r->b < 0 || r->b >= s->B || r->h < 0 || r->h >= s->H)
        snprintf(why, size,
                 "attn_trace_begin(%d, %d, ...), accepted are batches below %" PRId64
                 " and query heads below %" PRId64,
                 r->b, r->h, s->B, s->H);
    else if (r->Br != first->is.Br || r->Bc != first->is.Bc)
        snprintf(why, size,
                 "attn_trace_begin with tiles of %d x %d after tiles of %d x %d, accepted are "
                 "tiles of one size",
                 r->Br, r->Bc, first->is.Br, first->is.Bc);
    else if (r->i < 0 || r->i >= tiles(s->Nq, r->Br) || r->j < 0 || r->j >= tiles(s->Nk, r->Bc))
        snprintf(why, size,
                 "attn_trace(%d, %d, ...), accepted are query tiles below %" PRId64
                 " and key tiles below %" PRId64,
                 r->i, r->j, tiles(s->Nq, r->Br), tiles(s->Nk, r->Bc));
    else
        return r->d != s->d || r->rows != (r->i + 1 == tiles(s->Nq, r->Br)
                                               ? s->Nq - (int64_t)r->i * r->Br
                                               : r->Br); /* not our runner's: nothing to say */
    return 1;
}

static int by_tile(const void *a, const void *b)
{
    const Entry *one = a, *other = b;
    const int64_t key[2][5] = {{one->is.b, one->is.h, one->is.i, one->is.j, one->number},
                               {other->is.b, other->is.h, other->is.i, other->is.j, other->number}};
    for (int k = 0; k < 5; k++)
        if (key[0][k] != key[1][k])
            return key[0][k] < key[1][k] ? -1 : 1;
    return 0;
}

/* --- the definition ----------------------------------------------------------------------------*/

static int rows_new(Rows *t, const JudgeCase *c, int64_t most)
{
    const size_t d = (size_t)c->truth.shape.d, rows = (size_t)most;
    *t = (Rows){.c = c, .d = c->truth.shape.d};
    t->q = malloc((rows + 2) * d * sizeof *t->q);
    t->m = malloc((3 + 2 * d) * rows * sizeof *t->m);
    t->seen = malloc(rows * sizeof *t->seen);
    if (!t->q || !t->m || !t->seen)
        return -1;
    t->k = t->q + rows * d;
    t->v = t->k + d;
    t->l = t->m + rows;
    t->reach = t->l + rows;
    t->O = t->reach + rows;
    t->size = t->O + rows * d;
    return 0;
}

static void rows_free(Rows *t)
{
    free(t->q);
    free(t->m);
    free(t->seen);
}

static void rows_begin(Rows *t, const TraceRecord *r)
{
    t->rows = r->rows;
    t->keys = 0;
    memset(t->O, 0, (size_t)(2 * t->rows * t->d) * sizeof *t->O);
    t->size = t->O + t->rows * t->d;
    for (int64_t n = 0; n < t->rows; n++) {
        t->m[n] = -INFINITY;
        t->l[n] = t->reach[n] = 0.0;
        t->seen[n] = 0;
        tensor_read_row(&t->c->truth.Q, r->b, (int64_t)r->i * r->Br + n, r->h, t->q + n * t->d);
    }
}

static void add_key(Rows *t, int64_t n)
{
    const AttnArgs *a = &t->c->truth;
    const float *q = t->q + n * t->d;
    double *O = t->O + n * t->d, *size = t->size + n * t->d, s = 0.0, sum = 0.0, p;
    for (int64_t x = 0; x < t->d; x++) {
        s += (double)q[x] * t->k[x];
        sum += fabs((double)q[x] * t->k[x]);
    }
    s *= a->scale;
    sum *= fabs(a->scale);
    s = a->softcap > 0.0f ? a->softcap * tanh(s / a->softcap) : s;
    t->reach[n] = sum > t->reach[n] ? sum : t->reach[n];
    t->seen[n]++;
    if (s > t->m[n]) {
        const double alpha = exp(t->m[n] - s);
        t->l[n] *= alpha;
        for (int64_t x = 0; x < t->d; x++) {
            O[x] *= alpha;
            size[x] *= alpha;
        }
        t->m[n] = s;
    }
    p = exp(s - t->m[n]);
    t->l[n] += p;
    for (int64_t x = 0; x < t->d; x++) {
        O[x] += p * t->v[x];
        size[x] += p * fabs((double)t->v[x]);
    }
}

/* All keys up to the end of the record's tile. */
static void rows_advance(Rows *t, const TraceRecord *r)
{
    const AttnArgs *a = &t->c->truth;
    const int64_t end = (int64_t)(r->j + 1) * r->Bc, h_kv = r->h / (a->shape.H / a->shape.Hkv);
    for (; t->keys < (end < a->shape.Nk ? end : a->shape.Nk); t->keys++) {
        tensor_read_row(&a->K, r->b, t->keys, h_kv, t->k);
        tensor_read_row(&a->V, r->b, t->keys, h_kv, t->v);
        for (int64_t n = 0; n < t->rows; n++)
            if (attn_sees(a, (int64_t)r->i * r->Br + n, t->keys))
                add_key(t, n);
    }
}

/* --- the comparison ----------------------------------------------------------------------------*/

static int is_off(double found, double expected, double tolerance)
{
    return !(found == expected || fabs(found - expected) <= tolerance);
}

/* The first value that is off, as "l of row 37 is 4.1, expected 5.2": 1. m of all rows comes first:
 * a wrong one makes l wrong, too. */
static int find_off(const Rows *t, const Entry *e, char *text, size_t size)
{
    const AttnArgs *a = &t->c->truth;
    const int is_16 = a->Q.dtype != ATTN_F32;
    const double u = 2.0 * (is_16 ? 16.0 : 4.0) * 0x1p-24;
    const double u16 = a->Q.dtype == ATTN_BF16 ? 0x1p-7 : is_16 ? 0x1p-10 : 0.0;
    const double D = 1.0 + sqrt((double)t->d) / 4.0;
    const int64_t row = (int64_t)e->is.i * e->is.Br;
    for (int64_t n = 0; n < t->rows; n++)
        if (is_off(e->m[n], t->m[n], u * (D * t->reach[n] + fabs(t->m[n])))) {
            snprintf(text, size, "m of row %" PRId64 " is %.6g, expected %.6g", row + n,
                     (double)e->m[n], t->m[n]);
            return 1;
        }
    for (int which = 0; which < 2; which++)
        for (int64_t n = 0; n < t->rows; n++) {
            const double relative =
                u * (2.0 * D * t->reach[n] + sqrt((double)t->seen[n]) + 8.0) + (which ? u16 : 0.0);
            if (!which && is_off(e->l[n], t->l[n], relative * t->l[n])) {
                snprintf(text, size, "l of row %" PRId64 " is %.6g, expected %.6g", row + n,
                         (double)e->l[n], t->l[n]);
                return 1;
            }
            for (int64_t x = n * t->d; which && x < (n + 1) * t->d; x++)
                if (is_off(e->O[x], t->O[x], relative * t->size[x] + 0x1p-126)) {
                    snprintf(text, size,
                             "O of row %" PRId64 ", channel %" PRId64 " is %.6g, expected %.6g",
                             row + n, x - n * t->d, (double)e->O[x], t->O[x]);
                    return 1;
                }
        }
    return 0;
}

/* Entries in order, up to the first that is off or to the end of the work. */
static void compare(const JudgeCase *c, const Entry *all, int64_t count, int lost, JudgeRun *run)
{
    const AttnShape *s = &c->truth.shape;
    char what[128], head[64] = "";
    int64_t work = 0, n = 0;
    Rows t;
    if (rows_new(&t, c, all[0].is.Br < s->Nq ? all[0].is.Br : s->Nq) == 0)
        for (; n < count; n++) {
            const TraceRecord *r = &all[n].is;
            const int64_t keys = (int64_t)(r->j + 1) * r->Bc;
            if (n == 0 || r->b != all[n - 1].is.b || r->h != all[n - 1].is.h ||
                r->i != all[n - 1].is.i)
                rows_begin(&t, r);
            work += (keys - t.keys + 1) * r->rows * s->d;
            if (work > TRACE_WORK)
                break;
            rows_advance(&t, r);
            if (!find_off(&t, &all[n], what, sizeof what))
                continue;
            if (s->B * s->H > 1)
                snprintf(head, sizeof head, "batch %d, head %d, ", r->b, r->h);
            snprintf(run->trace, sizeof run->trace, "after %squery tile %d, key tile %d: %s", head,
                     r->i, r->j, what);
            rows_free(&t);
            return;
        }
    rows_free(&t);
    if (n == count && !lost)
        snprintf(run->trace, sizeof run->trace,
                 "all %" PRId64 " states are right: look at what follows the last tile of keys",
                 count);
    else
        snprintf(run->trace, sizeof run->trace,
                 "%" PRId64 " states are right, and more are not looked at", n);
}

static void explain(const JudgeCase *c, const JudgeRun *again, JudgeRun *run)
{
    const unsigned char *memory = again->trace_memory;
    int64_t count, n;
    Entry *all = read_entries(memory, &count);
    for (n = 0; all && n < count; n++)
        if (is_strange(&c->truth.shape, &all[n], &all[0], run->trace, sizeof run->trace))
            break;
    if (all && count > 0 && n == count) {
        qsort(all, (size_t)count, sizeof *all, by_tile);
        compare(c, all, count, ((const TraceHead *)memory)->lost != 0, run);
    }
    free(all);
}

int trace_case(const JudgeCase *c, const JudgeLimits *limits, const char *library, JudgeRun *run)
{
    JudgeRun again;
    if (run->status != JUDGE_WRONG || !run->end.workspace.traced || !run->has_hint_data ||
        c->truth.options || c->flags->backward)
        return 0;
    memset(&again, 0, sizeof again);
    again.trace_memory = calloc(1, TRACE_BYTES);
    if (!again.trace_memory)
        return 0;
    c->contract->run(c, limits, library, &again);
    if (again.end.end == ISOLATE_FINISHED)
        explain(c, &again, run);
    else
        snprintf(run->trace, sizeof run->trace, "with its states recorded %.256s",
                 again.end.sentence);
    free(again.trace_memory);
    run_free(&again);
    return 1;
}
