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

#include "oracle_core.h"
#include "philox.h"
#include "tensor.h"

#define SAMPLE_ABOVE 1e10 /* pair-channels */
#define PARALLEL_ABOVE                                                                             \
    2e5 /* pair-channels of a group below which threads cost more than they give */

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
}

static OracleTarget target_at(const OracleArray *a, int64_t element)
{
    const OracleTarget to = {a->value + element, a->fixed + element, a->per_c + element};
    return to;
}

static int oracle_allocate(Oracle *o, const AttnArgs *args, int backward)
{
    const AttnShape *s = &args->shape;
    const int whole =
        (double)s->B * (double)s->H * (double)s->Nq * (double)s->Nk * (double)s->d <= SAMPLE_ABOVE;
    const uint64_t hash = whole ? 0 : oracle_data_hash(args);
    int bad = 0;
    memset(o, 0, sizeof *o);
    o->shape = *s;
    o->dtype = args->Q.dtype;
    bad |= whole ? oracle_sample_all(&o->rows, s->Nq) : oracle_sample_some(&o->rows, s->Nq, hash);
    bad |= !(o->tainted = calloc((size_t)(s->B * s->Hkv), 1));
    bad |= array_new(&o->O, s->B * s->H * o->rows.count * s->d);
    bad |= array_new(&o->lse, s->B * s->H * o->rows.count);
    if (!backward)
        return bad;
    bad |= whole ? oracle_sample_all(&o->keys, s->Nk)
                 : oracle_sample_some(&o->keys, s->Nk, oracle_next_hash(hash));
    bad |= whole ? oracle_sample_all(&o->kv_heads, s->B * s->Hkv)
                 : oracle_sample_groups(&o->kv_heads, s, hash);
    bad |= array_new(&o->dQ, s->B * s->H * o->rows.count * s->d);
    bad |= array_new(&o->dK, o->kv_heads.count * o->keys.count * s->d);
    bad |= array_new(&o->dV, o->kv_heads.count * o->keys.count * s->d);
    if (whole && args->options && args->options->norm_group) {
        bad |= array_new(&o->dwq, s->H * s->d);
        bad |= array_new(&o->dwk, s->Hkv * s->d);
    }
    return bad;
}

/* Local index - those of earlier sequences: how many of its sequence come before. */
static int64_t *index_in_sequence(AttnPositions map, int64_t N)
{
    int64_t *in = malloc(sizeof *in * (size_t)N);
    for (int64_t s = 0; in && s < map.count; s++) {
        int64_t before = 0;
        for (int64_t t = 0; t < s; t++)
            if (map.segments[t].sequence == map.segments[s].sequence)
                before += map.segments[t].length;
        for (int64_t t = 0; t < map.segments[s].length; t++)
            in[map.segments[s].first + t] = before + t;
    }
    return in;
}

/* What the options ask for beyond a scale. */
static int plan_options(OraclePlan *p, const AttnArgs *args)
{
    const AttnOptions *o = args->options;
    if (!o)
        return 0;
    if (p->cap == 0) {
        p->scale /= o->temperature;
        p->folds = o->temperature != 1;
    }
    p->norm_group = o->norm_group;
    p->clips = o->clip_low != 0 || o->clip_high != 1;
    p->clip_low = o->clip_low;
    p->gain = (double)o->clip_high - o->clip_low;
    p->drops = o->dropout > 0;
    p->kept = 1 / (1 - (double)o->dropout);
    p->threshold = attn_dropout_threshold(o->dropout);
    if (p->norm_group || p->clips || p->drops)
        p->options = o;
    p->q_in = index_in_sequence(args->positions_q, args->shape.Nq);
    p->k_in = index_in_sequence(args->positions_k, args->shape.Nk);
    return p->q_in && p->k_in ? 0 : -1;
}

static int plan_make(OraclePlan *p, const AttnArgs *args, double partials)
{
    const AttnShape *s = &args->shape;
    p->args = args;
    p->scale = args->scale;
    p->cap = args->softcap > 0 ? args->softcap : 0;
    p->u16 = args->Q.dtype == ATTN_BF16 ? 0x1p-8 : args->Q.dtype == ATTN_F16 ? 0x1p-11 : 0;
    p->u16 += partials;
    p->eta = args->Q.dtype == ATTN_F16 ? 0x1p-25 : 0x1p-126;
    p->q_at = malloc(sizeof *p->q_at * (size_t)s->Nq);
    p->k_at = malloc(sizeof *p->k_at * (size_t)s->Nk);
    if (!p->q_at || !p->k_at || plan_options(p, args) != 0)
        return -1;
    for (int64_t i = 0; i < s->Nq; i++)
        p->q_at[i] = attn_position(args->positions_q, i);
    for (int64_t j = 0; j < s->Nk; j++)
        p->k_at[j] = attn_position(args->positions_k, j);
    return 0;
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
            const OracleTarget O = target_at(&o->O, row * s->d), lse = target_at(&o->lse, row);
            const OracleTarget dQ = backward ? target_at(&o->dQ, row * s->d) : O;
            oracle_row(p, g, h, i, backward, mine, &O, &lse, backward ? &dQ : NULL);
        } else {
            oracle_row(p, g, h, i, backward, mine, NULL, NULL, NULL);
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
        const OracleTarget dK = target_at(&o->dK, at), dV = target_at(&o->dV, at);
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

int oracle_run(Oracle *o, const AttnArgs *args, int backward, int threads)
{
    return oracle_run_rounded(o, args, backward, threads, 0);
}

int oracle_run_rounded(Oracle *o, const AttnArgs *args, int backward, int threads, double partials)
{
    const AttnShape *s = &args->shape;
    OraclePlan plan = {0};
    double *scratch = NULL;
    int64_t slot = 0;
    OracleArray dwq_of = {0}, dwk_of = {0};
    int bad = oracle_allocate(o, args, backward) | plan_make(&plan, args, partials);
    if (o->dwq.count && !bad) {
        bad |= array_new(&dwq_of, s->B * s->H * s->Nq * s->d);
        bad |= array_new(&dwk_of, s->B * s->Hkv * s->Nk * s->d);
        plan.dwq_of = &dwq_of;
        plan.dwk_of = &dwk_of;
    }
    scratch = calloc((size_t)(oracle_scratch_doubles(s) * threads), sizeof *scratch);
    bad |= !scratch;
    for (int64_t group = 0; !bad && group < s->B * s->Hkv; group++) {
        OracleGroup g;
        const int keys = slot < o->kv_heads.count && o->kv_heads.index[slot] == group;
        if (oracle_group_load(&g, &plan, group / s->Hkv, group % s->Hkv, backward) != 0) {
            bad = 1;
            break;
        }
        o->tainted[group] = (uint8_t)g.tainted;
        run_rows(o, &plan, &g, backward, keys, threads, scratch);
        if (keys)
            run_keys(o, &plan, &g, slot++, threads, scratch);
        oracle_group_free(&g);
    }
    if (o->dwq.count && !bad) {
        sum_tokens(&o->dwq, &dwq_of, s->B, s->H, s->Nq, s->d);
        sum_tokens(&o->dwk, &dwk_of, s->B, s->Hkv, s->Nk, s->d);
    }
    array_free(&dwq_of);
    array_free(&dwk_of);
    free(scratch);
    free(plan.q_at);
    free(plan.k_at);
    free(plan.q_in);
    free(plan.k_in);
    if (bad)
        oracle_free(o);
    return bad ? -1 : 0;
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
