/* SPDX-License-Identifier: MIT
 *
 * map.c: times of a pass on any number of GPUs, for ring_map.
 *
 * Nobody has to play a pass of thousands of ranks through. In a ring all of them compute as many
 * pairs at each step (zigzag, or no mask; in two calls of a kernel or four), and a further rank is
 * one more step of the same kind. So from a few ranks on, the times lie on a line: two short passes
 * are played, and the line goes through them. (It takes a few steps to settle; test_ring_planner.c
 * compares with passes of all ranks.)
 *
 *     ms   |                      . . *     4096 GPUs: on the line
 *          |            . . . . .
 *          |      x . .                     x: played; 2 and 3 nodes, or 7 and 8 ranks
 *          |  x
 *          +----------------------------
 *
 * A double ring grows by whole nodes. A single ring grows by ranks, and where it goes through
 * several nodes their slow link sets the pace of all, since whoever waits for it makes the next one
 * wait: so each of its ranks is a node of its own here.
 *
 * Where all send to all, a rank's messages stand in a queue that gets longer with the ranks, and
 * with ulysses its share of the heads gets smaller: no line. Such passes are played with all their
 * ranks, up to MOST_PLAYED. (More than that nobody would want: with allgather each GPU holds the
 * keys of all, with ulysses it needs a head.)
 *
 * Interface: ring_map_line, ring_line_ms, ring_alone_ms (cost.h).
 */
#include "attn_pairs.h"
#include "planner/schedule.h"
#include "tensor.h"

#include <math.h>

enum { MOST_PLAYED = 32 };

/* A plan of equal blocks; `tokens` has to live as long as it does. 0, or -1. */
static int make_plan(RingPlan *plan, AttnSegment *tokens, const RingMapCase *c, int ranks,
                     int nodes)
{
    *tokens = (AttnSegment){0, c->n * ranks, 0, 0, 1};
    const AttnArgs args = {.shape = {1, c->H, c->Hkv, tokens->length, tokens->length, c->d},
                           .rule = {-1, c->causal ? 0 : -1},
                           .Q = {.dtype = c->dtype},
                           .dO = {.data = tokens}, /* a backward pass may be asked for */
                           .positions_q = attn_positions(tokens, 1),
                           .positions_k = attn_positions(tokens, 1)};
    const RingSetup setup = {.method = c->method,
                             .layout = c->causal ? RING_ZIGZAG : RING_CONTIGUOUS,
                             .ranks = ranks,
                             .nodes = nodes};
    char why[256];
    return ring_plan_make(plan, &args, &setup, why);
}

static double play_ms(const RingMapCase *c, int ranks, int nodes, const RingRates *rates,
                      RingPass pass)
{
    AttnSegment tokens;
    RingSchedule s;
    RingPlan plan;
    double seconds = -1;
    if (make_plan(&plan, &tokens, c, ranks, nodes) != 0)
        return -1;
    if (ring_schedule_make(&s, &plan, pass) == 0) {
        seconds = ring_schedule_run(&s, rates);
        ring_schedule_free(&s);
    }
    ring_plan_free(&plan);
    return seconds < 0 ? -1 : 1e3 * seconds;
}

int ring_map_line(RingLine *line, const RingMapCase *c, const RingRates *rates, RingPass pass)
{
    const RingMethod method = ring_method_on(c->method, (int)c->ranks, (int)c->nodes);
    const int all_to_all = method == RING_METHOD_ALLGATHER || method == RING_METHOD_ULYSSES;
    const int one_ring = method == RING_METHOD_RING || method == RING_METHOD_BURST;
    const int size = one_ring ? 1 : (int)(c->ranks / c->nodes), few = one_ring ? 8 : 3;
    if (all_to_all || c->ranks < (few - 1) * size) {
        const int ranks = c->ranks <= MOST_PLAYED ? (int)c->ranks : 0;
        const int nodes = one_ring && c->nodes > 1 ? ranks : (int)c->nodes;
        *line = (RingLine){ranks, ranks ? play_ms(c, ranks, nodes, rates, pass) : -1, 0};
        return line->ms < 0 ? -1 : 0;
    }
    const int outer = c->nodes > 1; /* links between nodes */
    const double less = play_ms(c, (few - 1) * size, outer ? few - 1 : 1, rates, pass);
    const double more = play_ms(c, few * size, outer ? few : 1, rates, pass);
    *line = (RingLine){few * size, more, (more - less) / size};
    return less < 0 || more < 0 ? -1 : 0;
}

double ring_line_ms(const RingLine *line, int64_t ranks)
{
    return line->ms + (double)(ranks - line->ranks) * line->rank_ms;
}

/* One call: no timetable, no state, no sums of others. */
double ring_alone_ms(const RingMapCase *c, const RingRates *rates, RingPass pass)
{
    const int backward = pass == RING_BACKWARD;
    const double b = (double)dtype_size(c->dtype), n = (double)c->n;
    const double q = n * (double)(c->H * c->d), kv = 2 * n * (double)(c->Hkv * c->d);
    const RingMapCase one = {RING_METHOD_RING, 1, 1, c->n, c->H, c->Hkv, c->d, 0, c->dtype};
    const RingSpan all = {0, 0, c->n};
    const RingCall call = {.pass = pass,
                           .q = all,
                           .k = all,
                           .heads = backward ? c->Hkv : c->H,
                           .pairs = n * n,
                           .seconds = (backward ? 10 : 4) * q * n / rates->flops[backward]};
    AttnSegment tokens;
    RingPlan plan;
    if (make_plan(&plan, &tokens, &one, 1, 1) != 0)
        return -1;
    const double seconds = call.seconds * ring_rounds(&plan, &call, rates) + rates->pass_s +
                           rates->call_s +
                           (backward ? (3 * b + 8) * q + b * kv : b * q) / rates->memory;
    ring_plan_free(&plan);
    return 1e3 * seconds;
}
