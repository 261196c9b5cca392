/* SPDX-License-Identifier: MIT
 *
 * oracle.c: hands the groups of one key/value head to oracle_core.c, all of them or a sample, and
 * keeps what comes back.
 *
 * Interface: oracle.h.
 */
#include "oracle.h"

#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "oracle_tiles.h"
#include "tensor.h"

/* Pair-channels of a group below which threads cost more than they give. */
#define PARALLEL_ABOVE 2e5

/* See OracleLimits. */
static const OracleLimits limits_of_runs = {.whole = 1e10, .groups = 4e10, .given = 2e11};
static const OracleLimits limits_alone = {.whole = 1e10, .groups = 4e10, .given = 0};

static int array_new(OracleArray *a, int64_t count)
{
    a->count = count;
    a->value = calloc((size_t)count, sizeof(double));
    a->fixed = calloc((size_t)count, sizeof(double));
    a->per_c = calloc((size_t)count, sizeof(double));
    return a->value && a->fixed && a->per_c ? 0 : -1;
}

static void array_free(OracleArray *a)
{
    free(a->value);
    free(a->fixed);
    free(a->per_c);
    free(a->copied);
}

/* Pair-channels that are visible, from 64 rows evenly spread: of one kv head and its queries. */
static double group_work(const OraclePlan *p)
{
    const AttnShape *s = &p->args->shape;
    const int64_t rows = s->Nq < 64 ? s->Nq : 64;
    int64_t seen = 0;
    for (int64_t t = 0; t < rows; t++)
        seen += oracle_seen(p, 1, t * (s->Nq - 1) / (rows > 1 ? rows - 1 : 1), NULL);
    return (double)(s->H / s->Hkv) * (double)seen / (double)rows * (double)s->Nq * (double)s->d;
}

/* Which rows, keys and groups. */
static int choose(Oracle *o, const OraclePlan *p, int backward, const OracleLimits *limits)
{
    const AttnShape *s = &o->shape;
    const int64_t groups = s->B * s->Hkv;
    double work, budget = limits->groups;
    uint64_t hash;
    if (o->whole)
        return oracle_sample_all(&o->rows, s->Nq) ||
               (backward &&
                (oracle_sample_all(&o->keys, s->Nk) || oracle_sample_all(&o->kv_heads, groups)));
    o->seed = oracle_sample_seed();
    hash = oracle_data_hash(p->args, o->seed);
    work = group_work(p);
    o->streamed = limits->given > 0 && work > limits->groups && !p->options;
    o->given = o->streamed && backward;
    if (oracle_sample_some(&o->rows, s->Nq, hash) != 0)
        return -1;
    if (!backward)
        return 0;
    if (oracle_sample_some(&o->keys, s->Nk, oracle_next_hash(hash)) != 0)
        return -1;
    if (o->given) { /* of a group only the sampled keys */
        work *= (double)o->keys.count / (double)s->Nk;
        budget = limits->given;
    }
    return oracle_sample_groups(&o->kv_heads, groups, (int64_t)(budget / (work + 1)), hash);
}

static int new_gradients(Oracle *o, const OraclePlan *p)
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

static int oracle_allocate(Oracle *o, const OraclePlan *p, int backward)
{
    const AttnShape *s = &o->shape;
    const int64_t rows = s->B * s->H * o->rows.count;
    int bad = !(o->tainted = calloc((size_t)(s->B * s->Hkv), 1));
    bad |= array_new(&o->O, rows * s->d) | array_new(&o->lse, rows);
    if (!backward)
        return bad;
    if (!o->given)
        bad |= new_gradients(o, p);
    if (o->whole && p->norm_group) {
        bad |= array_new(&o->dwq, s->H * s->d);
        bad |= array_new(&o->dwk, s->Hkv * s->d);
    }
    return bad;
}

