/* SPDX-License-Identifier: MIT
 *
 * schedule_flat.c: the timetables of ring, burst and ring-minimal. Each step of ring and burst: the
 * next block starts on its way, the current one is computed, then the rank waits for the next one.
 *
 *     forward       K, V of owner r - t go on to r + 1             compute (r, r - t)
 *     ring, back    K, V of owner r - t go back to r - 1           half 0 of its dK, dV: wait for
 *                                                                  the sum, add, pass it on; half 1
 *     burst, back   Q, dO, lse, delta of owner r - t go on         the same with halves of its dQ
 *
 * Interface: ring_schedule_flat (schedule.h).
 */
#include "planner/schedule.h"

/* % of a negative number is negative in C, hence twice. */
static int wrap(const RingSchedule *s, int rank)
{
    return (rank % s->ranks + s->ranks) % s->ranks;
}

static int is_burst(const RingSchedule *s)
{
    const RingSetup *setup = &s->plan->setup;
    return ring_method_on(setup->method, s->ranks, setup->nodes) == RING_METHOD_BURST;
}

/* `owner` says how large the block is, from and to who carries it. */
static void send_keys(RingSchedule *s, int step, int from, int to, int owner)
{
    ring_schedule_block(s, 0, RING_SLOT_BLOCK, step, from, to, owner);
}

static void send_queries(RingSchedule *s, int step, int from, int to, int owner)
{
    ring_schedule_block(s, 1, RING_SLOT_BLOCK, step, from, to, owner);
}

static void send_sum(RingSchedule *s, int step, int half, int from, int to, int owner)
{
    const int queries = is_burst(s);
    ring_schedule_sum(s, queries, RING_SLOT_SUM + half, half, step, from, to, owner);
}

/* skip_own: the own block is computed by the ring in the other direction. */
static void forward(RingSchedule *s, int first_step, int way, int hops, int skip_own)
{
    for (int t = 0; t <= hops; t++) {
        const int step = first_step + t;
        for (int r = 0; r < s->ranks && t < hops; r++)
            send_keys(s, step, r, wrap(s, r + way), wrap(s, r - way * t));
        for (int r = 0; r < s->ranks; r++)
            if (t > 0 || !skip_own)
                ring_schedule_compute(s, step, r, r, wrap(s, r - way * t), -1);
        ring_schedule_wait_all(s, RING_SLOT_BLOCK, step);
    }
}

/* The turn of ring.c, sentence by sentence: keys leave at once; each half of the sums is waited
 * for, added to, passed on. Whoever changes the order there has to change it here, and a test that
 * compares both will say so. */
static void ring_backward(RingSchedule *s, int first_step, int way, int hops, int skip_own)
{
    for (int t = hops; t >= 0; t--) {
        const int step = first_step + hops - t;
        for (int r = 0; r < s->ranks && t > 0; r++)
            send_keys(s, step, r, wrap(s, r - way), wrap(s, r - way * t));
        for (int half = 0; half < RING_HALVES; half++) {
            ring_schedule_wait_all(s, RING_SLOT_SUM + half, step);
            for (int r = 0; r < s->ranks; r++)
                if (t > 0 || !skip_own)
                    ring_schedule_compute(s, step, r, r, wrap(s, r - way * t), half);
            for (int r = 0; r < s->ranks && t > 0; r++)
                send_sum(s, step, half, r, wrap(s, r - way), wrap(s, r - way * t));
        }
        ring_schedule_wait_all(s, RING_SLOT_BLOCK, step);
    }
}

/* The turn of burst.c. At the last step the sums do not go on to the neighbour but home. */
static void burst_backward(RingSchedule *s, int first_step, int way, int hops, int skip_own)
{
    for (int t = 0; t <= hops; t++) {
        const int step = first_step + t;
        for (int r = 0; r < s->ranks && t < hops; r++)
            send_queries(s, step, r, wrap(s, r + way), wrap(s, r - way * t));
        for (int half = 0; half < RING_HALVES; half++) {
            ring_schedule_wait_all(s, RING_SLOT_SUM + half, step);
            for (int r = 0; r < s->ranks; r++)
                if (t > 0 || !skip_own)
                    ring_schedule_compute(s, step, r, wrap(s, r - way * t), r, half);
            for (int r = 0; r < s->ranks; r++) {
                const int owner = wrap(s, r - way * t);
                if (hops > 0)
                    send_sum(s, step, half, r, t < hops ? wrap(s, r + way) : owner, owner);
            }
        }
        ring_schedule_wait_all(s, RING_SLOT_BLOCK, step);
    }
    for (int half = 0; half < RING_HALVES; half++)
        ring_schedule_wait_all(s, RING_SLOT_SUM + half, first_step + hops);
}

/* Computed first, then passed on: nothing travels while a rank computes. */
static void minimal(RingSchedule *s)
{
    for (int t = 0; t < s->ranks; t++) {
        for (int r = 0; r < s->ranks; r++)
            ring_schedule_compute(s, t, r, r, wrap(s, r - t), -1);
        for (int r = 0; r < s->ranks; r++) {
            if (t < s->ranks - 1)
                send_keys(s, t, r, wrap(s, r + 1), wrap(s, r - t));
            if (s->pass == RING_BACKWARD)
                ring_schedule_sum(s, 0, RING_SLOT_BLOCK, -1, t, r, wrap(s, r + 1), wrap(s, r - t));
        }
        ring_schedule_wait_all(s, RING_SLOT_BLOCK, t);
    }
}

void ring_schedule_flat(RingSchedule *s)
{
    const int up = s->plan->hops_up, down = s->plan->hops_down;
    if (s->plan->setup.method == RING_METHOD_RING_MINIMAL)
        minimal(s);
    else if (s->pass == RING_FORWARD) {
        if (down)
            forward(s, 0, -1, down, 1);
        forward(s, down, +1, up, 0);
    } else if (up + down == 0) { /* nothing travels, so nothing is cut in halves */
        for (int r = 0; r < s->ranks; r++)
            ring_schedule_compute(s, 0, r, r, r, -1);
    } else if (!is_burst(s)) {
        ring_backward(s, 0, +1, up, 0);
        if (down)
            ring_backward(s, up, -1, down, 1);
    } else {
        burst_backward(s, 0, up == s->ranks - 1 ? +1 : -1, up, 0);
        if (down)
            burst_backward(s, up, +1, down, 1);
    }
}
