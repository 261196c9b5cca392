/* SPDX-License-Identifier: MIT
 *
 * mpi_end.h: what messages_mpi.c and settle_mpi.c share: one process's end of all its channels.
 *
 * Interface:
 * - struct MpiEnd, struct MpiTicket: what is under way.
 * - MpiNap, mpi_nap, mpi_turn: a wait that gets lazier.
 */
#ifndef RING_MPI_END_H
#define RING_MPI_END_H

#include <mpi.h>

#include "transports/mpi/messages_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MpiPart { /* one MPI message */
    int sends, peer, tag, bytes;
    int transfer; /* number in the list that was posted */
} MpiPart;

struct MpiTicket { /* messages that were started together */
    MpiTicket *next;
    int count, left;
    MpiPart *part;        /* [count] */
    MPI_Request *request; /* [count], MPI_REQUEST_NULL when done */
    MPI_Status *status;   /* [count], of those that MPI_Testsome found complete, */
    int *index;           /* [count], and which ones they are */
};

struct MpiEnd {
    MPI_Comm messages, control; /* from rank to rank in runs; of all ranks together */
    int rank, world;
    int runs; /* that have begun */
    HeartBoard *board;
    double timeout_s;
    size_t piece;                        /* longer messages go in pieces of this size */
    MpiTicket *flying;                   /* a list */
    int64_t sent[RING_MAX_RANKS], taken; /* of this run: to each peer; from all of them */
};

typedef struct MpiNap {
    double begin; /* ring_now_ms */
    int turns;
} MpiNap;

MpiNap mpi_nap_begin(void);
void mpi_nap(MpiNap *n);
double mpi_nap_seconds(const MpiNap *n); /* since the beginning */

/* One turn of a loop that waits for a ticket which is not complete: tells the board where the rank
 * is (*shown: NULL at first), looks at the clock, and naps. -1 after ring_fail. */
int mpi_turn(RingRank *r, const MpiTicket *t, MpiNap *n, const MpiPart **shown);

/* All ranks call them. -1 after ring_fail. sent_to_me [world]: how many messages each rank has sent
 * to this one in the run. */
int mpi_barrier(RingRank *r);
int mpi_tell_counts(RingRank *r, int64_t *sent_to_me);

const char *mpi_tag_name(int tag);

#ifdef __cplusplus
}
#endif
#endif
