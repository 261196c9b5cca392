/* SPDX-License-Identifier: MIT
 *
 * share.h: memory and events of a rank's GPU, told to a rank that is another process.
 *
 * A pointer means nothing in another process. What does is a handle of CUDA IPC: 64 bytes that can
 * be sent, and that the other process opens: memory of another GPU then has an address there too,
 * and its copy engines can read it.
 *
 * Interface:
 * - cuda_share_open, cuda_share_close, cuda_share_release: of the rank's backend.
 * - cuda_share_ready, cuda_share_announce: the sender's side of a message. cuda_share_take: the
 *   receiver's. cuda_share_arrived: the sender's again. cuda_share_event: an event of this rank.
 * - cuda_share_forget: a round begins.
 */
#ifndef RING_BACKEND_SHARE_H
#define RING_BACKEND_SHARE_H

#include "runtime/ring_world.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHARE_HANDLE_BYTES = 64 };

typedef struct ShareNotice { /* what a sender tells: where its data lies, and when it may be read */
    char memory[SHARE_HANDLE_BYTES], ready[SHARE_HANDLE_BYTES];
    int32_t piece, event;   /* their numbers at the sender: the same number, the same handle */
    uint64_t offset, bytes; /* in that memory */
} ShareNotice;

typedef struct ShareReceipt { /* what the receiver answers: when its copy is done */
    char arrived[SHARE_HANDLE_BYTES];
    int32_t event;
} ShareReceipt;

/* Functions return -1 or NULL after ring_fail. */

/* Before the rank has any memory: pieces that can be told to others are made differently. */
int cuda_share_open(RingRank *r);
/* Gives back what was opened of others. All ranks call it before any calls release, which gives
 * back this rank's own events (its memory is the backend's). */
void cuda_share_close(RingRank *r);
void cuda_share_release(RingRank *r);

/* The point of this rank's work at which all memory of `list` may travel: the number of an
 * event. */
int cuda_share_ready(RingRank *r, const RingTransfer *list, int count);
/* [p, p + bytes), to be read behind the point `ready`. */
int cuda_share_announce(RingRank *r, const void *p, size_t bytes, int ready, ShareNotice *notice);
/* Queues a copy from what `peer` has told, behind its point and behind this rank's `ready`. The
 * event at which it has arrived, also as a receipt. */
void *cuda_share_take(RingRank *r, int peer, const ShareNotice *notice, void *to, int ready,
                      ShareReceipt *receipt);
/* The event of a receipt. */
void *cuda_share_arrived(RingRank *r, int peer, const ShareReceipt *receipt);
void *cuda_share_event(RingRank *r, int number);
/* Events are used again from here on. All ranks have ended the last round, and meet before the
 * next message. */
void cuda_share_forget(RingRank *r);

/* A rank of ring_transport_mpi whose backend is a GPU's (this one) has messages
 * that are copies between GPUs from here on. -1 after ring_fail. Only in a build with CUDA. */
int ring_copy_join(RingRank *r);

#ifdef __cplusplus
}
#endif
#endif
