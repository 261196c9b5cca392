/* SPDX-License-Identifier: MIT
 *
 * ring.c: RingAttention. K and V go round in the forward pass; in the backward pass they go round
 * once more, and their gradients with them.
 *
 * Gradients of a pair of blocks (stage 04) belong to two owners: dQ to the rank that has the
 * queries, dK and dV to the one that has the keys. Queries stay, so dQ stays. But keys are remote
 * blocks here, so dK and dV are sums to which every rank adds its part as they come by, and in the
 * end they have to be at home.
 *
 * Where should the tour begin? Starting at home, K and V make G-1 hops and the sums one more, the
 * way home, behind which nothing can hide. But the forward pass has left every rank with a remote
 * block, the keys of rank r - (G-1). So the backward pass begins with these and turns the other
 * way:
 *
 *     forward   step    0   1   2   3       backward  step    0   1   2   3
 *     rank 0            0   3   2   1                         1   2   3   0
 *     rank 1            1   0   3   2                         2   3   0   1
 *     rank 2            2   1   0   3                         3   0   1   2
 *     rank 3            3   2   1   0                         0   1   2   3
 *
 * The last column is everybody's own: in G-1 hops the sums have come home with their keys. The
 * direction matters: in the old one the owners would stand at the wrong end.
 *
 * Each rank adds to a remote sum in two halves, so that one half travels while the other is
 * computed (relay.c), and each half has a stream of its own (exchange.c): both add to the same dQ,
 * and otherwise they have nothing in common.
 *
 *     bytes sent     2 (G-1) n Hkv d b forward, 2 (G-1) n Hkv d (b + b_g) backward
 *     memory         two buffers for keys; dQ, and two places for sums dK, dV, in float32
 *
 * Interface: the method ring (its last line).
 * Sources: Liu, Zaharia and Abbeel 2023; the order of the backward pass as in Transformer Engine.
 */
#include "methods/methods.h"

typedef struct Ring {
    RingState state;
    RingRemote up, down;
    RingBlock q; /* of the backward pass */
    RingBuffer delta, dQ;
    RingRelay sums, sums_down;
} Ring;

static int forward(RingRank *r)
{
    Ring *m = ring_method_state(r, sizeof *m);
    if (!m)
        return -1;
    ring_forward(r, &m->state, &m->up, &m->down, r->backward);
    return ring_status(r);
}

/* The way back of a tour of the forward pass, from the block that it has left. */
static void return_keys(RingRank *r, Ring *m, RingRemote *remote, RingRelay *sums, RingTour tour)
{
    const int way = tour.way, hops = tour.hops, to = ring_at(r, -way), from = ring_at(r, way);
    RingBlock k = remote->last, next = k;
    RingExchange x = {0};
    ring_clear_sums(r, ring_here(sums), k.owner);
    for (int t = hops; t >= 0 && !r->failed; t--) { /* k: keys of rank r - way * t */
        ring_step(r, tour.first_step + hops - t);
        if (t > 0) { /* keys are only read, so they leave at once */
            ring_send_keys(r, &x, to, &k);
            ring_receive_keys(r, &x, from, ring_at(r, -way * (t - 1)), &remote->buffer[t % 2],
                              &next);
            ring_start(r, &x);
        }
        for (int half = 0; half < RING_HALVES; half++) {
            const RingBlock keys = ring_block_half(&k, half);
            float *dK = ring_half(ring_here(sums), 0, half);
            float *dV = ring_half(ring_here(sums), 1, half);
            ring_stream(r, half); /* a half waits for its own sums, not for the other half */
            ring_relay_arrive(r, sums, half); /* with the parts of all ranks so far */
            if (t > 0 || tour.own)
                ring_differentiate(r, &m->q, &keys, m->dQ.data, dK, dV);
            if (t > 0) /* now this rank's part is in it too */
                ring_relay_send(r, sums, half, to, from, next.owner);
        }
        ring_stream(r, RING_BOTH_STREAMS);
        ring_wait(r, &x);
        if (t > 0)
            ring_relay_exchange(sums);
        k = t > 1 ? next : ring_own_keys(r); /* the same as what the last hop has brought */
    }
}

/* A window's right side: keys of later ranks go home too, and what comes with them is added. */
static void return_later_keys(RingRank *r, Ring *m)
{
    ring_close_keys(r, m->up.buffer, 2);
    ring_close_sums(r, ring_there(&m->sums));
    ring_open_keys(r, m->down.buffer, 2);
    ring_open_relay(r, &m->sums_down, 2);
    return_keys(r, m, &m->down, &m->sums_down, (RingTour){-1, r->hops_down, r->hops_up, 0});
    for (int half = 0; half < RING_HALVES; half++)
        ring_add_sums(r, ring_here(&m->sums), ring_here(&m->sums_down), half);
    ring_close_relay(r, &m->sums_down);
}

static int backward(RingRank *r)
{
    Ring *m = r->method;
    const int hops = r->hops_up;
    const size_t bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    if (hops + r->hops_down == 0) { /* nothing travels */
        ring_backward_local(r);
        return ring_status(r);
    }
    ring_open_delta(r, &m->q, &m->delta);
    ring_open_keys(r, m->up.buffer, hops > 0 ? 2 : 0);
    ring_open_buffer(r, &m->dQ, bytes, "dQ");
    ring_open_relay(r, &m->sums, 2);
    ring_zero(r, m->dQ.data, bytes);
    return_keys(r, m, &m->up, &m->sums, (RingTour){+1, hops, 0, 1});
    if (r->hops_down > 0)
        return_later_keys(r, m);
    ring_give_halves(r, ring_here(&m->sums), ring_there(&m->sums));
    ring_give_dQ(r, &m->dQ);
    return ring_status(r);
}

RING_METHOD(ring, "keys and values in a ring; their gradients travel home with them", 0);
