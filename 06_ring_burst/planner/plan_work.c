/* SPDX-License-Identifier: MIT
 *
 * plan_work.c: how many pairs of two blocks are visible, and how evenly a plan shares them out.
 *
 * A shard is a few runs of tokens. Most pairs of runs see each other completely or not at all, so
 * only the others, those with a diagonal through them, are counted query by query. Their rows are
 * counted too: a kernel computes whole tiles, so each such row costs about half a tile in vain. In
 * a zigzag layout only a rank's own block has such rows; with stripes every block has.
 *
 *     two runs of positions      q 8..15 and k 0..3: all pairs, 8 * 4
 *                                q 0..3 and k 8..15: none
 *                                q 8..15 and k 8..15: the diagonal goes through; 36, counted
 *
 * Interface: ring_block_work, ring_queries_travel, ring_pair_work, ring_all_pairs,
 * ring_hopper_takes, ring_plan_efficiency, ring_model_case (cost.h).
 */
#include "attention/forward/cuda/key_rule.h"
#include "attn_pairs.h"
#include "harness/models/model.h"
#include "planner/cost.h"
#include "planner/shard.h"

#include <stdlib.h>

/* The smallest and the largest position of a run. */
static AttnRange range_of(const AttnSegment *run)
{
    return attn_range(attn_positions(run, 1), 0, run->length);
}

/* 1 + 2 + ... + x */
static int64_t triangle(int64_t x)
{
    return x > 0 ? x * (x + 1) / 2 : 0;
}

/* The sum over positions p of a run of how many of `keys` keys, counted from `first`, lie before
 * p + reach + 1: it grows by one with every query, from none to all. */
static int64_t keys_up_to(const AttnSegment *q, int64_t reach, int64_t first, int64_t keys)
{
    const int64_t end = q->position + q->length + reach - first, begin = end - q->length;
    return triangle(end) - triangle(begin) - triangle(end - keys) + triangle(begin - keys);
}

/* Of runs without gaps, and with a rule that leaves something to see: what is seen up to the right
 * side, less what lies before the left one. No side needs to reach further than the runs do. */
static int64_t count_gapless(AttnRule rule, const AttnSegment *q, const AttnSegment *k)
{
    const int64_t apart = llabs(q->position - k->position), far = apart + q->length + k->length;
    const int64_t right = rule.right < 0 || rule.right > far ? far : rule.right;
    const int64_t left = rule.left < 0 || rule.left > far ? far : rule.left;
    return keys_up_to(q, right, k->position, k->length) -
           keys_up_to(q, -left - 1, k->position, k->length);
}

/* Pairs of two runs by position, and how much they see of each other. Position rule only; the full
 * mask comes after it. */
static int64_t count_runs(AttnRule rule, const AttnSegment *q, const AttnSegment *k, AttnTile *tile)
{
    AttnArgs args = {.shape = {1, 1, 1, q->length, k->length, 1}, .rule = rule};
    int64_t pairs;
    *tile = attn_tile_class(rule, range_of(q), range_of(k));
    if (*tile == ATTN_TILE_SKIP)
        return 0;
    if (*tile == ATTN_TILE_CLEAN)
        return q->length * k->length;
    args.positions_q = attn_positions(q, 1);
    args.positions_k = attn_positions(k, 1);
    pairs =
        q->stride == 1 && k->stride == 1 ? count_gapless(rule, q, k) : model_visible_pairs(&args);
    if (pairs == 0)
        *tile = ATTN_TILE_SKIP;
    return pairs;
}

/* Visible pairs of two runs that the full mask leaves: one by one. */
static int64_t count_masked(const RingPlan *plan, const RingPiece *q, const AttnSegment *q_run,
                            const RingPiece *k, const AttnSegment *k_run)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < q_run->length; i++) {
        const int64_t row = q->global + i * q->stride;
        const uint8_t *mask = plan->mask + row * plan->shape.Nk;
        const AttnPosition at = {q_run->sequence, q_run->position + i * q_run->stride};
        for (int64_t j = 0; j < k_run->length; j++) {
            const AttnPosition key = {k_run->sequence, k_run->position + j * k_run->stride};
            pairs += !mask[k->global + j * k->stride] && attn_visible(plan->rule, at, key);
        }
    }
    return pairs;
}

