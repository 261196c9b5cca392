/* SPDX-License-Identifier: MIT
 *
 * ring_double.c: RingAttention in two levels. Forward as in tree_forward.c; backward the same way
 * back, with the gradients of the keys.
 *
 *     forward     rank (a, i) has the keys of (a - m, i - s),   m = 0 .. M-1, s = 0 .. g-1
 *     backward    the same,                                     m = M-1 .. 0, s = g-1 .. 0
 *
 * Keys go back from place i to i - 1 inside a node. Where a node's keys come first, at s = g-1,
 * they also leave for the next node of the tour, behind g steps of work.
 *
 * The sums dK, dV of one node's keys need two journeys. Inside a node they go round with the keys:
 * what arrives at s = 0 is the whole of this node's part. There it meets the parts of the nodes
 * before, the carry, which has come from the same place of the node before during the last outer
 * step. Both are added, and the carry goes on to the next node, for which it has an outer step of
 * time. After m = 0 the carry is at home.
 *
 *     node 2, m = 2         node 1, m = 1            node 0, m = 0
 *     round, round, s = 0   round, round, s = 0      round, round, s = 0
 *                       `-- carry -----------> +  --- carry ---------> +   dK, dV of node 0's keys
 *
 *     bytes sent     those of ring: M (g-1) hops inside nodes, M-1 between them, both passes
 *     memory         two inner and two outer buffers for keys; dQ, and four places for sums dK, dV
 *
 * With one node, or one rank on each, ring is called instead (ring_method_on).
 *
 * Interface: the method ring-double (its last line).
 */
#include "methods/methods.h"

typedef struct RingDouble {
    RingState state;
    RingTree tree;
    RingBuffer delta, dQ;
    RingRelay part, carry; /* of this node; of all nodes so far */
} RingDouble;

static int forward(RingRank *r)
{
    RingDouble *d = ring_method_state(r, sizeof *d);
    if (!d)
        return -1;
    ring_tree_forward(r, &d->state, &d->tree, r->backward);
    return ring_status(r);
}

/* A half of this node's part is complete: it joins the carry, which goes on to the next node. */
static void join_carry(RingRank *r, RingDouble *d, const RingPlace *p, int m, int half)
{
    ring_relay_arrive(r, &d->carry, half);
    ring_add_sums(r, ring_here(&d->carry), ring_here(&d->part), half);
    if (m > 0)
        ring_relay_send(r, &d->carry, half, ring_place_at(p, -1, 0), ring_place_at(p, +1, 0),
                        ring_place_at(p, -m + 1, 0));
}

/* Outer step m: back through the keys of one node, of which k has come first. */
static void return_through_node(RingRank *r, RingDouble *d, const RingBlock *q, int m, RingBlock k)
{
    const RingPlace p = ring_place(r);
    const int to = ring_place_at(&p, 0, -1), from = ring_place_at(&p, 0, +1);
    RingBlock next = k;
    RingExchange x = {0};
    ring_clear_sums(r, ring_here(&d->part), k.owner);
    for (int s = p.size - 1; s >= 0 && !r->failed; s--) { /* k: keys of (node - m, place - s) */
        if (s < p.size - 1)
            ring_step(r, (p.nodes - m) * p.size - 1 - s);
        if (s > 0) {
            ring_send_keys(r, &x, to, &k);
            ring_receive_keys(r, &x, from, ring_place_at(&p, -m, -s + 1), &d->tree.inner[s % 2],
                              &next);
            ring_start(r, &x);
        }
        for (int half = 0; half < RING_HALVES; half++) {
            const RingBlock keys = ring_block_half(&k, half);
            float *dK = ring_half(ring_here(&d->part), 0, half);
            float *dV = ring_half(ring_here(&d->part), 1, half);
            ring_stream(r, half);
            ring_relay_arrive(r, &d->part, half);
            ring_differentiate(r, q, &keys, d->dQ.data, dK, dV);
            if (s > 0)
                ring_relay_send(r, &d->part, half, to, from, next.owner);
            else
                join_carry(r, d, &p, m, half);
        }
        ring_stream(r, RING_BOTH_STREAMS);
        ring_wait(r, &x);
        if (s > 0)
            ring_relay_exchange(&d->part);
        k = m == 0 && s == 1 ? ring_own_keys(r) : next; /* home: the copy that came is the same */
    }
}

/* The way back through all nodes, beginning with the block that the forward pass left. The carry
 * begins with zeros: at m = M-1 no other node has seen these keys on this way. */
static void return_keys(RingRank *r, RingDouble *d, const RingBlock *q)
{
    const RingPlace p = ring_place(r);
    RingBlock first = d->tree.last, next = first;
    RingExchange x = {0};
    ring_clear_sums(r, ring_here(&d->carry), ring_place_at(&p, 1 - p.nodes, 0));
    for (int m = p.nodes - 1, buffer = d->tree.last_buffer; m >= 0 && !r->failed; m--) {
        ring_step(r, (p.nodes - 1 - m) * p.size);
        buffer = 1 - buffer;
        if (m > 0) { /* first: keys of (node - m, place - (g - 1)) */
            ring_send_keys(r, &x, ring_place_at(&p, -1, 0), &first);
            ring_receive_keys(r, &x, ring_place_at(&p, +1, 0),
                              ring_place_at(&p, -m + 1, 1 - p.size), &d->tree.outer[buffer], &next);
            ring_start(r, &x);
        }
        return_through_node(r, d, q, m, first);
        ring_wait(r, &x);
        if (m > 0)
            ring_relay_exchange(&d->carry);
        first = next;
    }
}

static int backward(RingRank *r)
{
    const size_t bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    RingDouble *d = r->method;
    RingBlock q;
    ring_open_delta(r, &q, &d->delta);
    ring_open_keys(r, d->tree.inner, 2);
    ring_open_buffer(r, &d->dQ, bytes, "dQ");
    ring_open_relay(r, &d->part, 2);
    ring_open_relay(r, &d->carry, 2);
    ring_zero(r, d->dQ.data, bytes);
    return_keys(r, d, &q);
    ring_give_halves(r, ring_here(&d->carry), ring_there(&d->carry));
    ring_give_dQ(r, &d->dQ);
    return ring_status(r);
}

RING_METHOD(ring_double, "ring in two levels: slow links between nodes hide behind a turn inside",
            0);
