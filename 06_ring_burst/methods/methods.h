/* SPDX-License-Identifier: MIT
 *
 * methods.h: what the methods share. All of them move blocks of keys or of queries between ranks,
 * and most move sums of gradients behind them (relay.h); they differ in who moves where and when.
 *
 * A rank that has failed does nothing any more: all functions here and in ring_rank.h look at
 * r->failed first. So a method is written straight on, as if all went well. It asks once in each
 * round of a loop, and where memory may be missing.
 *
 * Interface:
 * - ring_at: the rank some places further on.
 * - ring_most_bytes: of any rank.
 * - RingKeys: receive buffers for one remote block, and its messages.
 * - RingState: O while it grows.
 * - RingRemote, ring_forward: the forward pass of ring and burst.
 * - RingPlace, RingTree, ring_tree_forward: that of the double rings.
 * - ring_open_delta, ring_give_...: the beginning and the end of a backward pass.
 * - ring_table ...: the methods.
 */
#ifndef RING_METHODS_H
#define RING_METHODS_H

#include "runtime/ring_rank.h"

extern const RingMethodTable ring_table, burst_table, allgather_table, ulysses_table,
    ring_double_table, burst_double_table, ring_minimal_table;

/* The rank `distance` places further on in the ring; negative: back. */
static inline int ring_at(const RingRank *r, int distance)
{
    return ((r->rank + distance) % r->world + r->world) % r->world;
}

static inline int ring_status(const RingRank *r)
{
    return r->failed ? -1 : 0;
}

/* --- memory ------------------------------------------------------------------------------------*/

/* Of the largest shard of any rank; bytes: ring_q_bytes, ring_kv_bytes or ring_row_bytes. */
size_t ring_most_bytes(const RingRank *r, size_t (*bytes)(const RingRank *, int));

/* --- blocks that travel ------------------------------------------------------------------------*/

typedef struct RingKeys { /* receive buffers for K and V of any rank */
    RingBuffer K, V;
} RingKeys;

/* The first `count` of some buffers; those that are open stay. */
void ring_open_keys(RingRank *r, RingKeys *buffers, int count);
void ring_close_keys(RingRank *r, RingKeys *buffers, int count);

/* Add the messages of a block to an exchange. *arriving: what will stand in `buffer` after it. */
void ring_send_keys(RingRank *r, RingExchange *x, int peer, const RingBlock *k);
void ring_receive_keys(RingRank *r, RingExchange *x, int peer, int owner, const RingKeys *buffer,
                       RingBlock *arriving);

/* --- forward -----------------------------------------------------------------------------------*/

/* Attention of this rank's queries over the keys seen so far; lse is r->lse. */
typedef struct RingState {
    RingBlock q;
    RingBuffer O, rows;
} RingState;

void ring_open_state(RingRank *r, RingState *state);
void ring_see_keys(RingRank *r, RingState *state, const RingBlock *k);
/* No others come after them: O may become r->O on the way. */
void ring_see_last_keys(RingRank *r, RingState *state, const RingBlock *k);
void ring_close_state(RingRank *r, RingState *state); /* r->O = the state, rounded */

/* Keys of other ranks: two buffers that are used in turn, and the last block that came. */
typedef struct RingRemote {
    RingKeys buffer[2];
    RingBlock last;
} RingRemote;

/* keep: the last remote blocks stay for the backward pass. */
void ring_forward(RingRank *r, RingState *state, RingRemote *up, RingRemote *down, int keep);

/* --- two levels --------------------------------------------------------------------------------*/

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

/* --- backward ----------------------------------------------------------------------------------*/

/* *q: this rank's queries with delta, which lies in `delta`. */
void ring_open_delta(RingRank *r, RingBlock *q, RingBuffer *delta);

/* A gradient in the dtype becomes r->dQ, or r->dK and r->dV. The buffers are empty then. */
void ring_hand_over_dQ(RingRank *r, RingBuffer *dQ);
void ring_hand_over_dKV(RingRank *r, RingBuffer *dK, RingBuffer *dV);
/* The same for finished sums, which are rounded. */
void ring_give_dQ(RingRank *r, RingBuffer *dQ);
void ring_give_dKV(RingRank *r, RingBuffer *dK, RingBuffer *dV);
/* Nothing has to travel: all of it. */
void ring_backward_local(RingRank *r, const RingBlock *q);

#endif
