/* SPDX-License-Identifier: MIT
 *
 * map_work.c: what a rank computes in a case of the map: pairs by formula, the passes over memory
 * around them, and how evenly the blocks of threads fill the GPU. The same costs as in schedule.c,
 * where a timetable knows its blocks; here all ranks have the same two kinds, an own one and
 * remote blocks.
 *
 * A block is one call, or two halves:
 *
 *     forward     16 bits, from a state: halves of the heads, in two streams    else one call
 *     backward    halves of what has its sums on the way, in one stream or two  one rank: one call
 *
 * Two streams share the places of a GPU. How they do is played through once for each kind of block,
 * and told as factors to the operations, so that a pass of any number of steps can be added up.
 *
 * Interface: map_call_s, map_edge_bytes, map_work_of, map_count_rounds (map_work.h), ring_alone_ms
 * (cost.h).
 */
#include "planner/map_work.h"
#include "tensor.h"

#include <math.h>

/* Of a plan whose blocks are played through. With more the last round is nothing beside the others,
 * and the pairs of all tokens of the largest maps (2^64) would not fit an int64_t. */
#define MOST_TOKENS (INT64_C(1) << 22)

enum { STEPS = 3 }; /* of a pass, after which halves fill a GPU as they always do */

double map_call_s(const MapCase *m, double pairs, double partial_rows, double rounds, double bytes)
{
    const RingMapCase *c = m->c;
    const double per_pair = (m->backward ? 10 : 4) * (double)(c->H * c->d);
    return m->r->call_s +
           rounds * per_pair * (pairs + m->r->masked_keys * partial_rows) /
               m->r->flops[m->backward] +
           bytes / m->r->memory;
}

double map_edge_bytes(const MapCase *m, int last)
{
    const double d = (double)m->c->d, b = (double)dtype_size(m->c->dtype);
    const double q = m->n * (double)m->c->H * d, kv = 2 * m->n * (double)m->c->Hkv * d;
    if (!m->backward)
        return last ? (b - 4) * q : -4 * q;
    return last ? (4 + b) * (q + kv) : 2 * b * q + 4 * kv + (m->queries ? 0 : (b + 4) * q);
}

/* What a call has to do. */
typedef struct Part {
    double pairs, partial_rows, bytes;
} Part;

static double part_s(const MapCase *m, Part p, double rounds)
{
    return map_call_s(m, p.pairs, p.partial_rows, rounds, p.bytes);
}

/* Two halves in two streams. In the end nothing follows that could take idle places: the last half
 * is over when the last place is done. */
static MapWork streams_work(const MapCase *m, MapAt at, const Part half[2])
{
    const MapRounds *rounds = &m->rounds[at.own];
    const Part both = {half[0].pairs + half[1].pairs, half[0].partial_rows + half[1].partial_rows,
                       half[0].bytes + half[1].bytes};
    MapWork w = {.before = 0};
    for (int h = 0; h < 2; h++) {
        w.part[h] = part_s(m, half[h], rounds->part[h]);
        w.even[h] = part_s(m, half[h], rounds->even[h]);
    }
    if (at.last) /* a call_s more, since they are two */
        w.even[1] = part_s(m, both, rounds->both) + m->r->call_s - w.even[0];
    return w;
}

/* Heads of a half, as a share of all: of an odd number the second half has one more, as on a GPU
 * (backend_blocks.cu). */
static double head_share(const MapCase *m, int half)
{
    return (double)((m->c->H + half) / 2) / (double)m->c->H;
}

/* Forward: a call with all of the work, or half of the heads in each stream. Passes over memory are
 * the kernel's own, and its halves share them. */
static MapWork forward_work(const MapCase *m, MapAt at, Part all)
{
    Part half[2];
    if (!m->streams)
        return (MapWork){.part = {part_s(m, all, m->rounds[at.own].part[0])}};
    for (int h = 0; h < 2; h++) {
        const double share = head_share(m, h);
        half[h] = (Part){share * all.pairs, share * all.partial_rows, share * all.bytes};
    }
    return streams_work(m, at, half);
}

