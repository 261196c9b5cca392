/* SPDX-License-Identifier: MIT
 *
 * space_lanes.cu: which of a rank's two queues work is put into, and what waits for what.
 *
 * Work has two of them, the lanes of ring_rank.h. What is asked for in both is put into the first,
 * behind the second; what is put into the second afterwards waits for that. One event each way is
 * recorded for it, and only where something new is there to wait for:
 *
 *     lane 0    zeros, delta --+--- half 0 ---------+------ half 0 ---- ... ---+--- dQ
 *     lane 1                   +--- half 1 ----------------- half 1 ---- ... --+
 *
 * Attention in both lanes is half of its heads in each. Heads have nothing in common, so the halves
 * of the next step need not wait for each other:
 *
 *     lane 0    state --+--- heads 0-15 ----- heads 0-15 ----- heads 0-15 --+--- O
 *     lane 1            +--- heads 16-31 ---- heads 16-31 ---- heads 16-31 -+
 *
 * Interface: of RingSpace (ring_world.h) lane; cuda_space_work, cuda_space_join, cuda_space_half,
 * cuda_space_behind_work (space_internal.h).
 */
#include "space_internal.h"

/* What is put into `queue` from here on comes after all that `lane` has by now. */
static int come_after(RingRank *r, cudaStream_t queue, cudaStream_t lane)
{
    cudaEvent_t now;
    if (cuda_space_event(r, &now) != 0 ||
        cuda_space_try(r, cudaEventRecord(now, lane), "an event") != 0)
        return -1;
    return cuda_space_try(r, cudaStreamWaitEvent(queue, now, 0), "another queue");
}

cudaStream_t cuda_space_work(RingRank *r)
{
    CudaSpace *s = cuda_space_of(r);
    if (s->lane == 1) {
        s->apart = 1;
        return s->lanes[1];
    }
    if (s->lane == RING_BOTH_LANES) {
        if (s->apart)
            (void)come_after(r, s->lanes[0], s->lanes[1]);
        s->apart = s->halves = 0;
        s->ahead = 1;
    }
    return s->lanes[0];
}

void cuda_space_join(RingRank *r)
{
    (void)cuda_space_work(r);
}

/* Halves of as many heads as the last ones follow each in its lane; otherwise both wait for all
 * that was asked for before, as all that comes later waits for both. */
void cuda_space_half(RingRank *r, int half, int heads)
{
    CudaSpace *s = cuda_space_of(r);
    if (half == 0 && s->halves != heads)
        cuda_space_join(r);
    s->halves = 0;
    cuda_space_lane(r, half);
    s->halves = half == RING_BOTH_LANES ? heads : 0;
}

/* The point for lane 1 to wait for is here, before lane 0 gets work of its own. */
void cuda_space_lane(RingRank *r, int lane)
{
    CudaSpace *s = cuda_space_of(r);
    if (s->one_lane)
        return;
    if (lane != RING_BOTH_LANES && s->halves)
        cuda_space_join(r);
    if (lane != RING_BOTH_LANES && s->ahead) {
        (void)come_after(r, s->lanes[1], s->lanes[0]);
        s->ahead = 0;
    }
    s->lane = lane;
}

int cuda_space_behind_work(RingRank *r, cudaStream_t queue)
{
    const CudaSpace *s = cuda_space_of(r);
    if (s->lane != 1 && come_after(r, queue, s->lanes[0]) != 0)
        return -1;
    return s->lane == 1 || (s->lane == RING_BOTH_LANES && s->apart)
               ? come_after(r, queue, s->lanes[1])
               : 0;
}
