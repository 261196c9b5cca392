/* SPDX-License-Identifier: MIT
 *
 * transport_nccl.h: messages between GPUs by NCCL's send and receive, one GPU a rank.
 *
 * Interface:
 * - ring_nccl_join, ring_nccl_part: a rank's communicator, made and given back. Host memory,
 *   barriers and failures stay with the rank's transport (threads of a process, or MPI).
 */
#ifndef RING_TRANSPORT_NCCL_H
#define RING_TRANSPORT_NCCL_H

#include "runtime/ring_world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The rank's backend is open; afterwards NCCL carries its messages. All ranks call it; -1 after
 * ring_fail. */
int ring_nccl_join(RingRank *r);
/* Undoes it; after a failed join too. */
void ring_nccl_part(RingRank *r);

#ifdef __cplusplus
}
#endif
#endif
