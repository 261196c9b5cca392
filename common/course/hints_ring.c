/* SPDX-License-Identifier: MIT
 *
 * hints_ring.c: which mistake of a ring explains what a rank computed?
 *
 * As in hints.c rows are computed again in float64 with one mistake built in: a block of keys that
 * was never used, positions of another block, results of blocks that were added and not merged.
 * Looked at are a few rows of the last rank that is wrong, and the first mistake that explains all
 * of them is named, with its rank and block. What has nothing to do with ranks is hints.c's.
 *
 * Interface: ring_hints_find, ring_hint_code (contract.h).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "course/contract.h"

enum { TOKENS = 6, HEADS = 2, MOST_CHANNELS = 512, MOST_WORLD = 16 };
#define SAME  1e-3 /* a guess explains a value */
#define WRONG 1e-2 /* a value is not the reference's */

enum {
    NEVER,
    FIRST_BLOCKS, /* a: how many */
    TWICE,
    INSTEAD,
    PREVIOUS_AGAIN,
    KEYS_FROM_0,
    QUERIES_FROM_0,
    BOTH_FROM_0,
    KEYS_IN_A_ROW,
    QUERIES_IN_A_ROW,
    BOTH_IN_A_ROW,
    KEYS_OWN,
    KEYS_NEXT,
    KEYS_PREVIOUS,
    MASK_OF_OWN,
    MASK_OF_OTHERS,
    TOKENS_OWN,
    LAST_KEY,
    VALUES_OWN,
    SUM_OF_BLOCKS,
    MEAN_OF_BLOCKS,
    LAST_BLOCK,
    STALE_O,
    STALE_L,
    KINDS
};
enum { OF_RANK, OF_COUNT, OF_BLOCK, OF_TWO_BLOCKS };

/* %1$d: the rank; %2$d, %3$d: blocks, or how many. */
static const struct {
    const char *code, *sentence;
    int of;
} mistakes[KINDS] = {
    [FIRST_BLOCKS] = {"ring_too_short", "rank %1$d used %2$d of %3$d blocks only", OF_COUNT},
    [NEVER] = {"block_never_used", "rank %1$d never used block %2$d", OF_BLOCK},
    [TWICE] = {"block_used_twice", "rank %1$d used block %2$d twice", OF_BLOCK},
    [INSTEAD] = {"block_in_place_of_another",
                 "rank %1$d used block %2$d twice, and block %3$d never", OF_TWO_BLOCKS},
    [PREVIOUS_AGAIN] = {"not_passed_on",
                        "rank %1$d has the same block in every step after its own: a rank sends on "
                        "what it received",
                        OF_RANK},
    [KEYS_FROM_0] = {"positions_from_0",
                     "rank %1$d takes positions of keys as if each block began at 0", OF_RANK},
    [QUERIES_FROM_0] = {"positions_from_0",
                        "positions of rank %1$d's queries are taken as if its block began at 0",
                        OF_RANK},
    [BOTH_FROM_0] = {"positions_from_0",
                     "rank %1$d takes places in memory for positions, of queries and keys",
                     OF_RANK},
    [KEYS_IN_A_ROW] = {"positions_in_a_row",
                       "rank %1$d takes keys of a block for neighbours: position[r][0] + t",
                       OF_RANK},
    [QUERIES_IN_A_ROW] = {"positions_in_a_row",
                          "rank %1$d takes its queries for neighbours: position[r][0] + t",
                          OF_RANK},
    [BOTH_IN_A_ROW] = {"positions_in_a_row",
                       "rank %1$d takes tokens of a block for neighbours: position[r][0] + t",
                       OF_RANK},
    [KEYS_OWN] = {"positions_of_own_block",
                  "rank %1$d gives the keys of every block the positions of its own tokens",
                  OF_RANK},
    [KEYS_NEXT] = {"positions_of_next_block",
                   "rank %1$d gives the keys of a block the positions of the block behind it",
                   OF_RANK},
    [KEYS_PREVIOUS] = {"positions_of_previous_block",
                       "rank %1$d gives the keys of a block the positions of the block before it",
                       OF_RANK},
    [MASK_OF_OWN] = {"mask_of_own_block", "rank %1$d applies the mask to its own block only",
                     OF_RANK},
    [MASK_OF_OTHERS] = {"mask_of_other_blocks",
                        "rank %1$d applies the mask to all blocks but its own", OF_RANK},
    [TOKENS_OWN] = {"tokens_of_own_block",
                    "rank %1$d takes tokens[rank] keys of every block: it has tokens[owner]",
                    OF_RANK},
    [LAST_KEY] = {"last_key_of_block", "rank %1$d leaves out the last key of each block", OF_RANK},
    [VALUES_OWN] = {"values_of_own_block",
                    "rank %1$d multiplies with its own V: the values of a block were not passed on",
                    OF_RANK},
    [SUM_OF_BLOCKS] = {"blocks_added", "rank %1$d adds the results of blocks without weights",
                       OF_RANK},
    [MEAN_OF_BLOCKS] = {"blocks_averaged", "rank %1$d takes the mean of the results of blocks",
                        OF_RANK},
    [LAST_BLOCK] = {"last_block_alone",
                    "rank %1$d has the result of the last block alone: m, l and O begin anew with "
                    "every block",
                    OF_RANK},
    [STALE_O] = {"stale_o", "rank %1$d does not multiply O by exp(m_old - m_new)", OF_RANK},
    [STALE_L] = {"stale_l", "rank %1$d does not multiply l by exp(m_old - m_new)", OF_RANK},
};

