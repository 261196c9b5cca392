/* SPDX-License-Identifier: MIT
 *
 * relay.h: what travels in backward passes: sums of gradients that many ranks add to, in halves
 * (relay.c), and queries (queries.c).
 *
 * Interface:
 * - RingSums: float32 sums of one shard, in two halves.
 * - RingRelay: the sums that are here, those that come, and the messages between.
 * - ring_give_halves: the end of a backward pass whose sums have travelled.
 * - RingQueries: receive buffers for one remote block, and its messages; ring_open_split_delta.
 */
#ifndef RING_RELAY_H
#define RING_RELAY_H

#include "methods/methods.h"

/* float32 sums of one shard, dK and dV or dQ alone, in two halves (ring_rank.h). Half 1 begins at
 * element `second`, whoever's shard it is: the halves of two shards in one place must not
 * overlap, since half 1 of one may be leaving while half 0 of another arrives. */
typedef struct RingSums {
    RingBuffer of[2];
    int tensors;            /* 2: dK and dV. 1: dQ */
    const RingShard *shard; /* that they belong to */
    int64_t row, second;    /* elements of one token in all batches; of the first half's buffer */
} RingSums;

void ring_open_sums(RingRank *r, RingSums *sums, int tensors, int64_t most_tokens);
void ring_close_sums(RingRank *r, RingSums *sums);
/* The sums become zeros, and those of this shard. */
void ring_clear_sums(RingRank *r, RingSums *sums, const RingShard *shard);
void ring_clear_half(RingRank *r, const RingSums *sums, int half);
float *ring_half(const RingSums *sums, int tensor, int half);
void ring_add_sums(RingRank *r, RingSums *to, const RingSums *from, int half);

typedef struct RingRelay {
    RingSums place[2];
    int at; /* place[at] is here, the other one there */
    RingExchange mail[RING_HALVES];
    RingSums *coming[RING_HALVES]; /* the place that a half is on its way to; NULL: none */
} RingRelay;

static inline RingSums *ring_here(RingRelay *relay)
{
    return &relay->place[relay->at];
}

static inline RingSums *ring_there(RingRelay *relay)
{
    return &relay->place[1 - relay->at];
}

void ring_open_relay(RingRank *r, RingRelay *relay, int tensors);
void ring_close_relay(RingRank *r, RingRelay *relay);
/* A half of the sums in `here` sets out for rank `to`; meanwhile that half of the sums of
 * `shard` comes from rank `from` into `there`. */
void ring_relay_send(RingRank *r, RingRelay *relay, int half, int to, int from,
                     const RingShard *shard);
/* Waits until a half has come, and the one that was sent with it is gone. Nothing sent, nothing to
 * wait for. */
void ring_relay_arrive(RingRank *r, RingRelay *relay, int half);
/* `there` becomes `here`. */
void ring_relay_turn(RingRelay *relay);

/* Rounds the sums `of` into `place`, whose content nobody needs any more, or where they stand if it
 * is not open, and hands them over as the rank's gradients. */
void ring_give_halves(RingRank *r, RingSums *of, RingSums *place);

/* --- queries -----------------------------------------------------------------------------------*/

typedef struct RingQueries { /* receive buffers for Q, dO, lse and delta of any rank */
    RingBuffer Q, dO, lse, delta;
} RingQueries;

/* The first `count` of some buffers; those that are open stay. */
void ring_open_queries(RingRank *r, RingQueries *buffers, int count);
void ring_send_queries(RingRank *r, RingExchange *x, int peer, const RingBlock *q);
void ring_receive_queries(RingRank *r, RingExchange *x, int peer, int owner,
                          const RingQueries *buffer, RingBlock *arriving);
/* As ring_open_delta, with lse and delta in halves; O is given back. */
void ring_open_split_delta(RingRank *r, RingBlock *q, RingBuffer *lse, RingBuffer *delta);

#endif
