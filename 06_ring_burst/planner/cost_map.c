/* SPDX-License-Identifier: MIT
 *
 * cost_map.c: times of a pass for equal blocks on any number of GPUs. All ranks do the same at each
 * step (zigzag, or no mask), and what a rank sends at some time, its neighbour sends it at the same
 * time. So one rank and its links stand for all, and a pass is a loop over its steps:
 *
 *     the next block   the link is free, and the step has begun   + hop
 *     a half           the half before is done, its sum is here   + comp / 2
 *     its sum          the link is free, and the half is done     + sum
 *     the next step    both halves are done, the next block is here
 *
 * Halves that share a GPU (two streams, rounds.c) wait for what they need: the same half of the
 * block before, the sum, the block. By itself each takes as long as ever, but it is not done before
 * all work so far would be done by places that are never idle. Forward these are halves of the
 * heads, which have no sums to wait for. To play all blocks through one by one would take too long
 * for thousands of GPUs; test_ring_map compares.
 *
 * A single ring over several nodes goes through their slow links at each step; a double ring has a
 * link of each kind, and uses the slow one once in g steps. In the all-to-alls each rank has
 * messages for every other one; those inside and those between nodes go side by side.
 *
 * A message is handed over by the host behind the kernel that comes after it; what a block costs is
 * told in map_work.c.
 *
 * Interface: ring_map_ms, ring_map_compute_ms (cost.h).
 */
#include "planner/map_work.h"
#include "tensor.h"

#include <math.h>

/* Whose queries travel in the backward pass. */
static int is_burst(RingMethod method)
{
    return method == RING_METHOD_BURST || method == RING_METHOD_BURST_DOUBLE;
}

/* --- messages ----------------------------------------------------------------------------------*/

/* Latency for each message, bytes at the rate of the link. */
static double message_s(const MapCase *m, RingLink link, double messages, double bytes)
{
    return messages * m->r->latency[link] + bytes / m->r->bandwidth[link];
}

/* A hop of what is only read. */
static double hop_s(const MapCase *m, RingLink link)
{
    const double rows = m->n * (double)m->c->H * 4;
    return m->queries ? message_s(m, link, 4, 2 * m->q + 2 * rows)
                      : message_s(m, link, 2, 2 * m->kv);
}

/* A hop of a half of the float32 sums. */
static double sum_s(const MapCase *m, RingLink link)
{
    const double d = (double)m->c->d;
    return m->queries ? message_s(m, link, 1, m->n * (double)m->c->H * d * 4 / 2)
                      : message_s(m, link, 2, 2 * m->n * (double)m->c->Hkv * d * 4 / 2);
}

/* Small work by itself: bytes read and written. */
static double memory_s(const MapCase *m, double bytes)
{
    return m->r->call_s + bytes / m->r->memory;
}

/* A half of some sums is added to others. */
static double add_s(const MapCase *m)
{
    const double d = (double)m->c->d;
    return memory_s(m, m->queries ? 6 * m->n * (double)m->c->H * d
                                  : 12 * m->n * (double)m->c->Hkv * d);
}

/* lse and delta of queries that travel are put into halves. */
static double split_s(const MapCase *m)
{
    return m->queries ? memory_s(m, 16 * m->n * (double)m->c->H) : 0;
}

/* --- rings -------------------------------------------------------------------------------------*/

typedef struct Clock {
    double begin;    /* of the step: its block is here */
    double done[2];  /* computing, so far: of each stream, or all in the first */
    double busy;     /* two streams: all work so far, if places are never idle */
    double sums[2];  /* arrival of the sums' halves */
    double carry[2]; /* of those that go from node to node */
    double free[2];  /* links */
    double host;     /* what it has asked for, up to when */
    double put_off;  /* messages that it hands over after the next kernel */
} Clock;

/* `tensors` of messages that can leave at `ready`, when the host has handed over both their ends,
 * what is sent and what is received. Returns their arrival. A link is a queue: the next message
 * begins when the one before has ended, or later. */
static double travel(Clock *k, const MapCase *m, RingLink link, double ready, double tensors,
                     double seconds)
{
    k->put_off += 2 * tensors * m->r->post_s;
    k->free[link] = fmax(fmax(k->free[link], ready), k->host + k->put_off) + seconds;
    return k->free[link];
}

static double all_done(const Clock *k)
{
    return fmax(k->done[0], k->done[1]);
}

/* Into a room that nothing is computed with any more. */
static double hop(Clock *k, const MapCase *m, RingLink link)
{
    return travel(k, m, link, fmax(k->begin, all_done(k)), m->queries ? 4 : 2, hop_s(m, link));
}

static double sum(Clock *k, const MapCase *m, RingLink link, double ready)
{
    return travel(k, m, link, ready, m->queries ? 1 : 2, sum_s(m, link));
}

/* A half, or all of a block: asked for by the host, which then hands over what it has put off; but
 * both halves of the heads first. Returns when it is done. */
