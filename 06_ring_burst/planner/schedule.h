/* SPDX-License-Identifier: MIT
 *
 * schedule.h: what each rank does in a pass, in order, without doing it: start a message, compute a
 * pair of blocks, wait for a message. A method writes its timetable itself (rehearse.c); from it
 * the cost model predicts times, and --trace draws who has which block.
 *
 * Interface: RingAction, RingMessage, RingSchedule, ring_schedule_make, ring_schedule_run,
 * ring_schedule_free.
 */
#ifndef RING_SCHEDULE_H
#define RING_SCHEDULE_H

#include "planner/cost.h"

typedef enum RingActionKind {
    RING_ACT_START,
    RING_ACT_COMPUTE,
    RING_ACT_MEMORY, /* small work: copies and sums */
    RING_ACT_WAIT
} RingActionKind;

typedef struct RingAction {
    RingActionKind kind;
    int step;
    int message;   /* start, wait */
    RingSpan q, k; /* compute */
    double heads;  /* compute: share of the heads, 1 but for Ulysses */
    RingWork work;
    double bytes; /* of memory beside the products: states, sums, copies */
    double start, end;
} RingAction;

typedef struct RingMessage {
    int from, to, step; /* step and order: of the sender */
    int order;          /* of messages that are ready at one time the lowest leaves first */
    RingTensor tensor;
    int64_t bytes;
    int next;                /* while a timetable is made: between the same two ranks */
    int ends_ready, travels; /* 0, 1, 2 ends; 1: start and end are known */
    double start, end;
} RingMessage;

typedef struct RingSchedule {
    const RingPlan *plan;
    RingPass pass;
    int ranks;
    RingAction *actions[RING_MAX_RANKS];
    int count[RING_MAX_RANKS], room[RING_MAX_RANKS];
    RingMessage *messages;
    int message_count, message_room;
} RingSchedule;

/* 0, or -1: no memory. */
int ring_schedule_make(RingSchedule *s, const RingPlan *plan, RingPass pass);
void ring_schedule_free(RingSchedule *s);
/* Plays it: fills start and end of all actions and messages. Returns the end, in seconds; -1: no
 * memory. */
double ring_schedule_run(RingSchedule *s, const RingRates *rates);

#endif