typedef struct Ring {
    const JudgeCase *c;
    const AttnArgs *found;
    int world;
    const int32_t *tokens, *position[MOST_WORLD];
} Ring;

typedef struct Guess {
    int kind, a, b;
    int piece; /* keys between two updates of m; 0: a block */
} Guess;

typedef struct Row {
    int rank, token;
    int64_t h;
} Row;

typedef struct State {
    double m, l, o[MOST_CHANNELS];
} State;

/* --- one row -----------------------------------------------------------------------------------*/

static int64_t query_position(const Ring *g, const Guess *u, const Row *r)
{
    const int32_t *p = g->position[r->rank];
    return u->kind == QUERIES_FROM_0 || u->kind == BOTH_FROM_0       ? r->token
           : u->kind == QUERIES_IN_A_ROW || u->kind == BOTH_IN_A_ROW ? p[0] + r->token
                                                                     : p[r->token];
}

static int64_t key_position(const Ring *g, const Guess *u, const Row *r, int owner, int j)
{
    const int shift = u->kind == KEYS_NEXT ? 1 : u->kind == KEYS_PREVIOUS ? g->world - 1 : 0;
    if (u->kind == KEYS_FROM_0 || u->kind == BOTH_FROM_0)
        return j;
    if (u->kind == KEYS_IN_A_ROW || u->kind == BOTH_IN_A_ROW)
        return g->position[owner][0] + j;
    owner = u->kind == KEYS_OWN ? r->rank : (owner + shift) % g->world;
    return j < g->tokens[owner] ? g->position[owner][j] : g->position[owner][0] + j;
}

static int sees(const Ring *g, const Guess *u, const Row *r, int owner, int j)
{
    const AttnArgs *a = &g->c->problem.args;
    const int64_t ahead = key_position(g, u, r, owner, j) - query_position(g, u, r);
    if ((u->kind == MASK_OF_OWN && owner != r->rank) ||
        (u->kind == MASK_OF_OTHERS && owner == r->rank))
        return 1;
    return (a->rule.left < 0 || ahead >= -a->rule.left) &&
           (a->rule.right < 0 || ahead <= a->rule.right);
}

