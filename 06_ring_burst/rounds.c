/* SPDX-License-Identifier: MIT
 *
 * rounds.c: a GPU is many small computers, and a kernel is done when the last of them is.
 *
 * A block kernel is launched as blocks of threads: one for each head and TOKENS queries (forward),
 * or for each kv head and TOKENS keys (backward, all query heads of a group one after another). A
 * GPU has places for so many of them at a time; the others wait for a place. Operations over the
 * rate of the whole GPU are the right time only where there is work for all places until the end:
 *
 *     64 equal blocks on 132 places      1 round, 68 places idle      factor 132 / 64 = 2.06
 *     128                                1 round                      1.03
 *     133                                2 rounds, the second for 1   1.98
 *     2000                               16 rounds                    1.06
 *
 * So halves of a short visitor are slow although each of their products is as fast as ever: half of
 * 2048 keys are 8 heads x 8 tiles = 64 blocks.
 *
 * Blocks that see less are shorter. They start in the kernel's order, each at the place that is
 * free first; that is played through here, one number a place: when it will be free. The unit of
 * time is a pair of a query and a key, and what a block costs beside its pairs (it loads its
 * tokens, and stores its sums) is told in the same unit.
 *
 * Interface: ring_rounds (cost.h).
 */
#include "cost.h"

#include <stdlib.h>

#define TOKENS     128 /* of a block: queries forward, keys backward; stages 03 and 04, d <= 128 */
#define MANY       32  /* rounds, from which on the last one weighs little */
#define MOST_PLACE 1024
#define SECTION    (INT64_C(32) << 20)

/* What one block computes: all that its tokens meet on the other side. A diagonal cuts as many rows
 * of a block of keys as it has keys, and not the whole run of queries that goes through it. */
static double block_pairs(const RingPlan *plan, const RingRates *rates, RingPass pass, RingSpan own,
                          RingSpan other)
{
    const int all = other.owner == RING_EVERYBODY, G = plan->setup.ranks;
    double pairs = 0;
    for (int o = all ? 0 : other.owner; o < (all ? G : other.owner + 1); o++) {
        const RingShard *shard = pass == RING_FORWARD ? &plan->k[o] : &plan->q[o];
        const int64_t first = all ? 0 : other.first, tokens = all ? shard->tokens : other.tokens;
        const RingWork w =
            pass == RING_FORWARD
                ? ring_block_work(plan, own.owner, own.first, own.tokens, o, first, tokens)
                : ring_block_work(plan, o, first, tokens, own.owner, own.first, own.tokens);
        const int64_t cut = w.partial_rows < own.tokens ? w.partial_rows : own.tokens;
        pairs += (double)w.pairs + rates->masked_keys * (double)cut;
    }
    return pairs;
}

/* load is a heap: no place is free before load[0]. The first place gets `pairs` more and sinks. */
static void give(double *load, int places, double pairs)
{
    const double sum = load[0] + pairs;
    int at = 0;
    for (int child = 1; child < places; child = 2 * at + 1) {
        child += child + 1 < places && load[child + 1] < load[child];
        if (load[child] >= sum)
            break;
        load[at] = load[child];
        at = child;
    }
    load[at] = sum;
}

/* Heads whose blocks start together: all of them forward; backward as many as fit SECTION (stage 04
 * keeps their Q, dO and dQ in the cache), but enough to have a block for each place. */
static int64_t section_heads(const RingPlan *plan, RingPass pass, RingSpan q, int64_t blocks,
                             int64_t heads, int places)
{
    const AttnShape *n = &plan->shape;
    const int64_t queries = q.owner == RING_EVERYBODY ? n->Nq : q.tokens;
    const int64_t bytes = n->H / n->Hkv * queries * n->d * 8,
                  least = (places + blocks - 1) / blocks;
    const int64_t fit = bytes > 0 && SECTION / bytes > least ? SECTION / bytes : least;
    const int64_t sections = pass == RING_BACKWARD && fit < heads ? heads / fit : 1;
    return (heads + sections - 1) / sections;
}

