/* SPDX-License-Identifier: MIT
 *
 * oracle_arrays.c: memory of results, and of a thread that computes them.
 *
 * Interface: oracle_free, oracle_given_free (oracle.h), oracle_allocate, oracle_new_gradients,
 * oracle_array_free, oracle_scratch_... (oracle_core.h).
 */
#include "oracle/oracle_core.h"

#include <stdlib.h>
#include <string.h>

static int array_new(OracleArray *a, int64_t count)
{
    a->count = count;
    a->value = calloc((size_t)count, sizeof(double));
    a->fixed = calloc((size_t)count, sizeof(double));
    a->per_c = calloc((size_t)count, sizeof(double));
    return a->value && a->fixed && a->per_c ? 0 : -1;
}

void oracle_array_free(OracleArray *a)
{
    free(a->value);
    free(a->fixed);
    free(a->per_c);
    free(a->copied);
}

int oracle_new_gradients(Oracle *o, const OraclePlan *p)
{
    const int64_t rows = o->shape.B * o->shape.H * o->rows.count;
    const int64_t count = o->kv_heads.count * o->keys.count * o->shape.d;
    int bad =
        array_new(&o->dQ, rows * o->shape.d) | array_new(&o->dK, count) | array_new(&o->dV, count);
    if (!p->copies)
        return bad;
    bad |= !(o->dK.copied = calloc((size_t)count, sizeof(double)));
    bad |= !(o->dV.copied = calloc((size_t)count, sizeof(double)));
    return bad;
}

int oracle_allocate(Oracle *o, OraclePlan *p, int backward, OracleArray of_tokens[2])
{
    const AttnShape *s = &o->shape;
    const int64_t rows = s->B * s->H * o->rows.count;
    int bad = !(o->tainted = calloc((size_t)(s->B * s->Hkv), 1)) |
              !(o->tainted_at = calloc((size_t)(s->B * s->Hkv * s->d), 1));
    bad |= array_new(&o->O, rows * s->d) | array_new(&o->lse, rows);
    if (!backward)
        return bad;
    if (!o->given)
        bad |= oracle_new_gradients(o, p);
    if (o->whole && p->norm_group) {
        bad |= array_new(&o->dwq, s->H * s->d);
        bad |= array_new(&o->dwk, s->Hkv * s->d);
        bad |= array_new(&of_tokens[0], s->B * s->H * s->Nq * s->d);
        bad |= array_new(&of_tokens[1], s->B * s->Hkv * s->Nk * s->d);
        p->dwq_of = &of_tokens[0];
        p->dwk_of = &of_tokens[1];
    }
    return bad;
}

void oracle_given_free(Oracle *with)
{
    oracle_array_free(&with->dQ);
    oracle_array_free(&with->dK);
    oracle_array_free(&with->dV);
    memset(with, 0, sizeof *with);
}

void oracle_free(Oracle *o)
{
    free(o->rows.index);
    free(o->keys.index);
    free(o->kv_heads.index);
    free(o->tainted);
    free(o->tainted_at);
    oracle_array_free(&o->O);
    oracle_array_free(&o->lse);
    oracle_array_free(&o->dQ);
    oracle_array_free(&o->dK);
    oracle_array_free(&o->dV);
    oracle_array_free(&o->dwq);
    oracle_array_free(&o->dwk);
    memset(o, 0, sizeof *o);
}

#define SCRATCH_N 12
#define SCRATCH_D 12

int64_t oracle_scratch_doubles(const AttnShape *s)
{
    const int64_t N = s->Nq > s->Nk ? s->Nq : s->Nk;
    return SCRATCH_N * N + SCRATCH_D * s->d;
}

OracleScratch oracle_scratch_divide(const AttnShape *s, double *memory)
{
    const int64_t N = s->Nq > s->Nk ? s->Nq : s->Nk, d = s->d;
    double *n = memory, *x = memory + SCRATCH_N * N;
    OracleScratch m;
    m.index = (int64_t *)(void *)n;
    m.dot = n + N, m.size = n + 2 * N, m.P = n + 3 * N, m.slope = n + 4 * N;
    m.w = n + 5 * N, m.wc = n + 6 * N, m.wf = n + 7 * N;
    m.v = n + 8 * N, m.vc = n + 9 * N, m.vf = n + 10 * N;
    m.row = x, m.row_size = x + d, m.row2 = x + 2 * d, m.row2_size = x + 3 * d;
    m.y = x + 4 * d, m.yc = x + 5 * d, m.yf = x + 6 * d;
    m.z = x + 7 * d, m.zc = x + 8 * d, m.zf = x + 9 * d;
    m.unsure = n + 11 * N, m.spare = x + 10 * d, m.spare2 = x + 11 * d;
    return m;
}
