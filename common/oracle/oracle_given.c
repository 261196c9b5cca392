/* SPDX-License-Identifier: MIT
 *
 * oracle_given.c: gradients when the rows are too many to make lse and delta of all of them again:
 * lse and O are given by the run that is judged.
 *
 * A key needs P = exp(s - lse) and delta = rowsum(dO * O) of every row that sees it, and each lse
 * costs all keys: N^2 d for a single key. With lse and O given it is N d. What the verdict says is
 * then: O and lse are right on the sampled rows, and dQ on these rows and dK and dV on the sampled
 * keys are right *given* O and lse of the run, all rows of them for dK and dV. dK and dV do not
 * show an O or lse that is wrong in a row that was not checked. So each run checks other rows
 * (oracle_sample.c) and looks for a NaN in all of them (check_everywhere.c). This file takes
 * nothing else from the run.
 *
 * THE BOUND is that of oracle_core.c, less what came from the errors of lse and O: they are given,
 * and a backward pass reads the same numbers. With a_ij = sum_x scale |q||k| of the pair alone, and
 * E_i from the O that is given:
 *     g_ij = D a_ij (1 + 2/cap) + |lse_i| + sqrt(terms summed) + 8
 *     dV: u16 (|dV| + sum_i P|dO|) + c u sum_i g_ij P|dO| + eta (1 + sum_i |dO|)
 *     dK: u16 (|dK| + scale sum_i (|dS| + P E_i) |Q|)
 *         + c u scale sum_i P (g_ij |dP - delta| + sum_x|dO||V| + E_i) |Q|
 *         + eta scale sum_i P sum_x|dO| |Q| + the other floors as there
 * A (the largest a_ij of a row), sqrt(n) and W are gone: they are what lse and O may be off by. E_i
 * stays once with u16, and of F_i sum_x |dO|: delta may come from O before it was rounded to be
 * stored. dQ likewise with K, where W counts most: of long rows it was nearly all of the bound, and
 * hid a missing hop.
 *
 * Interface: oracle.h (oracle_run_given, oracle_given_free), oracle_tiles.h (oracle_given_...,
 * oracle_read_row).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/oracle_tiles.h"
#include "tensor.h"

static const double u = ORACLE_U;

/* One sampled key. Arrays [d]. */
typedef struct KeySum {
    int64_t j;
    double terms; /* rows that see it, of all heads */
    double *k, *k_size, *v, *v_size;
    double *y, *yc, *yf;         /* dK */
    double *z, *zc, *zf;         /* dV */
    double *y_so_far, *z_so_far; /* up to the last copy */
} KeySum;

#define KEY_ARRAYS 12

typedef struct Keys {
    const OraclePlan *p;
    int64_t b, head; /* query head of the walk */
    KeySum *key;
    double *memory;
    int64_t count;
} Keys;

OracleRowState oracle_given_row(const OraclePlan *p, int64_t b, int64_t head, int64_t i,
                                const double *dO)
{
    const AttnArgs *args = p->args;
    OracleRowState state = {.lse = args->lse[(b * args->shape.H + head) * args->shape.Nq + i]};
    float O[1024];
    tensor_read_row(&args->O, b, i, head, O);
    for (int64_t x = 0; x < args->shape.d; x++) {
        state.delta += dO[x] * O[x];
        state.dO_O += fabs(dO[x] * O[x]);
        state.dO_floor += p->eta * fabs(dO[x]);
    }
    return state;
}

double oracle_given_error(const OraclePlan *p, double size, double lse, double terms)
{
    const double D = oracle_score_error(p) * (p->cap == 0 ? 1 : 1 + 2 / p->cap);
    return D * fabs(p->scale) * size + fabs(lse) + sqrt(terms) + 8;
}

/* lse and delta of the tile's rows, from the run's own output. */
static void read_rows(void *all, OracleTile *tile)
{
    const Keys *keys = all;
    const AttnArgs *a = keys->p->args;
    const int64_t d = a->shape.d;
    for (int64_t t = 0; t < tile->count; t++) {
        double dO[1024];
        for (int64_t x = 0; x < d; x++)
            dO[x] = tile->Y.at[t * d + x];
        tile->state[t] = oracle_given_row(keys->p, keys->b, keys->head, tile->first + t, dO);
    }
}

static void add_rows(void *all, int64_t at, const OracleTile *tile, OracleScratch *m)
{
    const Keys *keys = all;
    const OraclePlan *p = keys->p;
    KeySum *key = &keys->key[at];
    const int64_t d = p->args->shape.d, n = oracle_tile_seen(p, tile, 0, key->j, m->index);
    double *g = m->unsure;
    if (n == 0)
        return;
    oracle_dot_columns(&tile->Xt, m->index[0], m->index[n - 1] + 1, key->k, key->k_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++) {
        const int64_t i = m->index[t];
        const double lse = tile->state[i].lse;
        m->P[t] = oracle_weight(oracle_cap_score(p, m->dot[i], &m->slope[t]), lse);
        g[t] = oracle_given_error(p, m->size[i], lse, key->terms);
    }
    oracle_dot_columns(&tile->Yt, m->index[0], m->index[n - 1] + 1, key->v, key->v_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++) {
        const int64_t i = m->index[t];
        oracle_weigh_pair(p, &tile->state[i], m->P[t], m->slope[t], m->dot[i], m->size[i], g[t],
                          &m->w[t], &m->wc[t], &m->wf[t]);
        m->vc[t] = u * oracle_grown(p, g[t]) * m->P[t];
        m->vf[t] = p->u16 * m->P[t] + p->eta;
    }
    oracle_weigh_rows(&tile->X, m->index, n, 0, d, m->w, m->wc, m->wf, key->y, key->yc, key->yf);
    oracle_weigh_rows(&tile->Y, m->index, n, 0, d, m->P, m->vc, m->vf, key->z, key->zc, key->zf);
}

