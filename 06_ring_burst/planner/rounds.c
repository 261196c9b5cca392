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
 * So halves of a short remote block are slow although each of their products is as fast as ever:
 * half of 2048 keys are 8 heads x 8 tiles = 64 blocks, and a zigzag shard's halves are two calls of
 * 32 blocks each (shard.c).
 *
 * Blocks that see less are shorter. They start in the kernel's order, each at the place that is
 * free first; that is played through here, one number a place: when it will be free. A block's
 * length is counted in pairs of a query and a key. What a block costs beside its pairs (it loads
 * its tokens and stores its sums) is counted in the same unit.
 *
 * Two kernels in two queues share the places: the blocks of the second take what those of the first
 * leave idle. ring and ring-double compute the halves of a remote block's gradients like that:
 *
 *     64 blocks, then 64 blocks      one after the other 2 rounds, in two queues 1
 *
 * Forward a remote block's attention is two kernels in any case, half of the heads in each queue,
 * so that a step's last blocks and the next step's first ones run side by side.
 *
 * So the numbers belong to a GPU, not to a call: the next call finds them as this one leaves them.
 *
 * Interface: ring_places, ring_fill, ring_rounds, ring_two_streams, ring_head_streams (cost.h).
 */
#include "planner/cost.h"

#include <math.h>
#include <stdlib.h>

#define TOKENS  128 /* of a block: queries forward, keys backward; stages 03 and 04, d <= 128 */
#define MANY    32  /* rounds, from which on the last one weighs little */
#define SECTION (INT64_C(32) << 20)

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

/* load is a heap: no place is free before load[0]. The first place gets a block and sinks.
 * Returns the block's end. */
static double give(double *load, int places, double seconds)
{
    const double sum = load[0] + seconds;
    int at = 0;
    for (int child = 1; child < places; child = 2 * at + 1) {
        child += child + 1 < places && load[child + 1] < load[child];
        if (load[child] >= sum)
            break;
        load[at] = load[child];
        at = child;
    }
    load[at] = sum;
    return sum;
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

/* Gives a call's blocks to the places, `second` seconds for each pair: of each section, tile after
 * tile, a block of each head. Forward the last queries come first, backward the first keys: in an
 * order of positions these are the longest under a causal mask. Returns the end of the last. */
static double give_blocks(const RingPlan *plan, const RingCall *call, const double *lengths,
                          int64_t count, double second, double *load, int places)
{
    const int forward = call->pass == RING_FORWARD;
    const int64_t section = section_heads(plan, call->pass, call->q, count, call->heads, places);
    double last = 0;
    for (int64_t head = 0; head < call->heads; head += section)
        for (int64_t n = 0; n < count; n++)
            for (int64_t h = head; h < head + section && h < call->heads; h++)
                last =
                    fmax(last, give(load, places, second * lengths[forward ? count - 1 - n : n]));
    return last;
}

/* As if blocks could be cut at will, so that all places end together; but a place that is busy for
 * longer stays so. */
static double give_evenly(double *load, int places, double seconds)
{
    double sum = 0;
    for (int p = 0; p < places; p++)
        sum += load[p];
    for (int p = 0; p < places; p++)
        load[p] = fmax(load[p], sum / places + seconds);
    return sum / places + seconds;
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

int ring_places(const RingRates *rates, RingPass pass)
{
    const double places = rates->places[pass == RING_BACKWARD];
    return places < 1 ? 1 : places > RING_MOST_PLACES ? RING_MOST_PLACES : (int)places;
}

static int earlier(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A call needs a place for each of its blocks. It takes those that are idle at `start`, the ones
 * that became idle last. The others keep their times: a call of the other stream, which need not
 * wait until `start`, may still begin there earlier. Returns how many places are left so, the first
 * ones of load. */
static int take_places(double *load, int places, double start, int64_t blocks)
{
    int idle = 0;
    qsort(load, (size_t)places, sizeof *load, earlier);
    while (idle < places && load[idle] <= start)
        idle++;
    const int left = idle > blocks ? idle - (int)blocks : 0;
    for (int p = left; p < idle; p++)
        load[p] = start;
    return left;
}

double ring_fill(const RingPlan *plan, const RingCall *call, const RingRates *rates, double start,
                 double *load)
{
    const int forward = call->pass == RING_FORWARD, P = ring_places(rates, call->pass);
    const RingSpan own = forward ? call->q : call->k, other = forward ? call->k : call->q;
    const int64_t count = count_blocks(plan, forward ? plan->q : plan->k, own);
    const double cost = block_cost(plan, call->pass, rates, P);
    const int blocks = P > 1 && count > 0 && call->pairs > 0;
    const int few = count * call->heads <= (int64_t)MANY * P;
    double *lengths = blocks && few ? malloc((size_t)count * sizeof *lengths) : NULL;
    const int left = take_places(load, P, start, lengths ? count * call->heads : P);
    double last;
    if (!lengths) { /* for want of memory, too: a prediction without rounds is better than none */
        const double each = blocks ? 1 + cost * (double)count / call->pairs : 1;
        last = give_evenly(load, P, each * call->seconds);
    } else {
        measure_blocks(plan, rates, call->pass, own, other, lengths);
        for (int64_t n = 0; n < count; n++)
            lengths[n] += lengths[n] > 0 ? cost : 0;
        last = give_blocks(plan, call, lengths, count,
                           call->seconds * P / (call->pairs * (double)call->heads), load + left,
                           P - left);
        free(lengths);
    }
    return fmax(last, start + call->seconds);
}

double ring_rounds(const RingPlan *plan, const RingCall *call, const RingRates *rates)
{
    double load[RING_MOST_PLACES] = {0};
    RingCall unit = *call;
    unit.seconds = 1;
    return ring_fill(plan, &unit, rates, 0, load);
}

int ring_two_streams(RingMethod method, RingPass pass, AttnDtype dtype, const RingRates *rates)
{
    return (method == RING_METHOD_RING || method == RING_METHOD_RING_DOUBLE ||
            method == RING_METHOD_ALLGATHER) &&
           pass == RING_BACKWARD && dtype != ATTN_F32 && ring_places(rates, pass) > 1;
}

int ring_head_streams(RingMethod method, int ranks, RingPass pass, AttnDtype dtype,
                      const RingRates *rates)
{
    return method != RING_METHOD_ULYSSES && ranks > 1 && pass == RING_FORWARD &&
           dtype != ATTN_F32 && ring_places(rates, pass) > 1;
}
