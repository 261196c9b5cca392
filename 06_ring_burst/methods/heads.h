/* SPDX-License-Identifier: MIT
 *
 * heads.h: the two ways to deal out a tensor, by tokens and by heads, and the way between them.
 *
 *     mine  [B][this rank's tokens][all heads][d]
 *     whole [B][all tokens][this rank's heads][d], tokens in the order of their ranks
 *
 * Interface:
 * - RingHeads, ring_query_heads, ring_key_heads: who has which heads.
 * - ring_whole_count, ring_packed_bytes: sizes.
 * - ring_send_mine: mine -> whole. ring_send_whole, then ring_place_whole: whole -> mine.
 * - ring_send_rows: lse, whole -> mine.
 */
#ifndef RING_HEADS_H
#define RING_HEADS_H

#include "runtime/rank.h"

typedef struct RingHeads {
    const int64_t *tokens; /* of each rank */
    int64_t heads, share;  /* of the attention; of one rank */
    int64_t mine, whole;   /* tokens of this rank; of all */
    int copies; /* ranks that have the same head: more than 1 when ranks outnumber them */
} RingHeads;

RingHeads ring_query_heads(const RingRank *r);
RingHeads ring_key_heads(const RingRank *r);

int64_t ring_whole_count(const RingRank *r, const RingHeads *h); /* elements of a whole */
/* Buffer for what is packed for other ranks, or comes packed from them. */
size_t ring_packed_bytes(const RingRank *r, const RingHeads *h);

/* Adds the messages from mine to everybody's whole; the own part is copied. */
void ring_send_mine(RingRank *r, RingExchange *x, RingTensor tensor, const RingHeads *h,
                    const void *mine, void *packed, void *whole);
/* The way back: messages, and after their arrival the parts in their places. Copies of a head are
 * added in float32. */
void ring_send_whole(RingRank *r, RingExchange *x, RingTensor tensor, const RingHeads *h,
                     const void *whole, void *packed);
void ring_place_whole(RingRank *r, const RingHeads *h, const void *whole, void *packed, void *mine);
/* lse: whole [B][share][all tokens] to mine [B][H][tokens]. */
void ring_send_rows(RingRank *r, RingExchange *x, const RingHeads *h, const float *whole,
                    float *packed, float *mine);

#endif
