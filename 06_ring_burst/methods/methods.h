/* SPDX-License-Identifier: MIT
 *
 * methods.h: what several methods share: rings of keys in the forward pass, and sums of gradients
 * that travel in the backward pass, in halves (relay.c).
 *
 * Interface:
 * - RingTour, RingRemote, ring_forward: the forward pass of ring and burst.
 * - RingPlace, RingTree, ring_tree_forward: that of the double rings.
 * - RingSums: float32 sums of one shard, in two halves.
 * - RingRelay: the sums that are here, those that come, and the messages between.
 * - ring_give_halves: the end of a backward pass whose sums have travelled.
 */
#ifndef RING_METHODS_H
#define RING_METHODS_H

#include "runtime/rank.h"

/* --- rings of keys -----------------------------------------------------------------------------*/

/* Blocks go `hops` ranks on in direction `way` (+1 or -1). A window with two sides takes two tours;
 * one of them computes with the own block too. */
typedef struct RingTour {
    int way, hops, first_step, own;
} RingTour;

/* Keys of other ranks: two buffers that are used in turn, and the last block that came. */
typedef struct RingRemote {
    RingKeys buffer[2];
    RingBlock last;
} RingRemote;

/* keep: the last remote blocks stay for the backward pass. */
void ring_forward(RingRank *r, RingState *state, RingRemote *up, RingRemote *down, int keep);

/* Rank node * size + place; `size` ranks on each of `nodes` nodes. */
typedef struct RingPlace {
    int nodes, size;
    int node, place;
} RingPlace;

RingPlace ring_place(const RingRank *r);
/* The rank so many nodes and places further on, both around. */
int ring_place_at(const RingPlace *p, int nodes, int places);

typedef struct RingTree {
    RingKeys inner[2], outer[2];
    RingBlock last; /* lies in outer[last_buffer] */
    int last_buffer;
} RingTree;

void ring_tree_forward(RingRank *r, RingState *state, RingTree *tree, int keep);

/* --- sums that travel --------------------------------------------------------------------------*/

/* float32 sums of one rank's shard, dK and dV or dQ alone, in two halves (rank.h). Half 1 begins at
 * element `second`, whoever's shard it is: the halves of two shards in one place must not
 * overlap, since half 1 of one may be leaving while half 0 of another arrives. */
typedef struct RingSums {
    RingBuffer of[2];
    int tensors;         /* 2: dK and dV. 1: dQ */
    int owner;           /* the rank to which they belong */
    int64_t row, second; /* elements of one token in all batches; of the first half's buffer */
} RingSums;

void ring_open_sums(RingRank *r, RingSums *sums, int tensors, int64_t most_tokens);
void ring_close_sums(RingRank *r, RingSums *sums);
/* The sums become zeros, and those of this owner. */
void ring_clear_sums(RingRank *r, RingSums *sums, int owner);
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
/* A half of the sums in `here` sets out for rank `to`; meanwhile that half of the sums of `owner`
 * comes from rank `from` into `there`. */
void ring_relay_send(RingRank *r, RingRelay *relay, int half, int to, int from, int owner);
/* Waits until a half has come, and the one that was sent with it is gone. Nothing sent, nothing to
 * wait for. */
void ring_relay_arrive(RingRank *r, RingRelay *relay, int half);
/* `there` becomes `here`. */
void ring_relay_exchange(RingRelay *relay);

/* Rounds the sums `of` into `place`, whose content nobody needs any more, or where they stand if it
 * is not open, and hands them over as the rank's gradients. */
void ring_give_halves(RingRank *r, RingSums *of, RingSums *place);

#endif