/* Keys [from, to) of a block into an empty state; o is not divided by l. */
static void add_keys(const Ring *g, const Guess *u, const Row *r, int owner, int from, int to,
                     State *s)
{
    const AttnArgs *a = &g->c->problem.args;
    const int64_t d = a->shape.d, kv = r->h / (a->shape.H / a->shape.Hkv);
    float q[MOST_CHANNELS], k[MOST_CHANNELS], v[MOST_CHANNELS];
    *s = (State){.m = -INFINITY};
    tensor_read_row(&a->Q, 0, g->position[r->rank][r->token], r->h, q);
    for (int j = from; j < to; j++) {
        const int32_t *values = g->position[owner];
        double score = 0.0, alpha, weight;
        if (!sees(g, u, r, owner, j))
            continue;
        if (u->kind == VALUES_OWN && j < g->tokens[r->rank])
            values = g->position[r->rank];
        tensor_read_row(&a->K, 0, g->position[owner][j], kv, k);
        tensor_read_row(&a->V, 0, values[j], kv, v);
        for (int64_t x = 0; x < d; x++)
            score += (double)q[x] * (double)k[x];
        score *= (double)a->scale;
        alpha = score > s->m ? exp(s->m - score) : 1.0;
        s->m = fmax(s->m, score);
        weight = exp(score - s->m);
        s->l = s->l * alpha + weight;
        for (int64_t x = 0; x < d; x++)
            s->o[x] = s->o[x] * alpha + weight * (double)v[x];
    }
}

static void join(const Guess *u, int64_t d, State *s, const State *more)
{
    const double m = fmax(s->m, more->m);
    const double alpha = s->m > -INFINITY ? exp(s->m - m) : 0.0;
    const double beta = more->m > -INFINITY ? exp(more->m - m) : 0.0;
    const double alpha_o = u->kind == STALE_O ? 1.0 : alpha;
    s->l = s->l * (u->kind == STALE_L ? 1.0 : alpha) + more->l * beta;
    for (int64_t x = 0; x < d; x++)
        s->o[x] = s->o[x] * alpha_o + more->o[x] * beta;
    s->m = m;
}

static int times_used(const Ring *g, const Guess *u, const Row *r, int owner)
{
    const int step = (r->rank - owner + g->world) % g->world;
    if (u->kind == FIRST_BLOCKS)
        return step < u->a;
    if (u->kind == NEVER)
        return owner != u->a;
    if (u->kind == PREVIOUS_AGAIN)
        return step == 1 ? g->world - 1 : step == 0;
    if (u->kind == TWICE || u->kind == INSTEAD)
        return owner == u->a ? 2 : u->kind == TWICE || owner != u->b;
    return 1;
}

static int keys_used(const Ring *g, const Guess *u, const Row *r, int owner)
{
    const int keys = g->tokens[owner], own = g->tokens[r->rank];
    return u->kind == TOKENS_OWN ? (keys < own ? keys : own) : keys - (u->kind == LAST_KEY);
}

/* The row as the guess has it: O divided by l. */
static void guess_row(const Ring *g, const Guess *u, const Row *r, State *s)
{
    const int64_t d = g->c->problem.args.shape.d;
    const int apart = u->kind == SUM_OF_BLOCKS || u->kind == MEAN_OF_BLOCKS;
    static _Thread_local State part, parts;
    *s = (State){.m = -INFINITY};
    parts = *s;
    for (int step = 0; step < g->world; step++) {
        const int owner = (r->rank - step + g->world) % g->world;
        const int keys = keys_used(g, u, r, owner), piece = u->piece ? u->piece : keys;
        if (u->kind == LAST_BLOCK)
            *s = (State){.m = -INFINITY};
        for (int n = times_used(g, u, r, owner); n > 0; n--)
            for (int from = 0; from < keys; from += piece) {
                add_keys(g, u, r, owner, from, from + piece < keys ? from + piece : keys, &part);
                join(u, d, s, &part);
                for (int64_t x = 0; x < d && part.l > 0.0; x++)
                    parts.o[x] += part.o[x] / part.l / (u->kind == MEAN_OF_BLOCKS ? g->world : 1);
            }
    }
    for (int64_t x = 0; x < d; x++)
        s->o[x] = apart ? parts.o[x] : s->l > 0.0 ? s->o[x] / s->l : 0.0;
}

/* --- rows of a rank ----------------------------------------------------------------------------*/

static int differs(double a, double b, double by)
{
    return a != b && !(fabs(a - b) <= by * (1.0 + fabs(b)));
}

/* Is this row of the result not (O, lse)? lse: NULL, it is not compared. */
static int row_differs(const Ring *g, const Row *r, const double *o, const double *lse, double by)
{
    const AttnShape *s = &g->c->problem.args.shape;
    const int64_t i = g->position[r->rank][r->token];
    float row[MOST_CHANNELS];
    int differ = lse && differs((double)g->found->lse[r->h * s->Nq + i], *lse, by);
    tensor_read_row(&g->found->O, 0, i, r->h, row);
    for (int64_t x = 0; x < s->d && !differ; x++)
        differ = differs((double)row[x], o[x], by);
    return differ;
}

