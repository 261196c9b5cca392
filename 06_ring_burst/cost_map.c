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
 * Without waiting for sums (forward) this is T = comp + sum over steps of max(comp, hop).
 *
 * A single ring over several nodes goes through their slow links at each step; a double ring has a
 * link of each kind, and uses the slow one once in g steps. In the all-to-alls each rank has
 * messages for every other one; those inside and those between nodes go side by side.
 *
 * Interface: ring_map_ms, ring_map_compute_ms (cost.h).
 */
#include "cost.h"
#include "tensor.h"

#include <math.h>

typedef struct Case {
    const RingMapCase *c;
    const RingRates *r;
    int backward, queries; /* queries: they travel, not keys */
    double G, M, g, n;
    double q, kv; /* bytes of a rank's Q, or K, in the dtype */
} Case;

/* Whose queries travel in the backward pass. */
static int is_burst(RingMethod method)
{
    return method == RING_METHOD_BURST || method == RING_METHOD_BURST_DOUBLE;
}

/* --- work --------------------------------------------------------------------------------------*/

typedef struct Work { /* seconds of a pair of blocks: in two halves if its sums travel, else one */
    double part[2];
} Work;

/* One call of a block kernel: a fixed part, the products at the kernel's rate, and the float32
 * state that is read and written once (8 bytes an element). */
static double call_s(const Case *m, double pairs, double partial_rows, double state)
{
    const RingMapCase *c = m->c;
    const double d = (double)c->d, per_pair = (m->backward ? 10 : 4) * (double)c->H * d;
    return m->r->call_s +
           per_pair * (pairs + m->r->masked_keys * partial_rows) / m->r->flops[m->backward] +
           8 * d * state / m->r->memory;
}

/* first: pairs of the first half. Each half's call adds to its sums and to all of the others. */
static Work block_work(const Case *m, double pairs, double first, double partial_rows)
{
    const double H = (double)m->c->H, Hkv = (double)m->c->Hkv;
    const double stays = m->n * (m->queries ? 2 * Hkv : H),
                 goes = m->n * (m->queries ? H : 2 * Hkv);
    if (!m->backward)
        return (Work){{call_s(m, pairs, partial_rows, m->n * H), 0}};
    if (m->G == 1)
        return (Work){{call_s(m, pairs, partial_rows, stays + goes), 0}};
    return (Work){{call_s(m, first, partial_rows / 2, stays + goes / 2),
                   call_s(m, pairs - first, partial_rows / 2, stays + goes / 2)}};
}

/* A zigzag shard is a0 b0 | a1 b1, quarters of h tokens, a before b: its first half of keys is seen
 * by more, its first half of queries sees less. */
static Work own_work(const Case *m)
{
    const double h = m->n / 4, triangles = h * (h + 1), squares = (m->queries ? 2 : 4) * h * h;
    if (!m->c->causal)
        return block_work(m, m->n * m->n, m->n * m->n / 2, 0);
    return block_work(m, m->n * (m->n + 1) / 2, triangles + squares, m->n);
}

/* Causal zigzag: half of the pairs, always as a whole rectangle, so no row is seen in part. */
static Work other_work(const Case *m)
{
    const double pairs = m->c->causal ? m->n * m->n / 2 : m->n * m->n;
    return block_work(m, pairs, pairs / 2, 0);
}

/* --- messages ----------------------------------------------------------------------------------*/

/* Latency for each message, bytes at the rate of the link. */
static double message_s(const Case *m, RingLink link, double messages, double bytes)
{
    return messages * m->r->latency[link] + bytes / m->r->bandwidth[link];
}

/* A hop of what is only read. */
static double hop_s(const Case *m, RingLink link)
{
    const double rows = m->n * (double)m->c->H * 4;
    return m->queries ? message_s(m, link, 4, 2 * m->q + 2 * rows)
                      : message_s(m, link, 2, 2 * m->kv);
}

/* A hop of a half of the float32 sums. */
static double sum_s(const Case *m, RingLink link)
{
    const double d = (double)m->c->d;
    return m->queries ? message_s(m, link, 1, m->n * (double)m->c->H * d * 4 / 2)
                      : message_s(m, link, 2, 2 * m->n * (double)m->c->Hkv * d * 4 / 2);
}

