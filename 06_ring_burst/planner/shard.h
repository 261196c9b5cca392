/* SPDX-License-Identifier: MIT
 *
 * shard.h: how a layout deals out the tokens of a sequence, and which shards can see each other.
 *
 * Interface:
 * - ring_shard_make, ring_shard_free: one rank's share of the queries or of the keys.
 * - ring_run_cut: a part of a shard, run by run. ring_shard_cut: of several, as a shard.
 * - ring_shards_class, ring_pair_class: can the queries of a shard see the keys of another?
 */
#ifndef RING_SHARD_H
#define RING_SHARD_H

#include "attn_pairs.h"
#include "planner/plan.h"

/* `map` is the position map of the whole tensor; each of its segments is dealt out for itself.
 * 0, or -1: memory is short. */
int ring_shard_make(RingShard *shard, AttnPositions map, RingLayout layout, int rank, int ranks);
void ring_shard_free(RingShard *shard);

/* What run number `run` of a shard shares with its local tokens first .. first + tokens - 1, as a
 * run whose local index counts from `first`. 1; 0: nothing. */
int ring_run_cut(const RingShard *shard, int64_t run, int64_t first, int64_t tokens,
                 RingPiece *piece, AttnSegment *segment);
/* Tokens first .. first + tokens - 1 of `count` shards, one behind the other, as a shard of their
 * own without quarters. 0, or -1: memory is short; to be freed all the same. */
int ring_shard_cut(RingShard *cut, const RingShard *shards, int count, int64_t first,
                   int64_t tokens);

AttnTile ring_shards_class(AttnRule rule, const RingShard *q, const RingShard *k);
/* ATTN_TILE_SKIP: no query of rank q sees a key of rank k (position rule only). */
AttnTile ring_pair_class(const RingPlan *plan, int q_rank, int k_rank);

#endif
