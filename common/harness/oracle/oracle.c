/* SPDX-License-Identifier: MIT
 *
 * oracle.c: hands the groups of one key/value head to oracle_core.c, one after the other, and its
 * rows and keys to threads. These two files are the plain oracle; what they stand on is
 * oracle_case.c, what goes tile by tile and what follows from a run's own O and lse oracle_tiles.c.
 *
 * Interface: oracle_run, oracle_run_reference (oracle.h), oracle_run_within (oracle_core.h).
 */
#include "harness/oracle/oracle_core.h"

#include <stdlib.h>

/* Pair-channels of a group below which threads cost more than they give. */
#define PARALLEL_ABOVE 2e5

static const OracleLimits limits_of_runs = {.whole = 1e10, .groups = 4e10, .given = 2e11};
static const OracleLimits limits_alone = {.whole = 1e10, .groups = 4e10, .given = 0};

/* O, lse and dQ of the sampled rows of one group; with_all: the state of all the other rows too. */
static void run_rows(Oracle *o, const OraclePlan *p, const OracleGroup *g, int backward,
                     int with_all, int threads, double *scratch)
{
    const AttnShape *s = &o->shape;
    const int64_t per_head = with_all ? s->Nq : o->rows.count,
                  per_thread = oracle_scratch_doubles(s);
    const int parallel =
        threads > 1 && (double)(g->heads * per_head) * (double)(s->Nk * s->d) > PARALLEL_ABOVE;
#pragma omp parallel for schedule(dynamic, 4) num_threads(threads) if (parallel)
    for (int64_t t = 0; t < g->heads * per_head; t++) {
        const int64_t h = t / per_head;
        const int64_t i = with_all ? t % per_head : o->rows.index[t % per_head];
        const int64_t found = oracle_sample_find(&o->rows, i);
        double *mine = scratch + oracle_thread_number() * per_thread;
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
#pragma omp parallel for schedule(dynamic, 4) num_threads(threads) if (parallel)
    for (int64_t t = 0; t < o->keys.count; t++) {
        const int64_t at = (slot * o->keys.count + t) * s->d;
        const OracleTarget dK = oracle_target_at(&o->dK, at), dV = oracle_target_at(&o->dV, at);
        oracle_key(p, g, o->keys.index[t], scratch + oracle_thread_number() * per_thread, &dK, &dV);
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
        oracle_find_taint(o, p, group, backward, 1);
        run_rows(o, p, &g, backward, keys, threads, scratch);
        if (keys)
            run_keys(o, p, &g, slot++, threads, scratch);
        oracle_group_free(&g);
    }
    free(scratch);
    return bad;
}

int oracle_run_within(Oracle *o, const AttnArgs *args, int backward, int threads,
                      OracleRoundings roundings, const OracleLimits *limits)
{
    const AttnShape *s = &args->shape;
    OraclePlan plan;
    OracleArray of_tokens[2] = {{0}}; /* what each query adds to dwq, each key to dwk */
    int bad;
    *o = (Oracle){.shape = *s, .dtype = args->Q.dtype, .roundings = roundings};
    o->whole =
        (double)s->B * (double)s->H * (double)s->Nq * (double)s->Nk * (double)s->d <= limits->whole;
    bad = oracle_plan_make(&plan, args, roundings, o->whole) != 0 ||
          oracle_sample_choose(o, &plan, backward, limits) ||
          oracle_allocate(o, &plan, backward, of_tokens);
    bad = bad || (o->streamed ? oracle_stream_groups(o, &plan, backward, threads)
                              : run_groups(o, &plan, backward, threads));
    if (o->dwq.count && !bad)
        oracle_normalise_sum(o, of_tokens);
    oracle_array_free(&of_tokens[0]);
    oracle_array_free(&of_tokens[1]);
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