/* --- rings -------------------------------------------------------------------------------------*/

typedef struct Clock {
    double begin;    /* of the step */
    double done;     /* computing, so far */
    double sums[2];  /* arrival of the sums' halves */
    double carry[2]; /* of those that go from node to node */
    double free[2];  /* links */
} Clock;

/* A message that can leave at `ready`. Returns its arrival. A link is a queue: the next message
 * begins when the one before has ended, or later. */
static double travel(Clock *k, RingLink link, double ready, double seconds)
{
    k->free[link] = fmax(k->free[link], ready) + seconds;
    return k->free[link];
}

/* A block is computed, in halves that have sums to wait for and to pass on. */
static void compute(Clock *k, const Case *m, RingLink link, Work work, int pass_on)
{
    k->done = k->begin;
    for (int half = 0; half < 2; half++) {
        k->done = fmax(k->done, k->sums[half]) + work.part[half];
        if (pass_on)
            k->sums[half] = travel(k, link, k->done, sum_s(m, link));
    }
}

/* Keys come home at the end of the backward pass, so there the own block is the last. The slow link
 * sets the pace of all: whoever waits for it makes the next one wait, so one rank's clock with the
 * slowest link is everybody's clock. */
static double ring_s(const Case *m)
{
    const RingLink link = m->M > 1 ? RING_OUTER : RING_INNER;
    const int own_last = m->backward && !m->queries;
    Clock k = {0};
    for (double t = 0; t < m->G; t++) {
        const int last = t == m->G - 1, own = own_last ? last : t == 0;
        const double next = last ? 0 : travel(&k, link, k.begin, hop_s(m, link));
        compute(&k, m, link, own ? own_work(m) : other_work(m),
                m->backward && m->G > 1 && (!last || m->queries));
        k.begin = fmax(k.done, next);
    }
    return m->queries ? fmax(k.begin, fmax(k.sums[0], k.sums[1])) : k.begin;
}

/* The last step inside a node: its sums join those of other nodes. */
static void join(Clock *k, const Case *m, Work work, int pass_on)
{
    k->done = k->begin;
    for (int half = 0; half < 2; half++) {
        k->done = fmax(k->done, k->sums[half]) + work.part[half];
        k->done = fmax(k->done, k->carry[half]);
        if (pass_on)
            k->carry[half] = travel(k, RING_OUTER, k->done, sum_s(m, RING_OUTER));
        k->sums[half] = 0;
    }
}

/* Outer messages start with a node's first block and are due g inner steps later; only then does
 * fmax compare the two. */
static double double_s(const Case *m)
{
    const int own_last = m->backward && !m->queries;
    Clock k = {0};
    for (double node = 0; node < m->M; node++) {
        const int last_node = node == m->M - 1, own_node = own_last ? last_node : node == 0;
        const double outer = last_node ? 0 : travel(&k, RING_OUTER, k.begin, hop_s(m, RING_OUTER));
        for (double t = 0; t < m->g; t++) {
            const int last = t == m->g - 1, own = own_node && (own_last ? last : t == 0);
            const Work work = own ? own_work(m) : other_work(m);
            const double next = last ? 0 : travel(&k, RING_INNER, k.begin, hop_s(m, RING_INNER));
            if (last)
                join(&k, m, work, m->backward && (!last_node || m->queries));
            else
                compute(&k, m, RING_INNER, work, m->backward);
            k.begin = fmax(k.done, next);
        }
        k.begin = fmax(k.begin, outer);
    }
    return m->queries ? fmax(k.begin, fmax(k.carry[0], k.carry[1])) : k.begin;
}

/* --- all to all --------------------------------------------------------------------------------*/

/* Blocks of the own node come first, those of others over the other link at the same time; sums
 * leave when all blocks have come. */
