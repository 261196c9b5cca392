/* SPDX-License-Identifier: MIT
 *
 * messages_mpi.h: one end of the mpi transport: a process that sends and takes messages, and never
 * waits for ever.
 *
 * Interface:
 * - ring_transport_mpi: the transport that is made of it.
 * - mpi_end_open, mpi_end_close: an end, once for each process; all ranks together.
 * - mpi_post, mpi_finish: messages that start together; all of them are complete.
 * - mpi_test: are they complete by now?
 * - ring_copy_join: from here on messages are copies between GPUs.
 * - mpi_settle: no message is left anywhere.
 * - mpi_go, mpi_begin: between runs. mpi_abort: the end of all processes.
 */
#ifndef RING_MESSAGES_MPI_H
#define RING_MESSAGES_MPI_H

#include "runtime/ring_world.h"
#include "transports/mpi/heartbeat.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const RingTransport ring_transport_mpi; /* whose endpoint is an MpiEnd */

typedef struct MpiEnd MpiEnd;
typedef struct MpiTicket MpiTicket;

/* Channels beside those of the tensors and of results: a meeting of all ranks, and one for each
 * tensor (MPI_RECEIPT_TAG + tensor) in which its receiver says that it has been taken. */
enum { MPI_MEETING_TAG = RING_TENSORS + 1, MPI_RECEIPT_TAG };

/* board: where this process and those beside it write their heartbeats. timeout_s: until the first
 * run has its own. NULL: no memory, or MPI refused. */
MpiEnd *mpi_end_open(HeartBoard *board, double timeout_s);
void mpi_end_close(MpiEnd *end);

/* All of a list, each in its tensor's channel. NULL: the rank failed. */
MpiTicket *mpi_post(RingRank *r, const RingTransfer *list, int count);
/* Returns when all are complete; the ticket is gone then. The times of completion go to list (may
 * be NULL). -1 after ring_fail: too late, or wrong sizes. */
int mpi_finish(RingRank *r, MpiTicket *t, RingTransfer *list);
/* 1: all are complete, and the ticket is gone; 0: not yet; -1 after ring_fail. Never waits. */
int mpi_test(RingRank *r, MpiTicket *t);
/* Where this rank is, on the board. */
void mpi_be_at(RingRank *r, HeartOperation operation, int tensor, int peer);

/* A rank of ring_transport_mpi whose backend is a GPU's (share.h is open) has messages
 * that are copies between GPUs from here on. -1 after ring_fail. Only in a build with CUDA. */
int ring_copy_join(RingRank *r);

/* The run is over, on all ranks. -1 after ring_fail: a message was left over. */
int mpi_settle(RingRank *r);

/* Rank 0 says what comes next, a run (a number that the run has, above 0) or the end, and the
 * others wait for that as long as it takes: rank 0 may still be checking the results of the run
 * before. Returns what rank 0 said: `next`, or MPI_GIVES_UP. A rank that means another run than
 * rank 0 ends all processes, unless rank 0 is at a later line of --cases: MPI_PASSED. */
enum {
    MPI_ENDS = 0,
    MPI_GIVES_UP = -1 /* an end that may come early; the user has been told why */
};
int mpi_go(MpiEnd *end, int next);
void mpi_begin(MpiEnd *end, RingRank *r); /* before a run */
void mpi_abort(const char *text);         /* reports it, ends all processes; does not return */

#ifdef __cplusplus
}
#endif
#endif