void oracle_read_row(const Tensor *t, int64_t b, int64_t n, int64_t h, double *value, double *size)
{
    float row[1024];
    tensor_read_row(t, b, n, h, row);
    for (int64_t x = 0; x < t->shape[3]; x++) {
        value[x] = row[x];
        size[x] = fabs(value[x]);
    }
}

static int keys_make(Keys *keys, const Oracle *o, int64_t kv_head, int threads)
{
    const OraclePlan *p = keys->p;
    const AttnArgs *a = p->args;
    const int64_t d = a->shape.d, heads = a->shape.H / a->shape.Hkv;
    double *at;
    (void)threads;
    keys->count = o->keys.count;
    keys->key = calloc((size_t)keys->count, sizeof *keys->key);
    at = keys->memory = calloc((size_t)(keys->count * KEY_ARRAYS * d), sizeof *at);
    if (!keys->key || !keys->memory)
        return -1;
    for (int64_t n = 0; n < keys->count; n++) {
        KeySum *k = &keys->key[n];
        double **const arrays[KEY_ARRAYS] = {&k->k,  &k->k_size, &k->v,        &k->v_size,
                                             &k->y,  &k->yc,     &k->yf,       &k->z,
                                             &k->zc, &k->zf,     &k->y_so_far, &k->z_so_far};
        for (int e = 0; e < KEY_ARRAYS; e++, at += d)
            *arrays[e] = at;
        k->j = o->keys.index[n];
        oracle_read_row(&a->K, keys->b, k->j, kv_head, k->k, k->k_size);
        oracle_read_row(&a->V, keys->b, k->j, kv_head, k->v, k->v_size);
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t n = 0; n < keys->count; n++)
        keys->key[n].terms = (double)(heads * oracle_seen(p, 0, keys->key[n].j, NULL));
    return 0;
}

int oracle_given_keys(Oracle *o, const OraclePlan *p, int64_t slot, int threads)
{
    const AttnArgs *a = p->args;
    const int64_t d = a->shape.d, heads = a->shape.H / a->shape.Hkv;
    const int64_t group = o->kv_heads.index[slot], kv_head = group % a->shape.Hkv;
    Keys keys = {.p = p, .b = group / a->shape.Hkv};
    int bad = keys_make(&keys, o, kv_head, threads);
    for (int64_t h = 0; h < heads && !bad; h++) {
        const OracleWalk walk = {.p = p,
                                 .X = &a->Q,
                                 .Y = &a->dO,
                                 .b = keys.b,
                                 .head = keys.head = kv_head * heads + h,
                                 .of_keys = 0,
                                 .sample = &o->keys,
                                 .count = keys.count,
                                 .all = &keys,
                                 .prepare = read_rows,
                                 .visit = add_rows};
        bad = oracle_tiles_walk(&walk, threads);
        for (int64_t n = 0; n < keys.count && !bad; n++) {
            const int64_t at = (slot * o->keys.count + n) * d;
            const KeySum *k = &keys.key[n];
            oracle_note_copy(p, h, k->y, k->y_so_far, oracle_target_at(&o->dK, at).copied);
            oracle_note_copy(p, h, k->z, k->z_so_far, oracle_target_at(&o->dV, at).copied);
        }
    }
    for (int64_t n = 0; n < keys.count && !bad; n++) {
        const KeySum *k = &keys.key[n];
        const int64_t at = (slot * o->keys.count + n) * d;
        const OracleTarget dK = oracle_target_at(&o->dK, at), dV = oracle_target_at(&o->dV, at);
        if (k->terms == 0) { /* nobody sees this key */
            oracle_target_fill(&dK, d, 0, 0, 0);
            oracle_target_fill(&dV, d, 0, 0, 0);
            continue;
        }
        oracle_finish(p, d, k->y, k->yf, k->yc, &dK);
        oracle_finish(p, d, k->z, k->zf, k->zc, &dV);
    }
    free(keys.key);
    free(keys.memory);
    return bad ? -1 : 0;
}

int oracle_run_given(Oracle *with, const Oracle *o, const AttnArgs *args, int threads)
{
    OraclePlan plan;
    int bad;
    *with = *o;
    memset(&with->dQ, 0, sizeof with->dQ);
    memset(&with->dK, 0, sizeof with->dK);
    memset(&with->dV, 0, sizeof with->dV);
    bad = oracle_plan_make(&plan, args, o->roundings, 0) != 0 || oracle_new_gradients(with, &plan);
    for (int64_t group = 0; !bad && group < o->shape.B * o->shape.Hkv; group++)
        bad = oracle_given_rows(with, &plan, group / o->shape.Hkv, group % o->shape.Hkv, threads);
    for (int64_t slot = 0; !bad && slot < with->kv_heads.count; slot++)
        bad = oracle_given_keys(with, &plan, slot, threads);
    oracle_plan_free(&plan);
    if (bad)
        oracle_given_free(with);
    return bad ? -1 : 0;
}
