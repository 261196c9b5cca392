/* SPDX-License-Identifier: MIT
 *
 * burst_double.c: BurstAttention in two levels. The forward pass is tree_forward.c; in the backward
 * pass the queries go the same way as the keys did, and dQ follows them.
 *
 * Q, dO, lse and delta are only read: at rank (a, i) are those of owner (a - m, i - s), and what
 * comes first, at s = 0, leaves at once for the same place of the next node.
 *
 * dQ of a node's queries starts as zeros on each node. It goes round inside the node behind its
 * queries, and what the last place adds, at s = g-1, completes this node's part. It joins the carry
 * of the nodes before, which came from the same place of the node before, and the carry goes on to
 * the next node. From the last node it goes home, to the next place of the next node:
 *
 *     node a, m = 0             node a+1, m = 1           node a-1, m = M-1
 *     s = 0, round, s = g-1     s = 0, round, s = g-1     s = 0, round, s = g-1
 *                      `- carry ------------> + - ... ------------> + -- home (a, i)
 *
 *     bytes sent     those of burst: M (g-1) hops inside nodes, M-1 between them, and dQ one home
 *     memory         2 inner and 2 outer buffers for queries; dK, dV, and 4 places for sums dQ
 *
 * With one node, or one rank on each, burst is called instead (ring_method_on).
 *
 * Interface: the method burst-double (its last line).
 */
#include "methods/methods.h"

typedef struct BurstDouble {
    RingState state;
    RingTree tree;
    RingQueries inner[2], outer[2];
    RingBuffer lse, delta;
    RingSums dKV;
    RingRelay part, carry; /* dQ, of this node; of all nodes so far */
} BurstDouble;

static int forward(RingRank *r)
{
    BurstDouble *d = ring_method_state(r, sizeof *d);
    if (!d)
        return -1;
    ring_tree_forward(r, &d->state, &d->tree, 0);
    return ring_status(r);
}

/* A half of this node's part is complete: it joins the carry, which goes on to the next node, and
 * from the last one home. */
static void join_carry(RingRank *r, BurstDouble *d, const RingPlace *p, int m, int half)
{
    const int last = m == p->nodes - 1; /* the owner is M-1 nodes and g-1 places back */
    const int to = last ? ring_place_at(p, -m, 1 - p->size) : ring_place_at(p, +1, 0);
    const int from = last ? ring_place_at(p, m, p->size - 1) : ring_place_at(p, -1, 0);
    const int coming = last ? r->rank : ring_place_at(p, -m - 1, 1 - p->size);
    ring_relay_arrive(r, &d->carry, half);
    ring_add_sums(r, ring_here(&d->carry), ring_here(&d->part), half);
    ring_relay_send(r, &d->carry, half, to, from, coming);
}

/* Outer step m: the queries of one node, of which q has come first. */
static void visit_node(RingRank *r, BurstDouble *d, int m, RingBlock q)
{
    const RingPlace p = ring_place(r);
    const RingBlock k = ring_own_keys(r);
    const int to = ring_place_at(&p, 0, +1), from = ring_place_at(&p, 0, -1);
    RingBlock next = q;
    RingExchange x = {0};
    ring_clear_sums(r, ring_here(&d->part), q.owner);
    for (int s = 0; s < p.size && !r->failed; s++) { /* q: queries of (node - m, place - s) */
        const int last = s == p.size - 1;
        if (s > 0)
            ring_step(r, m * p.size + s);
        if (!last) {
            ring_send_queries(r, &x, to, &q);
            ring_receive_queries(r, &x, from, ring_place_at(&p, -m, -s - 1), &d->inner[s % 2],
                                 &next);
            ring_start(r, &x);
        }
        for (int half = 0; half < RING_HALVES; half++) {
            const RingBlock queries = ring_block_half(&q, half);
            float *dQ = ring_half(ring_here(&d->part), 0, half);
            ring_relay_arrive(r, &d->part, half);
            ring_differentiate(r, &queries, &k, dQ, d->dKV.of[0].data, d->dKV.of[1].data);
            if (last)
                join_carry(r, d, &p, m, half);
            else
                ring_relay_send(r, &d->part, half, to, from, next.owner);
        }
        ring_wait(r, &x);
        if (!last)
            ring_relay_exchange(&d->part);
        q = next;
    }
}

/* Through all nodes. The first carry is zeros, to which this rank adds the first part that is
 * complete here: dQ of the owner whose queries it has at m = 0, s = g-1. */
static void send_round(RingRank *r, BurstDouble *d, const RingBlock *q)
{
    const RingPlace p = ring_place(r);
    RingBlock first = *q, next = first;
    RingExchange x = {0};
    ring_clear_sums(r, ring_here(&d->carry), ring_place_at(&p, 0, 1 - p.size));
    for (int m = 0; m < p.nodes && !r->failed; m++) { /* first: queries of (node - m, place) */
        ring_step(r, m * p.size);
        if (m < p.nodes - 1) {
            ring_send_queries(r, &x, ring_place_at(&p, +1, 0), &first);
            ring_receive_queries(r, &x, ring_place_at(&p, -1, 0), ring_place_at(&p, -m - 1, 0),
                                 &d->outer[m % 2], &next);
            ring_start(r, &x);
        }
        visit_node(r, d, m, first);
        ring_wait(r, &x);
        ring_relay_exchange(&d->carry);
        first = next;
    }
    ring_relay_arrive(r, &d->carry, 0);
    ring_relay_arrive(r, &d->carry, 1);
}

static int backward(RingRank *r)
{
    const RingPlace p = ring_place(r);
    BurstDouble *d = r->method;
    RingBlock q;
    ring_open_split_delta(r, &q, &d->lse, &d->delta);
    ring_open_queries(r, d->inner, p.size == 2 ? 1 : 2);
    ring_open_queries(r, d->outer, p.nodes == 2 ? 1 : 2);
    ring_open_sums(r, &d->dKV, 2, r->nk);
    ring_open_relay(r, &d->part, 1);
    ring_open_relay(r, &d->carry, 1);
    ring_clear_sums(r, &d->dKV, r->rank);
    send_round(r, d, &q);
    ring_give_halves(r, ring_here(&d->carry), ring_there(&d->carry));
    ring_give_dKV(r, &d->dKV.of[0], &d->dKV.of[1]);
    return ring_status(r);
}

RING_METHOD(burst_double, "burst in two levels", 0);