/* Pairs of a whole block, and of its first half. */
static MapWork block_work(const MapCase *m, MapAt at, double pairs, double half,
                          double partial_rows)
{
    const double d = (double)m->c->d, b = (double)dtype_size(m->c->dtype);
    const double q = m->n * (double)m->c->H * d, kv = m->n * (double)m->c->Hkv * d;
    const double *rounds = m->rounds[at.own].part;
    const double begin = at.first ? map_edge_bytes(m, 0) : 0,
                 end = at.last ? map_edge_bytes(m, 1) : 0;
    const double each = m->queries ? 16 * kv + (16 + b) * q / 2 : 16 * kv / 2;
    Part part[2] = {{half, partial_rows / 2, each}, {pairs - half, partial_rows / 2, each}};
    MapWork w = {.before = 0};
    if (!m->backward)
        return forward_work(m, at, (Part){pairs, partial_rows, 8 * q + begin + end});
    if (m->G == 1) {
        w.part[0] = map_call_s(m, pairs, partial_rows, rounds[0], 16 * kv + begin + end);
    } else if (m->streams) {
        w = streams_work(m, at, part);
        w.before = begin / m->r->memory;
        w.after = end / m->r->memory;
    } else {
        part[0].bytes += begin;
        part[1].bytes += end;
        for (int h = 0; h < 2; h++)
            w.part[h] = part_s(m, part[h], rounds[h]);
    }
    return w;
}

/* A zigzag shard is a0 b0 | a1 b1, quarters of h tokens, a before b: its first half of keys is seen
 * by more, its first half of queries sees less. Of others, causal zigzag: half of the pairs, always
 * as a whole rectangle, so no row is seen in part. */
MapWork map_work_of(const MapCase *m, MapAt at)
{
    const double h = m->n / 4, triangles = h * (h + 1), squares = (m->queries ? 2 : 4) * h * h;
    const double pairs = m->c->causal ? m->n * m->n / 2 : m->n * m->n;
    if (at.own && m->c->causal)
        return block_work(m, at, m->n * (m->n + 1) / 2, triangles + squares, m->n);
    return block_work(m, at, pairs, pairs / 2, 0);
}

/* A call of rank r: with all of the own block or of a remote block, or with half of it; forward,
 * half of the heads. In seconds of a pair of all heads. */
static RingCall call_of(const MapCase *m, const RingPlan *plan, int64_t heads, int own, int half,
                        int r)
{
    const int64_t n = plan->q[0].tokens, whole = half < 0 || !m->backward;
    const double share = half < 0 || m->backward ? 1 : head_share(m, half);
    const int64_t first = whole || half == 0 ? 0 : n / 2;
    const int64_t tokens = whole ? n : half ? n - n / 2 : n / 2;
    const RingSpan part = {r, first, tokens};
    const RingSpan other = {own ? r : plan->setup.ranks - 1 - r, 0, n};
    const RingSpan q = m->queries ? part : other, k = m->queries ? other : part;
    const RingWork w =
        ring_block_work(plan, q.owner, q.first, q.tokens, k.owner, k.first, k.tokens);
    const double pairs = (double)w.pairs + m->r->masked_keys * (double)w.partial_rows;
    const RingPass pass = m->backward ? RING_BACKWARD : RING_FORWARD;
    return (RingCall){pass, q, k, share < 1 ? (heads + half) / 2 : heads, pairs, share * pairs};
}

/* What a call forward has beside its products, in the seconds of call_of. */
static double beside_s(const MapCase *m, const RingPlan *plan, int half)
{
    const AttnShape *n = &plan->shape;
    const double O = (double)(plan->q[0].tokens * n->H * n->d), pair = 4 * (double)(n->H * n->d);
    return (m->r->call_s + head_share(m, half) * 8 * O / m->r->memory) * m->r->flops[0] / pair;
}

/* Both halves on the places of one GPU, as they fill it in the long run. Forward each half follows
 * the one of the step before, and its passes over memory hold up only the places that are idle when
 * it begins: most of them do not notice, which shows after some steps. Backward the sums' way says
 * when a half may begin, so one step has to do. */
