/* SPDX-License-Identifier: MIT
 *
 * transport_nccl.h: messages between GPUs by NCCL's send and receive, one GPU a rank.
 *
 * Interface:
 * - ring_transport_nccl: the transport. Its host memory, barriers and failures go by another one
 *   (threads of a process, or MPI), which ring_nccl_join gets with the rank.
 * - ring_nccl_join, ring_nccl_part: a rank's communicator, made and given back.
 */
#ifndef RING_TRANSPORT_NCCL_H
#define RING_TRANSPORT_NCCL_H

#include "runtime/ring_world.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const RingTransport ring_transport_nccl;

/* The rank's backend is open, its transport and endpoint are those for host memory; afterwards they
 * are NCCL's. All ranks call it; -1 after ring_fail. */
int ring_nccl_join(RingRank *r);
/* Undoes it; after a failed join too. */
void ring_nccl_part(RingRank *r);

#ifdef __cplusplus
}
#endif
#endif
