/* SPDX-License-Identifier: MIT
 *
 * burst.c: BurstAttention's global part. The forward pass is ring's; in the backward pass the
 * queries travel and the keys stay.
 *
 * ring sends K, V and two growing sums, dK and dV. Turned round, there is one sum only: K, V, dK
 * and dV stay, and Q, dO, lse and delta come by, with dQ behind them. With many ranks and as many
 * kv heads as query heads that is 2/3 of ring's bytes in 16 bits, and 3/4 in float32. With fewer kv
 * heads it is more, soon much more: burst pays for H heads, ring for Hkv.
 *
 *     step             0    1    2    3
 *     rank 0           0    3    2    1        whose queries are at which rank
 *     rank 1           1    0    3    2
 *     rank 2           2    1    0    3        Q, dO, lse, delta: G-1 hops
 *     rank 3           3    2    1    0        dQ: the same hops one step behind, and one home
 *
 * Why behind? Q, dO, lse and delta are only read and leave before this rank computes with them. dQ
 * may leave only when this rank's part is in it, and follows in two halves (relay.c). At the last
 * rank it is complete, but not at home: hence one hop more.
 *
 * delta = rowsum(dO * O) and lse belong to the finished attention over all keys. They are computed
 * once, at home, and travel as numbers; with delta O has done its duty.
 *
 * A window: where keys go `up` ranks up in the forward pass, queries have to go as far down, to the
 * same pairs. From the last rank dQ goes home in one direct message.
 *
 *     bytes sent     2 (G-1) n Hkv d b forward, (G-1) n H (2 d b + 8) + G n H d b_g backward
 *     memory         two buffers for queries; dK, dV, and two places for sums dQ, in float32
 *
 * Interface: the method burst (its last line).
 * Source: Sun et al. 2024, BurstAttention. (Its Algorithm 4 as printed sends dQ at the beginning of
 * a step, before it is complete.)
 */
#include "methods/methods.h"

typedef struct Burst {
    RingState state;
    RingRemote up, down;
    RingQueries buffer[2];
    RingBuffer lse, delta;
    RingSums dKV;
    RingRelay dQ;
} Burst;

static int forward(RingRank *r)
{
    Burst *m = ring_method_state(r, sizeof *m);
    if (!m)
        return -1;
    ring_forward(r, &m->state, &m->up, &m->down, 0);
    return ring_status(r);
}

/* A tour of the queries, dQ behind them. */
static void send_round(RingRank *r, Burst *m, RingBlock q, RingTour tour)
{
    const int way = tour.way, hops = tour.hops;
    const RingBlock k = ring_own_keys(r);
    float *dK = m->dKV.of[0].data, *dV = m->dKV.of[1].data;
    RingBlock next = q;
    RingExchange x = {0};
    for (int t = 0; t <= hops && !r->failed; t++) { /* q: queries of rank r - way * t */
        /* where q and its dQ go next; whose come in their place, and from where */
        const int home = t == hops, to = home ? q.owner : ring_at(r, way);
        const int from = home ? ring_at(r, way * hops) : ring_at(r, -way);
        const int coming = home ? r->rank : ring_at(r, -way * (t + 1));
        ring_step(r, tour.first_step + t);
        if (!home) { /* only read, so they leave at once */
            ring_send_queries(r, &x, to, &q);
            ring_receive_queries(r, &x, from, coming, &m->buffer[t % 2], &next);
            ring_start(r, &x);
        }
        for (int half = 0; half < RING_HALVES; half++) {
            const RingBlock queries = ring_block_half(&q, half);
            float *dQ = ring_half(ring_here(&m->dQ), 0, half);
            ring_relay_arrive(r, &m->dQ, half); /* with the parts of all ranks so far */
            if (t > 0 || tour.own)
                ring_differentiate(r, &queries, &k, dQ, dK, dV);
            if (hops > 0) /* now this rank's part is in it too */
                ring_relay_send(r, &m->dQ, half, to, from, coming);
        }
        ring_wait(r, &x);
        if (hops > 0)
            ring_relay_exchange(&m->dQ);
        q = next;
    }
}

/* Both tours of a window's queries use the same sum: it comes home from the first and leaves again
 * for the second. In a window queries go down, since keys went up. In a full turn all queries meet
 * all keys in either direction. */
static int backward(RingRank *r)
{
    const int up = r->hops_up, down = r->hops_down, most = up > down ? up : down;
    Burst *m = r->method;
    RingBlock q;
    if (most == 0) { /* nothing travels */
        ring_backward_local(r);
        return ring_status(r);
    }
    ring_open_split_delta(r, &q, &m->lse, &m->delta);
    ring_open_queries(r, m->buffer, most < 2 ? most : 2);
    ring_open_sums(r, &m->dKV, 2, r->nk);
    ring_open_relay(r, &m->dQ, 1);
    ring_clear_sums(r, &m->dKV, r->rank);
    ring_clear_sums(r, ring_here(&m->dQ), r->rank);
    send_round(r, m, q, (RingTour){up == r->world - 1 ? +1 : -1, up, 0, 1});
    if (down > 0)
        send_round(r, m, q, (RingTour){+1, down, up, 0});
    ring_relay_arrive(r, &m->dQ, 0);
    ring_relay_arrive(r, &m->dQ, 1);
    ring_give_halves(r, ring_here(&m->dQ), ring_there(&m->dQ));
    ring_give_dKV(r, &m->dKV.of[0], &m->dKV.of[1]);
    return ring_status(r);
}

RING_METHOD(burst, "backward the queries' side travels, the gradients of keys stay", 0);
