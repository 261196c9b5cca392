/* SPDX-License-Identifier: MIT
 *
 * schedule.h: what each rank does in a pass, in order, without doing it: start a message, compute a
 * pair of blocks, wait for a message. The methods' own files do the work; here is their timetable,
 * from which the cost model predicts times, and --trace draws who has which block. That it is the
 * same timetable is tested: messages, bytes and pairs of blocks of a simulated run are compared.
 *
 * Interface: RingAction, RingMessage, RingSchedule, ring_schedule_make, ring_schedule_run,
 * ring_schedule_free; for the files that write timetables: ring_schedule_....
 */
#ifndef RING_SCHEDULE_H
#define RING_SCHEDULE_H

#include "planner/cost.h"

typedef enum RingActionKind { RING_ACT_START, RING_ACT_COMPUTE, RING_ACT_WAIT } RingActionKind;

typedef struct RingAction {
    RingActionKind kind;
    int step;
    int message;          /* start, wait */
    int q_owner, k_owner; /* compute; -1: small work on memory alone */
    int half;             /* compute: of what has its gradients on the way; -1 = all of it */
    int stream;           /* it comes after and before what belongs to this half; -1 = to any */
    double heads;         /* compute: share of the heads, 1 but for Ulysses */
    RingWork work;
    double bytes; /* of memory beside the products: states, sums, copies */
    double after; /* ... and when everything before it is done */
    double start, end;
} RingAction;

typedef struct RingMessage {
    int from, to, step;
    RingTensor tensor;
    int64_t bytes;
    int ends_ready, travels; /* 0, 1, 2 ends; 1: start and end are known */
    double start, end;
} RingMessage;

typedef struct RingOpen {
    int slot, message;
} RingOpen;

typedef struct RingSchedule {
    const RingPlan *plan;
    RingPass pass;
    int ranks;
    RingAction *actions[RING_MAX_RANKS];
    int64_t count[RING_MAX_RANKS], room[RING_MAX_RANKS];
    RingMessage *messages;
    int64_t message_count, message_room;
    /* Messages of a rank that are started and not waited for yet. */
    RingOpen *open[RING_MAX_RANKS];
    int64_t open_count[RING_MAX_RANKS], open_room[RING_MAX_RANKS];
    int no_memory;
} RingSchedule;

/* 0, or -1: no memory. */
int ring_schedule_make(RingSchedule *s, const RingPlan *plan, RingPass pass);
void ring_schedule_free(RingSchedule *s);
/* Plays it: fills start and end of all actions and messages. Returns the end, in seconds; -1: no
 * memory. */
double ring_schedule_run(RingSchedule *s, const RingRates *rates);

/* --- for schedule_*.c --------------------------------------------------------------------------*/

/* Slots: what a method keeps in one RingExchange each. */
enum {
    RING_SLOT_BLOCK,
    RING_SLOT_OUTER,
    RING_SLOT_SUM, /* and half 1 */
    RING_SLOT_SUM_1,
    RING_SLOT_CARRY, /* of a double ring */
    RING_SLOT_CARRY_1,
    RING_SLOT_LATER /* + t: keys of round t */
};

/* A message starts now at both ends; none for 0 bytes or to itself. */
void ring_schedule_message(RingSchedule *s, int slot, int step, int from, int to, RingTensor tensor,
                           int64_t bytes);
/* A shard's K and V, or Q, dO, lse and delta. Half (or, -1, all) of its sums: dK and dV, or dQ. */
void ring_schedule_block(RingSchedule *s, int queries, int slot, int step, int from, int to,
                         int owner);
void ring_schedule_sum(RingSchedule *s, int queries, int slot, int half, int step, int from, int to,
                       int owner);
/* The rank waits for all its messages of the slot. */
void ring_schedule_wait(RingSchedule *s, int slot, int step, int rank);
void ring_schedule_wait_all(RingSchedule *s, int slot, int step); /* all ranks */
void ring_schedule_compute(RingSchedule *s, int step, int rank, int q_owner, int k_owner, int half);
/* Do queries (burst) travel in this pass, or keys? Tokens of a half; -1 is all of them. */
int ring_queries_travel(const RingSchedule *s);
int64_t ring_part_of(int64_t tokens, int half);
/* half: what it belongs to; -1 is all. */
void ring_schedule_memory(RingSchedule *s, int step, int rank, int half, double bytes);

void ring_schedule_flat(RingSchedule *s);   /* ring, burst */
void ring_schedule_gather(RingSchedule *s); /* allgather */
void ring_schedule_ulysses(RingSchedule *s);
void ring_schedule_double(RingSchedule *s); /* ring-double, burst-double */

#endif