RingWork ring_block_work(const RingPlan *plan, int q_rank, int64_t q_first, int64_t q_tokens,
                         int k_rank, int64_t k_first, int64_t k_tokens)
{
    const RingShard *q = &plan->q[q_rank], *k = &plan->k[k_rank];
    RingWork sum = {0, 0, ATTN_TILE_SKIP};
    AttnSegment q_run, k_run;
    RingPiece q_piece, k_piece;
    for (int64_t a = 0; a < q->count; a++) {
        if (!ring_run_cut(q, a, q_first, q_tokens, &q_piece, &q_run))
            continue;
        q_run.first = 0;
        for (int64_t b = 0; b < k->count; b++) {
            AttnTile tile;
            int64_t pairs;
            if (q->segments[a].sequence != k->segments[b].sequence ||
                !ring_run_cut(k, b, k_first, k_tokens, &k_piece, &k_run))
                continue;
            k_run.first = 0;
            pairs = count_runs(plan->rule, &q_run, &k_run, &tile);
            if (plan->mask && pairs) {
                pairs = count_masked(plan, &q_piece, &q_run, &k_piece, &k_run);
                tile = ATTN_TILE_MASKED;
            }
            sum.pairs += pairs;
            sum.partial_rows += tile == ATTN_TILE_MASKED ? q_run.length : 0;
        }
    }
    if (sum.pairs > 0)
        sum.tile = sum.pairs == q_tokens * k_tokens ? ATTN_TILE_CLEAN : ATTN_TILE_MASKED;
    return sum;
}

int ring_queries_travel(const RingPlan *plan, RingPass pass)
{
    const RingSetup *setup = &plan->setup;
    const RingMethod method = ring_method_on(setup->method, setup->ranks, setup->nodes);
    return pass == RING_BACKWARD && setup->ranks > 1 &&
           (method == RING_METHOD_BURST || method == RING_METHOD_BURST_DOUBLE);
}

/* All queries of one rank against all keys of another: n^2 pairs without a mask. */
RingWork ring_pair_work(const RingPlan *plan, int q_rank, int k_rank)
{
    return ring_block_work(plan, q_rank, 0, plan->q[q_rank].tokens, k_rank, 0,
                           plan->k[k_rank].tokens);
}

double ring_all_pairs(const RingPlan *plan)
{
    double pairs = 0;
    for (int q = 0; q < plan->setup.ranks; q++)
        for (int k = 0; k < plan->setup.ranks; k++)
            pairs += (double)ring_pair_work(plan, q, k).pairs;
    return pairs;
}

/* As the kernel is told of them (pair.c). */
static int span_shard(RingShard *cut, const RingPlan *plan, const RingShard *shards, RingSpan span)
{
    const int all = span.owner == RING_EVERYBODY;
    return ring_shard_cut(cut, all ? shards : &shards[span.owner], all ? plan->setup.ranks : 1,
                          span.first, span.tokens);
}

int ring_hopper_takes(const RingPlan *plan, RingSpan q, RingSpan k)
{
    RingShard of_q, of_k;
    AttnArgs args = {.shape = {1, 1, 1, q.tokens, k.tokens, 1}, .rule = plan->rule};
    KeyRule rule;
    const int made = span_shard(&of_q, plan, plan->q, q) + span_shard(&of_k, plan, plan->k, k);
    args.positions_q = attn_positions(of_q.segments, of_q.count);
    args.positions_k = attn_positions(of_k.segments, of_k.count);
    const int takes = made == 0 && !plan->mask && plan->softcap == 0.0f && plan->shape.d <= 256 &&
                      make_key_rule(&rule, &args);
    ring_shard_free(&of_q);
    ring_shard_free(&of_k);
    return takes;
}

/* The balance of lesson 06.4, for any plan: what all ranks compute together, divided by G times
 * what the slowest computes at each step. For contiguous shards and a causal mask it comes out as
 * (G n + 1) / (n + 1 + 2 (G-1) n). */
double ring_plan_efficiency(const RingPlan *plan)
{
    const int G = plan->setup.ranks;
    double path = 0;
    for (int t = 0; t < G; t++) {
        double slowest = 0;
        for (int r = 0; r < G; r++) {
            const double pairs = (double)ring_pair_work(plan, r, (r - t + G) % G).pairs;
            slowest = pairs > slowest ? pairs : slowest;
        }
        path += slowest;
    }
    return path > 0 ? ring_all_pairs(plan) / (path * G) : 1;
}

/* The formulas want numbers of tokens and nothing else of a plan: bytes do not depend on masks,
 * except by the hops. */
RingModelCase ring_model_case(const RingPlan *plan)
{
    return (RingModelCase){.method = plan->setup.method,
                           .ranks = plan->setup.ranks,
                           .nodes = plan->setup.nodes,
                           .hops_up = plan->hops_up,
                           .hops_down = plan->hops_down,
                           .shape = plan->shape,
                           .dtype = plan->dtype,
                           .partials = plan->setup.partials,
                           .nq = plan->nq,
                           .nk = plan->nk};
}
