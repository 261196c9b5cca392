/* SPDX-License-Identifier: MIT
 *
 * shard.h: how a layout deals out the tokens of a sequence, and which shards can see each other.
 *
 * Interface:
 * - ring_shard_make, ring_shard_free: one rank's share of the queries or of the keys.
 * - ring_shards_class: can the queries of a shard see the keys of another?
 */
#ifndef RING_SHARD_H
#define RING_SHARD_H

#include "ring_burst.h"

/* `map` is the position map of the whole tensor; each of its segments is dealt out for itself.
 * 0, or -1: memory is short. */
int ring_shard_make(RingShard *shard, AttnPositions map, RingLayout layout, int rank, int ranks);
void ring_shard_free(RingShard *shard);

AttnTile ring_shards_class(AttnRule rule, const RingShard *q, const RingShard *k);

#endif
