/* SPDX-License-Identifier: MIT
 *
 * messages_mpi.h: one end of the mpi transport: a process that sends and takes messages, and never
 * waits for ever.
 *
 * Interface:
 * - ring_transport_mpi: the transport that is made of it.
 * - mpi_end_open, mpi_end_close: an end, once for each process; all ranks together.
 * - mpi_post, mpi_test: messages that start together; are they complete by now?
 * - MpiNap, mpi_turn: a wait that gets lazier.    - mpi_be_at: where this rank is.
 * - mpi_settle: no message is left anywhere.    - mpi_go, mpi_begin: between runs.
 */
#ifndef RING_MESSAGES_MPI_H
#define RING_MESSAGES_MPI_H

#include <mpi.h>

#include "runtime/ring_world.h"
#include "transports/mpi/heartbeat.h"

extern const RingTransport ring_transport_mpi; /* whose endpoint is an MpiEnd */

typedef struct MpiPart { /* one MPI message */
    int sends, peer, tag, bytes;
    int transfer; /* number in the list that was posted */
} MpiPart;

typedef struct MpiTicket { /* messages that were started together */
    struct MpiTicket *next;
    int count, left;
    MpiPart *part;        /* [count] */
    MPI_Request *request; /* [count], MPI_REQUEST_NULL when done */
    MPI_Status *status;   /* [count], of those that MPI_Testsome found complete, */
    int *index;           /* [count], and which ones they are */
} MpiTicket;

typedef struct MpiEnd {         /* one process's end of all its channels */
    MPI_Comm messages, control; /* from rank to rank in runs; of all ranks together */
    int rank, world;
    int runs; /* that have begun */
    HeartBoard *board;
    double timeout_s;
    size_t piece;                        /* longer messages go in pieces of this size */
    MpiTicket *flying;                   /* a list */
    int64_t sent[RING_MAX_RANKS], taken; /* of this run: to each peer; from all of them */
} MpiEnd;

typedef struct MpiNap { /* a wait that gets lazier */
    double begin;       /* ring_now_ms */
    int turns;
} MpiNap;

/* Channels beside those of the tensors and of results: a meeting of all ranks, and one for each
 * tensor (MPI_RECEIPT_TAG + tensor) in which its receiver says that it has been taken. */
enum { MPI_MEETING_TAG = RING_TENSORS + 1, MPI_RECEIPT_TAG };

/* board: where this process and those beside it write their heartbeats. timeout_s: until the first
 * run has its own. NULL: no memory, or MPI refused. */
MpiEnd *mpi_end_open(HeartBoard *board, double timeout_s);
void mpi_end_close(MpiEnd *end);

/* All of a list, each in its tensor's channel. NULL: the rank failed. */
MpiTicket *mpi_post(RingRank *r, const RingTransfer *list, int count);
/* 1: all are complete, and the ticket is gone; 0: not yet; -1 after ring_fail. Never waits. */
int mpi_test(RingRank *r, MpiTicket *t);
MpiNap mpi_nap_begin(void);

/* One turn of a loop that waits for a ticket which is not complete: tells the board where the rank
 * is (*shown: NULL at first), looks at the clock, and naps. -1 after ring_fail. */
int mpi_turn(RingRank *r, const MpiTicket *t, MpiNap *n, const MpiPart **shown);

/* Where this rank is, on the board. */
void mpi_be_at(RingRank *r, HeartOperation operation, int tensor, int peer);

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
#endif