/* When the last place is done, in pairs: of each section, tile after tile, a block of each head.
 * Forward the last queries come first, backward the first keys: in an order of positions these are
 * the longest under a causal mask. */
static double last_done(const RingPlan *plan, RingPass pass, RingSpan q, const double *lengths,
                        int64_t count, int64_t heads, int places)
{
    const int64_t section = section_heads(plan, pass, q, count, heads, places);
    double load[MOST_PLACE] = {0}, last = 0;
    for (int64_t head = 0; head < heads; head += section)
        for (int64_t n = 0; n < count; n++)
            for (int64_t h = head; h < head + section && h < heads; h++)
                give(load, places, lengths[pass == RING_FORWARD ? count - 1 - n : n]);
    for (int p = 0; p < places; p++)
        last = load[p] > last ? load[p] : last;
    return last;
}

/* Blocks of so many tokens. */
static int64_t blocks_of(int64_t tokens)
{
    return (tokens + TOKENS - 1) / TOKENS;
}

/* Of a span; everybody's tokens are cut at the ends of shards, too. */
static int64_t count_blocks(const RingPlan *plan, const RingShard *shards, RingSpan own)
{
    int64_t count = 0;
    if (own.owner != RING_EVERYBODY)
        return blocks_of(own.tokens);
    for (int o = 0; o < plan->setup.ranks; o++)
        count += blocks_of(shards[o].tokens);
    return count;
}

/* What each block of a span computes. */
static void measure_blocks(const RingPlan *plan, const RingRates *rates, RingPass pass,
                           RingSpan own, RingSpan other, double *lengths)
{
    const RingShard *shards = pass == RING_FORWARD ? plan->q : plan->k;
    const int all = own.owner == RING_EVERYBODY;
    for (int o = all ? 0 : own.owner; o < (all ? plan->setup.ranks : own.owner + 1); o++) {
        const int64_t end = all ? shards[o].tokens : own.first + own.tokens;
        for (int64_t at = all ? 0 : own.first; at < end; at += TOKENS)
            *lengths++ = block_pairs(
                plan, rates, pass, (RingSpan){o, at, end - at < TOKENS ? end - at : TOKENS}, other);
    }
}

/* A block's start and end, in pairs that a place could compute meanwhile. */
static double block_cost(const RingPlan *plan, RingPass pass, const RingRates *rates, int places)
{
    const AttnShape *n = &plan->shape;
    const int backward = pass == RING_BACKWARD;
    const double heads = backward ? (double)(n->H / n->Hkv) : 1;
    return rates->block_s * rates->flops[backward] / places /
           ((backward ? 10.0 : 4.0) * (double)n->d * heads);
}

double ring_rounds(const RingPlan *plan, RingPass pass, RingSpan q, RingSpan k, int64_t heads,
                   double pairs, const RingRates *rates)
{
    const RingSpan own = pass == RING_FORWARD ? q : k, other = pass == RING_FORWARD ? k : q;
    const double places = rates->places[pass == RING_BACKWARD];
    const int P = places < 1 ? 1 : places > MOST_PLACE ? MOST_PLACE : (int)places;
    const int64_t count = count_blocks(plan, pass == RING_FORWARD ? plan->q : plan->k, own);
    const double cost = block_cost(plan, pass, rates, P), even = pairs * (double)heads / P;
    double factor = 1 + cost * (double)count / pairs;
    double *lengths;
    if (P == 1 || count == 0 || pairs <= 0)
        return 1;
    if (count * heads > (int64_t)MANY * P)
        return factor;
    lengths = malloc((size_t)count * sizeof *lengths);
    if (!lengths) /* a prediction without this is better than none */
        return factor;
    measure_blocks(plan, rates, pass, own, other, lengths);
    for (int64_t n = 0; n < count; n++)
        lengths[n] += lengths[n] > 0 ? cost : 0;
    factor = last_done(plan, pass, q, lengths, count, heads, P) / even;
    free(lengths);
    return factor > 1 ? factor : 1;
}