static Row sample(const Ring *g, int rank, int n)
{
    const int64_t H = g->c->problem.args.shape.H;
    const int last = g->tokens[rank] - 1;
    return (Row){rank, last * (n / HEADS) / (TOKENS - 1), n % HEADS ? H - 1 : 0};
}

static int is_wrong(const Ring *g, int rank)
{
    const AttnShape *s = &g->c->problem.args.shape;
    const Oracle *o = &g->c->oracle;
    for (int n = 0; n < TOKENS * HEADS; n++) {
        const Row r = sample(g, rank, n);
        const int64_t row = r.h * s->Nq + g->position[rank][r.token];
        if (row_differs(g, &r, o->O.value + row * s->d, o->lse.value + row, WRONG))
            return 1;
    }
    return 0;
}

static int explains(const Ring *g, const Guess *u, int rank)
{
    static _Thread_local State s;
    for (int n = 0; n < TOKENS * HEADS; n++) {
        const Row r = sample(g, rank, n);
        double lse;
        guess_row(g, u, &r, &s);
        lse = s.l > 0.0 ? s.m + log(s.l) : -INFINITY;
        if (row_differs(g, &r, s.o, &lse, SAME) &&
            !((u->kind == SUM_OF_BLOCKS || u->kind == MEAN_OF_BLOCKS) &&
              !row_differs(g, &r, s.o, NULL, SAME)))
            return 0;
    }
    return 1;
}

/* How much a guess that explains one rank is worth: who has a wrong rule breaks it in all ranks. */
static int worth(const Ring *g, const Guess *u, int rank)
{
    int ranks = 0;
    if (!explains(g, u, rank))
        return 0;
    for (int r = 0; mistakes[u->kind].of == OF_RANK && r < g->world; r++)
        ranks += explains(g, u, r);
    return ranks ? ranks : g->world;
}

static void try(const Ring *g, int rank, Guess u, int *best, JudgeRun *run)
{
    const int found = *best < g->world ? worth(g, &u, rank) : 0;
    if (found <= *best)
        return;
    *best = found;
    run->code = mistakes[u.kind].code;
    snprintf(run->message, sizeof run->message, mistakes[u.kind].sentence, rank, u.a, u.b);
}

static void try_kind(const Ring *g, int rank, int kind, int *best, JudgeRun *run)
{
    const int of = mistakes[kind].of, world = g->world;
    if (of == OF_RANK)
        for (int piece = 0; piece <= (kind == STALE_O || kind == STALE_L); piece++)
            try(g, rank, (Guess){kind, 0, 0, piece}, best, run);
    else if (of == OF_TWO_BLOCKS)
        for (int n = 0; n < world * world; n++)
            try(g, rank, (Guess){kind, n / world, n % world, 0}, best, run);
    else
        for (int a = of == OF_COUNT; a < world; a++)
            try(g, rank, (Guess){kind, a, world, 0}, best, run);
}

const char *ring_hint_code(int n, const char **sentence)
{
    static char example[160];
    if (n >= KINDS)
        return NULL;
    snprintf(example, sizeof example, mistakes[n].sentence, 2, 1, 3);
    *sentence = example;
    return mistakes[n].code;
}

void ring_hints_find(const JudgeCase *c, int world, const int32_t *tokens, const int32_t *positions,
                     JudgeRun *run)
{
    Ring g = {c, &run->out.args, world, tokens, {positions}};
    int rank = world - 1, best = 0;
    if (world < 2 || world > MOST_WORLD || c->problem.args.shape.d > MOST_CHANNELS)
        return;
    for (int r = 1; r < world; r++)
        g.position[r] = g.position[r - 1] + tokens[r - 1];
    while (rank >= 0 && !is_wrong(&g, rank)) /* the last one's positions are the furthest from 0 */
        rank--;
    for (int kind = 0; rank >= 0 && kind < KINDS; kind++)
        try_kind(&g, rank, kind, &best, run);
}
