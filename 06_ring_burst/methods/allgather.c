/* SPDX-License-Identifier: MIT
 *
 * allgather.c: everybody gets all keys at once, by direct messages instead of a ring.
 *
 * Forward, every rank sends its K and V to every other (all-gather) and computes with the blocks in
 * the order of their distance, waiting for one at a time. Backward, it gathers them again (keeping
 * them would cost the memory between the passes), computes what its queries give to each owner's
 * dK and dV, and sends every owner its part, which adds up the parts (reduce-scatter).
 *
 *     round t        0     1     2     3         rank r computes with the keys of
 *     forward        r     r-1   r-2   r-3
 *     backward       r     r+1   r+2   r+3       and sends the parts of dK, dV there
 *
 * The bytes are those of ring, and no block waits for the step before. The price is memory: all N
 * keys on each rank, so what a rank holds grows with the whole sequence.
 *
 * Everybody's parts come in the order of the rounds, so that the order of additions, and with it
 * every bit of the result, does not depend on who was quick.
 *
 *     bytes sent     2 (G-1) n Hkv d b forward, 2 (G-1) n Hkv d (b + b_g) backward
 *     memory         K, V of all other ranks; backward dQ, and dK, dV of the own tokens, of a part
 *                    that leaves and of one that comes, in float32
 *
 * Interface: the method allgather (its last line).
 */
#include "methods/methods.h"

typedef struct AllGather {
    RingState state;
    RingBuffer K, V; /* of all other ranks, one behind the other */
    RingBlock keys[RING_MAX_RANKS];
    RingExchange mail[RING_MAX_RANKS]; /* one for each round */
    RingBlock q;                       /* of the backward pass */
    RingBuffer delta, dQ;
    RingSums home; /* dK, dV of this rank's keys */
    RingRelay parts;
} AllGather;

/* Starts all messages. In round t the keys of rank r + way * t come, and the own ones go to
 * rank r - way * t. */
static void gather(RingRank *r, AllGather *m, int way)
{
    const RingBlock own = ring_own_keys(r);
    size_t bytes = 0, at = 0;
    for (int t = 1; t < r->world; t++)
        bytes += ring_kv_bytes(r, ring_at(r, t));
    ring_open_buffer(r, &m->K, bytes, "K of all ranks");
    ring_open_buffer(r, &m->V, bytes, "V of all ranks");
    m->keys[0] = own;
    for (int t = 1; t < r->world && !r->failed; t++) {
        const int owner = ring_at(r, way * t);
        const RingKeys buffer = {{(char *)m->K.data + at, 0}, {(char *)m->V.data + at, 0}};
        ring_send_keys(r, &m->mail[t], ring_at(r, -way * t), &own);
        ring_receive_keys(r, &m->mail[t], owner, owner, &buffer, &m->keys[t]);
        ring_start(r, &m->mail[t]);
        at += ring_kv_bytes(r, owner);
    }
}

static void close_gathered(RingRank *r, AllGather *m)
{
    ring_close_buffer(r, &m->K);
    ring_close_buffer(r, &m->V);
}

static int forward(RingRank *r)
{
    AllGather *m = ring_method_state(r, sizeof *m);
    if (!m)
        return -1;
    ring_open_state(r, &m->state);
    for (int t = 0; t < r->world && !r->failed; t++) {
        ring_step(r, t);
        if (t == 0)
            gather(r, m, -1);
        ring_wait(r, &m->mail[t]);
        if (t == r->world - 1)
            ring_see_last_keys(r, &m->state, &m->keys[t]);
        else
            ring_see_keys(r, &m->state, &m->keys[t]);
    }
    close_gathered(r, m);
    ring_close_state(r, &m->state);
    return ring_status(r);
}

/* The own part is the first that is there. */
static void make_own_part(RingRank *r, AllGather *m)
{
    for (int half = 0; half < RING_HALVES && !r->failed; half++) {
        const RingBlock keys = ring_block_half(&m->keys[0], half);
        ring_stream(r, half);
        ring_differentiate(r, &m->q, &keys, m->dQ.data, ring_half(&m->home, 0, half),
                           ring_half(&m->home, 1, half));
    }
    ring_stream(r, RING_BOTH_STREAMS);
}

/* One half of the part that came from another rank. */
static void take_part(RingRank *r, AllGather *m, int half)
{
    ring_stream(r, half);
    ring_relay_arrive(r, &m->parts, half);
    ring_add_sums(r, &m->home, ring_there(&m->parts), half);
}

/* Round t > 0: the part of dK, dV that belongs to rank r + t, half by half. While one half is
 * computed, the other leaves and that half of a part for this rank comes, from rank r - t. */
static void make_part(RingRank *r, AllGather *m, int t)
{
    const RingBlock *k = &m->keys[t];
    RingSums *part = ring_here(&m->parts);
    for (int half = 0; half < RING_HALVES && !r->failed; half++) {
        const RingBlock keys = ring_block_half(k, half);
        ring_stream(r, half);
        if (t > 1)
            take_part(r, m, half);
        part->owner = k->owner;
        ring_clear_half(r, part, half);
        ring_differentiate(r, &m->q, &keys, m->dQ.data, ring_half(part, 0, half),
                           ring_half(part, 1, half));
        ring_relay_send(r, &m->parts, half, k->owner, ring_at(r, -t), r->rank);
    }
    ring_stream(r, RING_BOTH_STREAMS);
}

static int backward(RingRank *r)
{
    AllGather *m = r->method;
    const size_t bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    if (r->world == 1) {
        ring_backward_local(r);
        return ring_status(r);
    }
    ring_open_delta(r, &m->q, &m->delta);
    ring_open_buffer(r, &m->dQ, bytes, "dQ");
    ring_open_sums(r, &m->home, 2, r->nk);
    ring_open_relay(r, &m->parts, 2);
    ring_clear_sums(r, &m->home, r->rank);
    ring_zero(r, m->dQ.data, bytes);
    for (int t = 0; t < r->world && !r->failed; t++) {
        ring_step(r, t);
        if (t == 0)
            gather(r, m, +1);
        ring_wait(r, &m->mail[t]);
        if (t == 0)
            make_own_part(r, m);
        else
            make_part(r, m, t);
    }
    take_part(r, m, 0);
    take_part(r, m, 1);
    ring_stream(r, RING_BOTH_STREAMS);
    ring_give_halves(r, &m->home, ring_there(&m->parts));
    ring_give_dQ(r, &m->dQ);
    return ring_status(r);
}

RING_METHOD(allgather, "every rank gets all keys at once; dK, dV are reduce-scattered", 0);
