/* SPDX-License-Identifier: MIT
 *
 * oracle_plan.c: what holds for a whole case: scale, cap and options as numbers, units of rounding,
 * the position of every token; and the factors of the bounds in oracle_core.c that depend on these.
 *
 * Interface: oracle_core.h (oracle_plan_make, oracle_plan_free, oracle_score_error,
 * oracle_row_errors, oracle_grown, oracle_is_beyond, oracle_note_copy).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/philox.h"
#include "oracle/oracle_tiles.h"

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

int oracle_plan_make(OraclePlan *p, const AttnArgs *args, OracleRoundings roundings, int whole)
{
    const AttnShape *s = &args->shape;
    memset(p, 0, sizeof *p);
    p->args = args;
    p->scale = args->scale;
    p->cap = args->softcap > 0 ? args->softcap : 0;
    p->u16 = args->Q.dtype == ATTN_BF16 ? 0x1p-8 : args->Q.dtype == ATTN_F16 ? 0x1p-11 : 0;
    p->copies = p->u16 > 0 && roundings.copies > 1 ? roundings.copies : 0;
    p->u_copy = p->u16;
    p->u16 += roundings.partials;
    p->eta = args->Q.dtype == ATTN_F16 ? 0x1p-25 : 0x1p-126;
    p->q_at = malloc(sizeof *p->q_at * (size_t)s->Nq);
    p->k_at = malloc(sizeof *p->k_at * (size_t)s->Nk);
    if (!p->q_at || !p->k_at || plan_options(p, args) != 0)
        return -1;
    for (int64_t i = 0; i < s->Nq; i++)
        p->q_at[i] = attn_position(args->positions_q, i);
    for (int64_t j = 0; j < s->Nk; j++)
        p->k_at[j] = attn_position(args->positions_k, j);
    if (whole)
        return 0;
    p->q_range = oracle_ranges(p->q_at, s->Nq);
    p->k_range = oracle_ranges(p->k_at, s->Nk);
    return p->q_range && p->k_range ? 0 : -1;
}

void oracle_plan_free(OraclePlan *p)
{
    free(p->q_at);
    free(p->k_at);
    free(p->q_range);
    free(p->k_range);
    free(p->q_in);
    free(p->k_in);
}

/* --- factors of the bounds ---------------------------------------------------------------------*/

static double exponent_error(const OraclePlan *p, double g)
{
    const double x = (p->args->Q.dtype == ATTN_F32 ? 4 : 16) * ORACLE_U * g;
    return p->cap > 0 && x > 2 * p->cap + 1 ? 2 * p->cap + 1 : x; /* capped scores are in +-cap */
}

int oracle_is_beyond(const OraclePlan *p, double g)
{
    const double x = exponent_error(p, g);
    return x > ORACLE_MOST && x < INFINITY; /* infinity comes from an input, not from rounding */
}

double oracle_grown(const OraclePlan *p, double g)
{
    const double x = exponent_error(p, g);
    return x > 0 && x < INFINITY ? g * expm1(x < ORACLE_MOST ? x : ORACLE_MOST) / x : g;
}

double oracle_score_error(const OraclePlan *p)
{
    return 1 + sqrt((double)p->args->shape.d) / 4 + (p->folds ? 0.5 : 0);
}

void oracle_row_errors(const OraclePlan *p, double A, int64_t n, OracleRowState *state)
{
    A *= oracle_score_error(p);
    state->rounding = sqrt((double)n) + 8 + p->drops;
    state->forward = A + state->rounding;
    state->output = n == 1 && A < INFINITY ? state->rounding : state->forward;
    state->g = state->forward + fabs(state->lse) + (p->cap == 0 ? 0 : 2 * A / p->cap);
}

void oracle_note_copy(const OraclePlan *p, int64_t h, const double *sum, double *before,
                      double *copied)
{
    const AttnShape *s = &p->args->shape;
    if (!p->copies || (h + 1) % (s->H / s->Hkv / p->copies) != 0)
        return;
    for (int64_t x = 0; x < s->d; x++) {
        copied[x] += p->u_copy * fabs(sum[x] - before[x]) + p->eta;
        before[x] = sum[x];
    }
}
