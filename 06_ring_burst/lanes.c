/* SPDX-License-Identifier: MIT
 *
 * lanes.c: two queues of work for one rank, and what must not meet in them.
 *
 * A GPU's kernel is done when its last block of threads is, and until then more and more
 * multiprocessors have nothing to do. A kernel behind it in the same queue has to wait; one in
 * another queue takes them at once. So each half of a sum that travels (relay.c) has a lane:
 *
 *     one queue     half 0 ======--- half 1 ======---        --- some multiprocessors are idle
 *     lane 0        half 0 ======+
 *     lane 1                half 1 +=====+---
 *     lane 0, next step             half 0 +=====
 *
 * (Attention that is asked for in both lanes a GPU deals out to them by itself, half of the heads
 * to each: cuda/space_lanes.cu. The rest of this file is about lanes that a method asks for.)
 *
 * The price: nothing orders one lane and the other. What lane 0 writes lane 1 must not touch, until
 * something is asked for in both. On a GPU a mistake would show now and then, on a CPU never, since
 * there work is done when its function returns. So here every use of memory in a lane is noted, and
 * the other lane's uses are compared with it: a mistake is an error in every run on a CPU.
 *
 * Interface: ring_lane (ring_rank.h), ring_lane_use, ring_lane_meet, ring_lanes_forget
 * (ring_world.h).
 */
#include <stdlib.h>

#include "ring_world.h"

void ring_lane(RingRank *r, int lane)
{
    if (r->failed)
        return;
    if (lane < RING_BOTH_LANES || lane >= RING_LANES) {
        ring_fail(r, "there is no lane %d", lane);
        return;
    }
    r->log->lane = lane;
    if (r->space->lane)
        r->space->lane(r, lane);
}

static int overlaps(const RingLaneUse *use, const char *from, size_t bytes)
{
    return from < use->data + use->bytes && use->data < from + bytes;
}

/* Notes a use of this lane; a list of some dozen, since work in both lanes empties it. */
static int note(RingRank *r, const char *from, size_t bytes, RingUse how)
{
    RingLaneList *list = &r->log->used[r->log->lane];
    for (int n = 0; n < list->count; n++)
        if (list->uses[n].data == from && list->uses[n].bytes == bytes && list->uses[n].how == how)
            return 0;
    if (list->count == list->room) {
        const int room = 2 * list->room + 16;
        RingLaneUse *more = realloc(list->uses, (size_t)room * sizeof *more);
        if (!more)
            return ring_fail(r, "out of memory for what a lane uses");
        list->uses = more;
        list->room = room;
    }
    list->uses[list->count++] = (RingLaneUse){from, bytes, how};
    return 0;
}

/* Two that read do not hurt each other, nor do two that add: the GPU adds to dQ atomically, and the
 * sum is the same in any order, but for rounding. */
int ring_lane_meet(RingRank *r, const void *p, size_t bytes, RingUse how, const char *who)
{
    const RingLog *log = r->log;
    if (log->lane == RING_BOTH_LANES || bytes == 0)
        return 0;
    const RingLaneList *other = &log->used[1 - log->lane];
    for (int n = 0; n < other->count; n++)
        if ((how != other->uses[n].how || how == RING_WRITES) &&
            overlaps(&other->uses[n], p, bytes))
            return ring_fail(r, "%s in lane %d %s memory that lane %d %s", who, log->lane,
                             how == RING_READS ? "reads" : "writes", 1 - log->lane,
                             other->uses[n].how == RING_READS ? "reads" : "writes");
    return note(r, p, bytes, how);
}

/* Nothing is over with a use of no bytes: a GPU is not asked for it, and its lanes do not meet. */
int ring_lane_use(RingRank *r, const void *p, size_t bytes, RingUse how, const char *who)
{
    if (r->log->lane == RING_BOTH_LANES && bytes > 0)
        ring_lanes_forget(r->log);
    return ring_lane_meet(r, p, bytes, how, who);
}

void ring_lanes_forget(RingLog *log)
{
    for (int lane = 0; lane < RING_LANES; lane++)
        log->used[lane].count = 0;
}