static double work(Clock *k, const MapCase *m, const MapWork *w, int half)
{
    double *done = &k->done[m->streams ? half : 0];
    *done = fmax(fmax(*done, k->begin), k->sums[half]);
    if (w->part[half] > 0) {
        const double start = fmax(*done, k->host);
        *done = start + w->part[half];
        k->busy = fmax(k->busy, start) + w->even[half];
    }
    if (w->part[half] > 0 && (m->backward || half == m->streams)) {
        k->host += k->put_off;
        k->put_off = 0;
    }
    return *done = fmax(*done, k->busy);
}

/* A block is computed, in halves that have sums to wait for and to pass on. */
static void compute(Clock *k, const MapCase *m, RingLink link, MapWork w, int pass_on)
{
    k->begin += w.before;
    for (int half = 0; half < 2; half++) {
        const double done = work(k, m, &w, half);
        if (pass_on)
            k->sums[half] = sum(k, m, link, done);
    }
    k->done[0] = w.after > 0 ? all_done(k) + w.after : k->done[0];
}

/* The last step inside a node: its sums join those of other nodes. */
static void join(Clock *k, const MapCase *m, MapWork w, int pass_on)
{
    k->begin += w.before;
    for (int half = 0; half < 2; half++) {
        double *done = &k->done[m->streams ? half : 0];
        *done = work(k, m, &w, half);
        if (m->backward)
            *done = fmax(*done, k->carry[half]) + add_s(m);
        if (pass_on)
            k->carry[half] = sum(k, m, RING_OUTER, *done);
        k->sums[half] = 0;
    }
    k->done[0] = w.after > 0 ? all_done(k) + w.after : k->done[0];
}

/* A turn inside of each node, and a hop to the next one meanwhile. A single ring is one node of all
 * ranks: over several machines the slow link sets the pace of all, since whoever waits for it makes
 * the next one wait. Outer messages start with a node's first block and are due a turn later; only
 * then does fmax compare the two. Keys come home at the end of the backward pass, so there the own
 * block is the last. */
static double rings_s(const MapCase *m, double nodes, double size, RingLink link)
{
    const int own_last = m->backward && !m->queries;
    Clock k = {.begin = split_s(m)};
    for (double node = 0; node < nodes; node++) {
        const int last_node = node == nodes - 1, own_node = own_last ? last_node : node == 0;
        const double outer = last_node ? 0 : hop(&k, m, RING_OUTER);
        for (double t = 0; t < size; t++) {
            const int last = t == size - 1, own = own_node && (own_last ? last : t == 0);
            const MapAt at = {own, node == 0 && t == 0, last_node && last};
            const MapWork w = map_work_of(m, at);
            const double next = last ? 0 : hop(&k, m, link);
            if (last && nodes > 1)
                join(&k, m, w, m->backward && (!last_node || m->queries));
            else
                compute(&k, m, link, w, m->backward && m->G > 1 && (!last || m->queries));
            k.begin = next;
        }
        k.begin = fmax(k.begin, outer);
    }
    if (!m->queries)
        return all_done(&k);
    return fmax(all_done(&k), fmax(fmax(k.sums[0], k.sums[1]), fmax(k.carry[0], k.carry[1])));
}

/* --- all to all --------------------------------------------------------------------------------*/

/* Blocks of the own node come first, those of others over the other link at the same time; sums
 * leave when all blocks have come. */
static double allgather_s(const MapCase *m)
{
    const double hops[2] = {hop_s(m, RING_INNER), hop_s(m, RING_OUTER)};
    const double inner = m->g - 1, outer = m->G - m->g, post = 4 * (m->G - 1) * m->r->post_s;
    Clock k = {.free = {post + inner * hops[0], post + outer * hops[1]}, .put_off = post};
    compute(&k, m, RING_INNER, map_work_of(m, (MapAt){1, 1, m->G == 1}), 0);
    for (double t = 1; t < m->G; t++) {
        const RingLink link = t <= inner ? RING_INNER : RING_OUTER;
        MapWork w = map_work_of(m, (MapAt){0, 0, t == m->G - 1});
        for (int half = 0; half < 2 && m->backward && t > 1; half++)
            w.part[half] += add_s(m); /* what came in the round before */
        k.begin = post + (link == RING_INNER ? t * hops[0] : (t - inner) * hops[1]);
        compute(&k, m, link, w, m->backward);
    }
    for (int half = 0; half < 2 && m->backward && m->G > 1; half++) {
        double *done = &k.done[m->streams ? half : 0];
        *done = fmax(*done, k.sums[half]) + add_s(m);
    }
    return all_done(&k);
}

/* One rank's messages to all others: `count` tensors of in all `bytes`, a part for each rank. Both
 * kinds of links work at the same time, so the slower of the two counts. */
static double exchange_s(const MapCase *m, double count, double bytes)
{
    const double inner = m->g - 1, outer = m->G - m->g;
    return fmax(message_s(m, RING_INNER, inner * count, inner * bytes),
                message_s(m, RING_OUTER, outer * count, outer * bytes));
}

