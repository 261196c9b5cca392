/* SPDX-License-Identifier: MIT
 *
 * map_work.c: what a rank computes in a case of the map: pairs by formula, the passes over memory
 * around them, and how evenly the blocks of threads fill the GPU. The same costs as in schedule.c,
 * where a timetable knows its blocks; here all ranks have the same two kinds, an own one and
 * visitors.
 *
 * Interface: map_call_s, map_edge_bytes, map_work_of, map_count_rounds (map_work.h), ring_alone_ms
 * (cost.h).
 */
#include "map_work.h"
#include "tensor.h"

#include <math.h>

/* Of a plan whose blocks are played through. With more the last round is nothing beside the others,
 * and the pairs of all tokens of the largest maps (2^64) would not fit an int64_t. */
#define MOST_TOKENS (INT64_C(1) << 22)

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

/* Two halves in two lanes. In the end nothing follows that could take idle places: the last half is
 * over when the last place is done. */
static MapWork lanes_work(const MapCase *m, MapAt at, const double pairs[2], double partial_rows,
                          double each)
{
    const MapRounds *rounds = &m->rounds[at.own];
    MapWork w = {.before = at.first ? map_edge_bytes(m, 0) / m->r->memory : 0,
                 .after = at.last ? map_edge_bytes(m, 1) / m->r->memory : 0};
    for (int half = 0; half < 2; half++) {
        w.part[half] = map_call_s(m, pairs[half], partial_rows / 2, rounds->part[half], each);
        w.even[half] = map_call_s(m, pairs[half], partial_rows / 2, rounds->even[half], each);
    }
    if (at.last)
        w.even[1] = map_call_s(m, pairs[0] + pairs[1], partial_rows, rounds->both, 2 * each) +
                    m->r->call_s - w.even[0];
    return w;
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
    MapWork w = {.before = 0};
    if (m->lanes)
        return lanes_work(m, at, (double[]){half, pairs - half}, partial_rows, each);
    if (!m->backward || m->G == 1) {
        const double all = m->backward ? 16 * kv : 8 * q;
        w.part[0] = map_call_s(m, pairs, partial_rows, rounds[0], all + begin + end);
    } else {
        w.part[0] = map_call_s(m, half, partial_rows / 2, rounds[0], each + begin);
        w.part[1] = map_call_s(m, pairs - half, partial_rows / 2, rounds[1], each + end);
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

/* A call of rank r: with all of the own block or of a visitor, or with half of it. */
static RingCall call_of(const MapCase *m, const RingPlan *plan, int64_t heads, int own, int half,
                        int r)
{
    const int64_t n = plan->q[0].tokens, whole = half < 0;
    const int64_t first = half == 1 ? n / 2 : 0, tokens = whole ? n : half ? n - n / 2 : n / 2;
    const RingSpan part = {r, first, tokens};
    const RingSpan other = {own ? r : plan->setup.ranks - 1 - r, 0, n};
    const RingSpan q = m->queries ? part : other, k = m->queries ? other : part;
    const RingWork w =
        ring_block_work(plan, q.owner, q.first, q.tokens, k.owner, k.first, k.tokens);
    const double pairs = (double)w.pairs + m->r->masked_keys * (double)w.partial_rows;
    return (RingCall){m->backward ? RING_BACKWARD : RING_FORWARD, q, k, heads, pairs, pairs};
}

/* Both halves on the places of one GPU, in units of a pair. */
static void share_places(const MapCase *m, const RingPlan *plan, const RingCall half[2],
                         MapRounds *most)
{
    const int places = ring_places(m->r, RING_BACKWARD);
    double load[RING_MOST_PLACES] = {0}, last = 0, before = 0;
    for (int h = 0; h < 2; h++) {
        double sum = 0;
        last = fmax(last, ring_fill(plan, &half[h], m->r, 0, load));
        for (int p = 0; p < places; p++)
            sum += load[p];
        most->even[h] = fmax(most->even[h], (sum - before) / places / half[h].pairs);
        before = sum;
    }
    most->both = fmax(most->both, last / (half[0].pairs + half[1].pairs));
}

/* The slower of two ranks, since a ring waits for it: a visitor is seen by all queries in half of
 * its keys, or by half of the queries. Two ranks have all the kinds of blocks that more have. */
static MapRounds rounds_of(const MapCase *m, const RingPlan *plan, int64_t heads, int own)
{
    const int halves = m->backward && plan->setup.ranks > 1;
    MapRounds most = {{1, 1}, {1, 1}, 1};
    for (int r = 0; r < plan->setup.ranks; r++) {
        RingCall call[2];
        for (int half = 0; half <= halves; half++) {
            call[half] = call_of(m, plan, heads, own, halves ? half : -1, r);
            most.part[half] = fmax(most.part[half], ring_rounds(plan, &call[half], m->r));
        }
        if (m->lanes)
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
                           .positions_q = {&tokens, 1},
                           .positions_k = {&tokens, 1}};
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