static void share_places(const MapCase *m, const RingPlan *plan, const RingCall half[2],
                         MapRounds *most)
{
    const int places = ring_places(m->r, half[0].pass), steps = m->backward ? 1 : STEPS;
    const double beside[2] = {m->backward ? 0 : beside_s(m, plan, 0),
                              m->backward ? 0 : beside_s(m, plan, 1)};
    double load[RING_MOST_PLACES] = {0}, done[2] = {0}, taken[2] = {0}, before = 0;
    for (int step = 0; step < steps; step++)
        for (int h = 0; h < 2; h++) {
            double sum = 0;
            done[h] = ring_fill(plan, &half[h], m->r, fmax(done[h], load[0]) + beside[h], load);
            for (int p = 0; p < places; p++)
                sum += load[p] / places;
            taken[h] += sum - before;
            before = sum;
            if (step == 0 && h == 1) /* a GPU that was empty, and will be */
                most->both = fmax(most->both, (fmax(done[0], done[1]) - beside[0] - beside[1]) /
                                                  (half[0].seconds + half[1].seconds));
        }
    for (int h = 0; h < 2; h++)
        most->even[h] = fmax(most->even[h], (taken[h] / steps - beside[h]) / half[h].seconds);
}

/* The slower of two ranks, since a ring waits for it: a remote block is seen by all queries in half
 * of its keys, or by half of the queries. Two ranks have all the kinds of blocks that more have. */
static MapRounds rounds_of(const MapCase *m, const RingPlan *plan, int64_t heads, int own)
{
    const int halves = m->streams || (m->backward && plan->setup.ranks > 1);
    MapRounds most = {{1, 1}, {0, 0}, 0};
    for (int r = 0; r < plan->setup.ranks; r++) {
        RingCall call[2];
        for (int half = 0; half <= halves; half++) {
            call[half] = call_of(m, plan, heads, own, halves ? half : -1, r);
            most.part[half] = fmax(most.part[half], ring_rounds(plan, &call[half], m->r));
        }
        if (m->streams)
            share_places(m, plan, call, &most);
    }
    return most;
}

/* A plan of two ranks, or of one, has all blocks that are needed. */
int map_count_rounds(MapCase *m, int ulysses)
{
    const RingMapCase *c = m->c;
    const int ranks = ulysses || m->G == 1 ? 1 : 2;
    const int64_t all_tokens = c->n * (ulysses ? c->ranks : ranks);
    const int64_t n = all_tokens < MOST_TOKENS ? all_tokens : MOST_TOKENS;
    const AttnSegment tokens = {0, n, 0, 0, 1};
    const AttnArgs args = {.shape = {1, c->H, c->Hkv, n, n, c->d},
                           .rule = {-1, c->causal ? 0 : -1},
                           .positions_q = attn_positions(&tokens, 1),
                           .positions_k = attn_positions(&tokens, 1)};
    const RingSetup setup = {.method = RING_METHOD_RING,
                             .layout = c->causal ? RING_ZIGZAG : RING_CONTIGUOUS,
                             .ranks = ranks,
                             .nodes = 1};
    const int64_t all = m->backward ? c->Hkv : c->H, share = all / c->ranks;
    const int64_t heads = !ulysses ? all : share > 1 ? share : 1;
    RingPlan plan;
    char why[256];
    m->rounds[0] = m->rounds[1] = (MapRounds){{1, 1}, {1, 1}, 1};
    if (ring_places(m->r, m->backward ? RING_BACKWARD : RING_FORWARD) == 1)
        return 0;
    if (ring_plan_make(&plan, &args, &setup, why) != 0)
        return -1;
    for (int own = 0; own < 2; own++)
        m->rounds[own] = rounds_of(m, &plan, heads, own);
    ring_plan_free(&plan);
    return 0;
}

double ring_alone_ms(const RingMapCase *c, const RingRates *rates, RingPass pass)
{
    const double b = (double)dtype_size(c->dtype), n = (double)c->n;
    const double q = n * (double)(c->H * c->d), kv = 2 * n * (double)(c->Hkv * c->d);
    RingMapCase one = *c;
    MapCase m = {.c = &one, .r = rates, .backward = pass == RING_BACKWARD, .G = 1, .n = n};
    one.ranks = one.nodes = 1;
    one.causal = 0;
    if (map_count_rounds(&m, 0) != 0)
        return -1;
    return 1e3 * (rates->pass_s + map_call_s(&m, n * n, 0, m.rounds[1].part[0],
                                             m.backward ? (3 * b + 8) * q + b * kv : b * q));
}