/* Heads are cut out of tokens (before), or put back: each element is read once and written once.
 * Keys of a head that several ranks have are copied for each; the gradients are added. */
static double repack_s(const MapCase *m, int before)
{
    const double tokens = m->n * (double)m->c->d, size = (double)dtype_size(m->c->dtype);
    const double Hkv = (double)m->c->Hkv;
    double bytes = 2 * m->q;
    if (before && !m->backward)
        bytes += 4 * tokens * fmax(Hkv, m->G) * size;
    if (!before && m->backward)
        bytes += 4 * m->kv + (m->G > Hkv ? 4 * tokens * size + 2 * (m->G - Hkv) * 12 * tokens : 0);
    return memory_s(m, bytes);
}

/* Forward lse is put into the order of the ranks, and the own part into its place. */
static double rows_s(const MapCase *m)
{
    const double bytes = 8 * m->n * (double)m->c->H * (1 + 1 / m->G);
    return m->backward ? 0 : m->G > 1 ? memory_s(m, bytes) : bytes / m->r->memory;
}

/* A plain sum, no fmax between computing and sending: nothing hides but the host's own work for the
 * second exchange. */
static double ulysses_s(const MapCase *m)
{
    const RingMapCase *c = m->c;
    const double N = m->G * m->n, H = (double)c->H / m->G, d = (double)c->d;
    const double Hkv = fmax((double)c->Hkv / m->G, 1), size = (double)dtype_size(c->dtype);
    const double q = m->n * H * d * size, kv = m->n * Hkv * d * size;
    const double pairs = c->causal ? N * (N + 1) / 2 : N * N;
    const double state = 8 * N * d * (m->backward ? 2 * Hkv : H);
    const double comp =
        map_call_s(m, pairs / (double)c->ranks, c->causal ? N / (double)c->ranks : 0,
                   m->rounds[1].part[0], state + map_edge_bytes(m, 0) + map_edge_bytes(m, 1));
    if (c->H % c->ranks || (c->Hkv % c->ranks && c->ranks % c->Hkv))
        return -1;
    const double first = m->backward ? exchange_s(m, 1, q) : exchange_s(m, 3, q + 2 * kv);
    const double second =
        m->backward ? exchange_s(m, 3, q + 2 * kv) : exchange_s(m, 2, q + m->n * H * 4);
    const double end = 2 * (m->G - 1) * m->r->post_s; /* of the ends of a tensor's messages */
    const double asked = (m->backward ? 1 : 3) * end, all = asked + (m->backward ? 3 : 2) * end;
    const double ready = fmax(repack_s(m, 1), asked) + first + comp + rows_s(m);
    return fmax(ready, all) + second + repack_s(m, 0);
}

static double seconds_of(const MapCase *m, RingMethod method)
{
    switch (method) {
    case RING_METHOD_ULYSSES:
        return ulysses_s(m);
    case RING_METHOD_ALLGATHER:
        return allgather_s(m);
    case RING_METHOD_RING_DOUBLE:
    case RING_METHOD_BURST_DOUBLE:
        return rings_s(m, m->M, m->g, RING_INNER);
    default:
        return rings_s(m, 1, m->G, m->M > 1 ? RING_OUTER : RING_INNER);
    }
}

double ring_map_ms(const RingMapCase *c, const RingRates *rates, RingPass pass)
{
    const double bytes = (double)(c->n * c->d) * (double)dtype_size(c->dtype);
    const RingMethod method = ring_method_on(c->method, (int)c->ranks, (int)c->nodes);
    const int backward = pass == RING_BACKWARD;
    MapCase m = {.c = c,
                 .r = rates,
                 .backward = backward,
                 .queries = backward && c->ranks > 1 && is_burst(method),
                 .streams =
                     (c->ranks > 1 && ring_two_streams(method, pass, c->dtype, rates)) ||
                     (c->H > 1 && ring_head_streams(method, (int)c->ranks, pass, c->dtype, rates)),
                 .G = (double)c->ranks,
                 .M = (double)c->nodes,
                 .g = (double)(c->ranks / c->nodes),
                 .n = (double)c->n,
                 .q = bytes * (double)c->H,
                 .kv = bytes * (double)c->Hkv};
    double seconds;
    if (map_count_rounds(&m, method == RING_METHOD_ULYSSES) != 0)
        return -1;
    seconds = seconds_of(&m, method);
    return seconds < 0 ? -1 : 1e3 * (seconds + rates->pass_s);
}

double ring_map_compute_ms(const RingMapCase *c, const RingRates *rates, RingPass pass)
{
    RingRates free_links = *rates;
    free_links.latency[RING_INNER] = free_links.latency[RING_OUTER] = 0;
    free_links.bandwidth[RING_INNER] = free_links.bandwidth[RING_OUTER] = INFINITY;
    return ring_map_ms(c, &free_links, pass);
}
