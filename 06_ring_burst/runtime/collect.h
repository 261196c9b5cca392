/* SPDX-License-Identifier: MIT
 *
 * collect.h: between the whole attention in host memory and the shards of the ranks.
 *
 * Interface:
 * - ring_shard_read: a rank's shard of an input, contiguous, in its own memory.
 * - ring_collect_forward, ring_collect_backward: results of all ranks into the whole tensors on
 *   rank 0. All ranks call them.
 * - ring_collect_times: the slowest rank's times.
 */
#ifndef RING_COLLECT_H
#define RING_COLLECT_H

#include "runtime/ring_world.h"

/* to [B][shard tokens][heads][d] = those tokens of `from`, whatever its strides. */
int ring_shard_read(RingRank *r, void *to, const Tensor *from, const RingShard *shard);

int ring_collect_forward(RingRank *r, const RingTask *task);
int ring_collect_backward(RingRank *r, const RingTask *task);

/* ms [count]: this rank's; on rank 0 afterwards the largest of all ranks. */
int ring_collect_times(RingRank *r, double *ms, int count);

#endif
