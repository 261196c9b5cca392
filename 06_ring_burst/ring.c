/* SPDX-License-Identifier: MIT
 *
 * ring.c: RingAttention. K and V go round in the forward pass; in the backward pass they go round
 * once more, and their gradients with them.
 *
 * Gradients of a pair of blocks (stage 04) belong to two owners: dQ to the rank that has the
 * queries, dK and dV to the one that has the keys. Queries stay, so dQ stays. But keys are visitors
 * here, so dK and dV are sums to which every rank adds its part as they come by, and in the end
 * they have to be at home.
 *
 * Where should the tour begin? Starting at home, K and V make G-1 hops and the sums one more, the
 * way home, behind which nothing can hide. But the forward pass has left every rank with a visitor,
 * the keys of rank r - (G-1). So the backward pass begins with these and turns the other way:
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
 * Each rank adds to a visiting sum in two halves, so that one half travels while the other is
 * computed (relay.c).
 *
 *     bytes sent     2 (G-1) n Hkv d b forward, 2 (G-1) n Hkv d (b + b_g) backward
 *     memory         two rooms for keys; dQ, and two places for sums dK, dV, in float32
 *
 * Interface: ring_table (methods.h).
 * Sources: Liu, Zaharia and Abbeel 2023; the order of the backward pass as in Transformer Engine.
 */
#include <stdlib.h>

#include "methods.h"

typedef struct Ring {
    RingState state;
    RingVisitors up, down;
    RingBuffer delta, dQ;
    RingRelay sums, sums_down;
} Ring;

static int open_ring(RingRank *r)
{
    r->method = calloc(1, sizeof(Ring));
    return r->method ? 0 : ring_fail(r, "out of memory");
}

static int forward(RingRank *r)
{
    Ring *m = r->method;
    return ring_forward(r, &m->state, &m->up, &m->down, r->plan->backward);
}

/* The way back of a ring whose forward pass went `hops` ranks on in direction `way`. */
static int turn_back(RingRank *r, const RingBlock *q, float *dQ, RingVisitors *visitors,
                     RingRelay *sums, int way, int hops, int first_step, int own)
{
    const int to = ring_at(r, -way), from = ring_at(r, way);
    RingBlock k = visitors->last, next = k;
    RingExchange x = {0};
    if (ring_clear_sums(r, ring_here(sums), k.tokens))
        return -1;
    for (int t = hops; t >= 0; t--) { /* k: keys of rank r - way * t */
        if (ring_step(r, first_step + hops - t))
            return -1;
        if (t > 0 && (ring_send_keys(r, &x, to, &k) ||
                      ring_receive_keys(r, &x, from, ring_at(r, -way * (t - 1)),
                                        &visitors->room[t % 2], &next) ||
                      ring_start(r, &x)))
            return -1;
        for (int half = 0; half < RING_HALVES; half++) {
            const RingBlock part = ring_block_half(r, &k, half);
            if (ring_relay_arrive(r, sums, half))
                return -1;
            if ((t > 0 || own) &&
                ring_differentiate(r, q, &part, dQ, ring_half(ring_here(sums), 0, half),
                                   ring_half(ring_here(sums), 1, half)))
                return -1;
            if (t > 0 && ring_relay_send(r, sums, half, to, from, next.tokens))
                return -1;
        }
        if (ring_wait(r, &x))
            return -1;
        k = t == 1 ? ring_own_keys(r) : next;
        if (t > 0)
            ring_relay_turn(sums);
    }
    return 0;
}

/* A window's right side: keys of later ranks go home too, and what comes with them is added. */
static int turn_back_down(RingRank *r, Ring *m, const RingBlock *q)
{
    const int hops = r->plan->hops_down;
    ring_close_keys(r, m->up.room, 2);
    ring_close_sums(r, ring_there(&m->sums));
    if (ring_open_keys(r, m->down.room, 2) || ring_open_relay(r, &m->sums_down, 2) ||
        turn_back(r, q, m->dQ.data, &m->down, &m->sums_down, -1, hops, r->plan->hops_up, 0) ||
        ring_add_sums(r, ring_here(&m->sums), ring_here(&m->sums_down), 0) ||
        ring_add_sums(r, ring_here(&m->sums), ring_here(&m->sums_down), 1))
        return -1;
    ring_close_relay(r, &m->sums_down);
    return 0;
}

static void close_rooms(RingRank *r, Ring *m)
{
    ring_close_keys(r, m->up.room, 2);
    ring_close_keys(r, m->down.room, 2);
    ring_close_buffer(r, &m->delta);
    ring_close_buffer(r, &m->dQ);
    ring_close_relay(r, &m->sums);
    ring_close_relay(r, &m->sums_down);
    ring_close_buffer(r, &m->state.O);
}

static int backward(RingRank *r)
{
    const int up = r->plan->hops_up, down = r->plan->hops_down;
    const size_t bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    Ring *m = r->method;
    RingBlock q;
    if (ring_open_delta(r, &q, &m->delta))
        return -1;
    if (up + down == 0) {
        if (ring_backward_alone(r, &q))
            return -1;
    } else if (ring_open_keys(r, m->up.room, up > 0 ? 2 : 0) ||
               ring_open_buffer(r, &m->dQ, bytes, "dQ") || ring_zero(r, m->dQ.data, bytes) ||
               ring_open_relay(r, &m->sums, 2) ||
               turn_back(r, &q, m->dQ.data, &m->up, &m->sums, +1, up, 0, 1) ||
               (down > 0 && turn_back_down(r, m, &q)) || ring_give_dQ(r, &m->dQ) ||
               ring_give_halves(r, ring_here(&m->sums)))
        return -1;
    close_rooms(r, m);
    return 0;
}

static void close_ring(RingRank *r)
{
    if (r->method)
        close_rooms(r, r->method);
    free(r->method);
    r->method = NULL;
}

const RingMethodTable ring_table = {open_ring, forward, backward, close_ring};