static int thread_number(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* O, lse and dQ of the sampled rows of one group; with_all: the state of all the other rows too. */
static void run_rows(Oracle *o, const OraclePlan *p, const OracleGroup *g, int backward,
                     int with_all, int threads, double *scratch)
{
    const AttnShape *s = &o->shape;
    const int64_t per_head = with_all ? s->Nq : o->rows.count,
                  per_thread = oracle_scratch_doubles(s);
    const int parallel =
        threads > 1 && (double)(g->heads * per_head) * (double)(s->Nk * s->d) > PARALLEL_ABOVE;
    (void)parallel;
    (void)threads;
#pragma omp parallel for schedule(dynamic, 4) num_threads(threads) if (parallel)
    for (int64_t t = 0; t < g->heads * per_head; t++) {
        const int64_t h = t / per_head;
        const int64_t i = with_all ? t % per_head : o->rows.index[t % per_head];
        const int64_t found = oracle_sample_find(&o->rows, i);
        double *mine = scratch + thread_number() * per_thread;
        if (found >= 0) {
            const int64_t head = g->b * s->H + g->kv_head * g->heads + h;
            const int64_t row = head * o->rows.count + found;
            const OracleTarget O = oracle_target_at(&o->O, row * s->d),
                               lse = oracle_target_at(&o->lse, row);
            const OracleTarget dQ = backward ? oracle_target_at(&o->dQ, row * s->d) : O;
            oracle_row(p, g, h, i, backward, mine, &O, &lse, backward ? &dQ : NULL);
        } else {
            oracle_row(p, g, h, i, backward, mine, NULL, NULL, NULL);
        }
        if (oracle_is_beyond(p, g->state[h * s->Nq + i].g)) {
#pragma omp atomic write
            o->beyond = 1;
        }
    }
}

/* dK and dV of the sampled keys of one group, which is number `slot` of o->kv_heads. */
static void run_keys(Oracle *o, const OraclePlan *p, const OracleGroup *g, int64_t slot,
                     int threads, double *scratch)
{
    const AttnShape *s = &o->shape;
    const int64_t per_thread = oracle_scratch_doubles(s);
    const int parallel =
        threads > 1 && (double)(g->heads * o->keys.count) * (double)(s->Nq * s->d) > PARALLEL_ABOVE;
    (void)parallel;
    (void)threads;
#pragma omp parallel for schedule(dynamic, 4) num_threads(threads) if (parallel)
    for (int64_t t = 0; t < o->keys.count; t++) {
        const int64_t at = (slot * o->keys.count + t) * s->d;
        const OracleTarget dK = oracle_target_at(&o->dK, at), dV = oracle_target_at(&o->dV, at);
        oracle_key(p, g, o->keys.index[t], scratch + thread_number() * per_thread, &dK, &dV);
    }
}

/* dw [heads][d]: the parts [B][heads][N][d] of all tokens. */
static void sum_tokens(OracleArray *dw, const OracleArray *of, int64_t B, int64_t heads, int64_t N,
                       int64_t d)
{
    for (int64_t e = 0; e < B * heads * N * d; e++) {
        const int64_t to = e / (N * d) % heads * d + e % d;
        dw->value[to] += of->value[e];
        dw->fixed[to] += of->fixed[e];
        dw->per_c[to] += of->per_c[e];
    }
}

/* One group after the other, each loaded whole. */
static int run_groups(Oracle *o, const OraclePlan *p, int backward, int threads)
{
    const AttnShape *s = &o->shape;
    double *scratch = calloc((size_t)(oracle_scratch_doubles(s) * threads), sizeof *scratch);
    int64_t slot = 0;
    int bad = !scratch;
    for (int64_t group = 0; !bad && group < s->B * s->Hkv; group++) {
        OracleGroup g;
        const int keys = slot < o->kv_heads.count && o->kv_heads.index[slot] == group;
        if (oracle_group_load(&g, p, group / s->Hkv, group % s->Hkv, backward) != 0) {
            bad = 1;
            break;
        }
        o->tainted[group] = (uint8_t)g.tainted;
        run_rows(o, p, &g, backward, keys, threads, scratch);
        if (keys)
            run_keys(o, p, &g, slot++, threads, scratch);
        oracle_group_free(&g);
    }
    free(scratch);
    return bad;
}

/* The rows of all groups, tile by tile. */
static int stream_groups(Oracle *o, const OraclePlan *p, int backward, int threads)
{
    const int64_t Hkv = o->shape.Hkv;
    int bad = 0;
    for (int64_t group = 0; !bad && group < o->shape.B * Hkv; group++) {
        o->tainted[group] =
            (uint8_t)oracle_stream_taint(p->args, group / Hkv, group % Hkv, backward, threads);
        bad = oracle_stream_rows(o, p, group / Hkv, group % Hkv, threads);
    }
    return bad;
}

int oracle_run_within(Oracle *o, const AttnArgs *args, int backward, int threads,
                      OracleRoundings roundings, const OracleLimits *limits)
{
    const AttnShape *s = &args->shape;
    OraclePlan plan;
    OracleArray dwq_of = {0}, dwk_of = {0};
    int bad;
    memset(o, 0, sizeof *o);
    o->shape = *s;
    o->dtype = args->Q.dtype;
    o->roundings = roundings;
    o->whole =
        (double)s->B * (double)s->H * (double)s->Nq * (double)s->Nk * (double)s->d <= limits->whole;
    bad = oracle_plan_make(&plan, args, roundings, o->whole) != 0 ||
          choose(o, &plan, backward, limits) || oracle_allocate(o, &plan, backward);
    if (o->dwq.count && !bad) {
        bad |= array_new(&dwq_of, s->B * s->H * s->Nq * s->d);
        bad |= array_new(&dwk_of, s->B * s->Hkv * s->Nk * s->d);
        plan.dwq_of = &dwq_of;
        plan.dwk_of = &dwk_of;
    }
    bad = bad || (o->streamed ? stream_groups(o, &plan, backward, threads)
                              : run_groups(o, &plan, backward, threads));
    if (o->dwq.count && !bad) {
        sum_tokens(&o->dwq, &dwq_of, s->B, s->H, s->Nq, s->d);
        sum_tokens(&o->dwk, &dwk_of, s->B, s->Hkv, s->Nk, s->d);
    }
    array_free(&dwq_of);
    array_free(&dwk_of);
    oracle_plan_free(&plan);
    if (bad)
        oracle_free(o);
    return bad ? -1 : 0;
}

int oracle_run(Oracle *o, const AttnArgs *args, int backward, int threads)
{
    return oracle_run_within(o, args, backward, threads, (OracleRoundings){0}, &limits_alone);
}

int oracle_run_reference(Oracle *o, const AttnArgs *args, int backward, int threads,
                         OracleRoundings roundings)
{
    return oracle_run_within(o, args, backward, threads, roundings, &limits_of_runs);
}

int oracle_run_given(Oracle *with, const Oracle *o, const AttnArgs *args, int threads)
{
    OraclePlan plan;
    int bad;
    *with = *o;
    memset(&with->dQ, 0, sizeof with->dQ);
    memset(&with->dK, 0, sizeof with->dK);
    memset(&with->dV, 0, sizeof with->dV);
    bad = oracle_plan_make(&plan, args, o->roundings, 0) != 0 || new_gradients(with, &plan);
    for (int64_t group = 0; !bad && group < o->shape.B * o->shape.Hkv; group++)
        bad = oracle_given_rows(with, &plan, group / o->shape.Hkv, group % o->shape.Hkv, threads);
    for (int64_t slot = 0; !bad && slot < with->kv_heads.count; slot++)
        bad = oracle_given_keys(with, &plan, slot, threads);
    oracle_plan_free(&plan);
    if (bad)
        oracle_given_free(with);
    return bad ? -1 : 0;
}

void oracle_given_free(Oracle *with)
{
    array_free(&with->dQ);
    array_free(&with->dK);
    array_free(&with->dV);
    memset(with, 0, sizeof *with);
}

void oracle_free(Oracle *o)
{
    free(o->rows.index);
    free(o->keys.index);
    free(o->kv_heads.index);
    free(o->tainted);
    array_free(&o->O);
    array_free(&o->lse);
    array_free(&o->dQ);
    array_free(&o->dK);
    array_free(&o->dV);
    array_free(&o->dwq);
    array_free(&o->dwk);
    memset(o, 0, sizeof *o);
}
