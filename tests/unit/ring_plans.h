/* SPDX-License-Identifier: MIT
 *
 * ring_plans.h: whole attentions and their plans, for the tests of layouts and hops.
 *
 * Interface:
 * - Whole, whole_new: position maps before dealing, lower-right aligned. lengths: of the sequences
 *   that all tests walk through.
 * - plan_new, plan_delete: their plan for a layout and a number of ranks.
 */
#ifndef RING_PLANS_H
#define RING_PLANS_H

#include "oracle_case.h"

#include "ring_burst.h"

#define MOST_TOKENS   220
#define MOST_SEGMENTS 6

typedef struct Whole { /* a position map of a whole attention, before dealing */
    AttnSegment q[MOST_SEGMENTS], k[MOST_SEGMENTS];
    AttnArgs args;
} Whole;

static inline int64_t add_segments(AttnSegment *to, int count, const int64_t *lengths,
                                   int64_t position, int64_t stride)
{
    int64_t first = 0;
    for (int s = 0; s < count; s++) {
        to[s] = (AttnSegment){first, lengths[s], 10 + s, position, stride};
        first += lengths[s];
    }
    return first;
}

static inline Whole *whole_new(int sequences, const int64_t *nq, const int64_t *nk, int64_t left,
                               int64_t right)
{
    Whole *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->args.shape = (AttnShape){1, 8, 4, 0, 0, 4};
    w->args.shape.Nq = add_segments(w->q, sequences, nq, 0, 1);
    w->args.shape.Nk = add_segments(w->k, sequences, nk, 0, 1);
    for (int s = 0; s < sequences; s++) /* lower-right */
        w->q[s].position = nk[s] - nq[s];
    w->args.positions_q = attn_positions(w->q, sequences);
    w->args.positions_k = attn_positions(w->k, sequences);
    w->args.rule = (AttnRule){left, right};
    return w;
}

static inline RingPlan *plan_new(const Whole *w, RingLayout layout, int ranks)
{
    RingPlan *plan = malloc(sizeof *plan);
    const RingSetup setup = {
        .method = RING_METHOD_RING, .layout = layout, .ranks = ranks, .nodes = 1};
    char why[256] = "";
    assert_non_null(plan);
    if (ring_plan_make(plan, &w->args, &setup, why))
        fail_msg("%s", why);
    return plan;
}

static inline void plan_delete(RingPlan *plan)
{
    ring_plan_free(plan);
    free(plan);
}

/* The cases that all tests walk through: lengths of the sequences of queries and of keys. */
typedef struct Lengths {
    int sequences;
    int64_t nq[MOST_SEGMENTS], nk[MOST_SEGMENTS];
} Lengths;

static const Lengths lengths[] = {
    {1, {32}, {32}},
    {1, {31}, {31}}, /* ragged */
    {1, {1}, {1}},
    {1, {3}, {3}},   /* fewer than ranks */
    {1, {13}, {50}}, /* cross attention */
    {1, {50}, {7}},
    {3, {16, 0, 33}, {16, 0, 33}},
    {4, {5, 1, 2, 40}, {9, 0, 30, 3}},
    {2, {0, 21}, {17, 21}},
};

#define LENGTHS_COUNT ((int)(sizeof lengths / sizeof *lengths))

#endif
