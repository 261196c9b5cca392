/* SPDX-License-Identifier: MIT
 *
 * heartbeat.h: a notice board that all processes of an mpirun can see, one slot for each rank.
 *
 * A process that has crashed cannot say where it was, and mpirun then ends all the others. So each
 * rank writes beforehand, before every step and every wait, where it is: pass, step, operation.
 * That is one store to shared memory, nobody takes part in it, and it outlives the writer: the
 * first rank that mpirun tells to end reads it.
 *
 * The board is a file without a name (memfd), opened as /proc/PID/fd/N of its maker, so nothing is
 * left behind whatever dies. Each field has one writer, except `told`, which is won by the first
 * who asks.
 *
 * Interface:
 * - heart_create, heart_open, heart_close: the board.
 * - heart_join, heart_place, heart_end: what a rank tells about itself.
 * - heart_silence: how long has nobody moved?
 * - heart_report, heart_reported: the sentence for the user, said once.
 * - heart_blame, heart_is_stopped: who is it that all are waiting for? heart_describe: how is a
 *   rank, and where? heart_explain: who is to be named?
 * heart_crash is safe in a signal handler.
 */
#ifndef RING_HEARTBEAT_H
#define RING_HEARTBEAT_H

#include <sys/types.h>

#include "planner/plan.h"

typedef enum HeartState {
    HEART_ABSENT, /* on another machine, which has a board of its own */
    HEART_ALIVE,
    HEART_DONE /* has ended as it should */
} HeartState;

typedef enum HeartOperation {
    HEART_IDLE,    /* inputs, checks: step 0 before the first run, 1 between two */
    HEART_COMPUTE, /* in a step, not waiting */
    HEART_RECEIVE, /* waiting for `tensor` from `peer` */
    HEART_SEND,    /* waiting for `peer` to take `tensor` */
    HEART_MEET     /* waiting for all ranks */
} HeartOperation;

typedef struct HeartPlace {
    RingPass pass;
    int step;
    HeartOperation operation;
    int tensor, peer; /* tensor: RingTensor, or RING_TENSORS for results on their way to rank 0 */
} HeartPlace;

typedef struct HeartSlot {
    int64_t pid;
    int32_t state;   /* HeartState */
    int32_t signal;  /* that it crashed of; 0: none */
    uint64_t place;  /* a HeartPlace in one word: never half written */
    int64_t since;   /* ns, CLOCK_MONOTONIC, of the last change of place */
    int64_t stopped; /* ns, when it was told to end (SIGTERM); 0: never */
    int64_t outside; /* ns, when somebody else than mpirun told it so; 0: never */
} HeartSlot;

typedef struct HeartBoard {
    int32_t ranks;
    int32_t teller; /* 1: somebody is writing `told`; 2: it is written */
    char told[512]; /* before it is written: which case it will be about (ring_mpi_case), or "" */
    HeartSlot slot[RING_MAX_RANKS];
} HeartBoard;

/* NULL: no memory. path: for heart_open in other processes of this machine. */
HeartBoard *heart_create(int ranks, char path[64]);
HeartBoard *heart_open(const char *path);
void heart_close(HeartBoard *board);

void heart_join(HeartBoard *board, int rank);
void heart_place(HeartBoard *board, int rank, HeartPlace place);
double heart_silence(const HeartBoard *board); /* s since any rank has come to another place */
HeartPlace heart_read(const HeartBoard *board, int rank);
void heart_crash(HeartBoard *board, int rank, int signal);
/* Rank `rank` was told to end: by its mpirun, or by somebody else (from outside). */
void heart_stop(HeartBoard *board, int rank, int from_outside);
void heart_end(HeartBoard *board, int rank); /* as it should */

/* 1: text is now what the user will be told; 0: somebody was first. */
int heart_report(HeartBoard *board, const char *text);
const char *heart_reported(const HeartBoard *board); /* "" */

/* Rank `rank` has waited too long. Follows who waits for whom from there on, and says in text where
 * that ends ("; rank 2 is stopped at ..."). Returns the rank at the end: one that does not wait, or
 * of a circle the one that is furthest behind. */
int heart_blame(const HeartBoard *board, int rank, char *text, size_t room);
int heart_is_stopped(const HeartBoard *board, int rank); /* by SIGSTOP or a debugger */
/* "rank 2 is stopped at forward step 3, computing for 4.1 s" */
void heart_describe(const HeartBoard *board, int rank, char *text, size_t room);
/* Some rank ended badly, and the rest with it: which one, and where was it? */
void heart_explain(const HeartBoard *board, char *text, size_t room);
#endif