static double allgather_s(const Case *m)
{
    const double hop[2] = {hop_s(m, RING_INNER), hop_s(m, RING_OUTER)};
    const double inner = m->g - 1, outer = m->G - m->g;
    const double added = m->r->call_s + 3 * m->n * (double)(m->c->Hkv * m->c->d) * 4 / m->r->memory;
    const Work first = other_work(m);
    Work work = first; /* of later rounds: what came in the one before is added */
    Clock k = {.free = {inner * hop[0], outer * hop[1]}};
    for (int half = 0; half < 2 && m->backward; half++)
        work.part[half] += added;
    compute(&k, m, RING_INNER, own_work(m), 0);
    for (double t = 1; t < m->G; t++) {
        const RingLink link = t <= inner ? RING_INNER : RING_OUTER;
        k.begin = fmax(k.done, link == RING_INNER ? t * hop[0] : (t - inner) * hop[1]);
        compute(&k, m, link, t > 1 ? work : first, m->backward);
    }
    return fmax(k.done, fmax(k.sums[0], k.sums[1]));
}

/* One rank's messages to all others: `count` tensors of in all `bytes`, a part for each rank. Both
 * kinds of links work at the same time, so the slower of the two counts. */
static double exchange_s(const Case *m, double count, double bytes)
{
    const double inner = m->g - 1, outer = m->G - m->g;
    return fmax(message_s(m, RING_INNER, inner * count, inner * bytes),
                message_s(m, RING_OUTER, outer * count, outer * bytes));
}

/* A plain sum, no fmax between computing and sending: nothing hides. */
static double ulysses_s(const Case *m)
{
    const RingMapCase *c = m->c;
    const double N = m->G * m->n, H = (double)c->H / m->G, d = (double)c->d;
    const double Hkv = fmax((double)c->Hkv / m->G, 1), size = (double)dtype_size(c->dtype);
    const double q = m->n * H * d * size, kv = m->n * Hkv * d * size;
    const double pairs = c->causal ? N * (N + 1) / 2 : N * N;
    const double flops =
        (m->backward ? 10 : 4) * H * d * (pairs + (c->causal ? m->r->masked_keys * N : 0));
    const double repack = 2 * (m->r->call_s + 2 * (m->q + 2 * m->kv) / m->r->memory);
    const double state = 8 * N * d * (m->backward ? H + 2 * Hkv : H);
    const double comp = m->r->call_s + flops / m->r->flops[m->backward] + state / m->r->memory;
    if (c->H % c->ranks || (c->Hkv % c->ranks && c->ranks % c->Hkv))
        return -1;
    if (m->backward)
        return exchange_s(m, 1, q) + comp + repack + exchange_s(m, 3, q + 2 * kv);
    return exchange_s(m, 3, q + 2 * kv) + comp + repack + exchange_s(m, 2, q + m->n * H * 4);
}

double ring_map_ms(const RingMapCase *c, const RingRates *rates, RingPass pass)
{
    const double bytes = (double)(c->n * c->d) * (double)dtype_size(c->dtype);
    const RingMethod method = ring_method_on(c->method, (int)c->ranks, (int)c->nodes);
    const Case m = {.c = c,
                    .r = rates,
                    .backward = pass == RING_BACKWARD,
                    .queries = pass == RING_BACKWARD && is_burst(method),
                    .G = (double)c->ranks,
                    .M = (double)c->nodes,
                    .g = (double)(c->ranks / c->nodes),
                    .n = (double)c->n,
                    .q = bytes * (double)c->H,
                    .kv = bytes * (double)c->Hkv};
    switch (method) {
    case RING_METHOD_ULYSSES:
        return 1e3 * ulysses_s(&m);
    case RING_METHOD_ALLGATHER:
        return 1e3 * allgather_s(&m);
    case RING_METHOD_RING_DOUBLE:
    case RING_METHOD_BURST_DOUBLE:
        return 1e3 * double_s(&m);
    default:
        return 1e3 * ring_s(&m);
    }
}

double ring_map_compute_ms(const RingMapCase *c, const RingRates *rates, RingPass pass)
{
    RingRates free_links = *rates;
    free_links.latency[RING_INNER] = free_links.latency[RING_OUTER] = 0;
    free_links.bandwidth[RING_INNER] = free_links.bandwidth[RING_OUTER] = INFINITY;
    return ring_map_ms(c, &free_links, pass);
}
