/* SPDX-License-Identifier: MIT
 *
 * schedule_double.c: the timetables of the rings in two levels: M nodes of g ranks. Rank (a, i) has
 * the block of owner (a - m, i - s) at outer step m, inner step s. The block with which an outer
 * step begins goes on to the next node at once, and has g inner steps of time for that.
 *
 *     M = 2, g = 2, rank (0, 0)       step 0          step 1          step 2          step 3
 *     computes with the keys of       (0, 0)          (0, 1)          (1, 0)          (1, 1)
 *     inner message                   (0, 0) leaves                   (1, 0) leaves
 *     outer message                   (0, 0) leaves ------------->    (1, 0) is there
 *
 * Interface: ring_schedule_double (schedule.h).
 */
#include "planner/schedule.h"

typedef struct Two { /* both levels of a schedule's ranks */
    RingSchedule *s;
    int M, g;
} Two;

/* Rank of node a, place i, whatever they are over. Around in both directions, as ring_place_at. */
static int rank_at(const Two *w, int a, int i)
{
    return (a % w->M + w->M) % w->M * w->g + (i % w->g + w->g) % w->g;
}

/* Whose block rank r has at outer step m and inner step t. */
static int owner_at(const Two *w, int r, int m, int t)
{
    return rank_at(w, r / w->g - m, r % w->g - t);
}

/* One inner step of the way out: blocks go on to the next place, and at s = 0 to the next node. */
static void step_out(const Two *w, int queries, int m, int t)
{
    RingSchedule *s = w->s;
    const int step = m * w->g + t;
    for (int r = 0; r < s->ranks; r++) {
        const int a = r / w->g, i = r % w->g, owner = owner_at(w, r, m, t);
        if (t == 0 && m < w->M - 1)
            ring_schedule_block(s, queries, RING_SLOT_OUTER, step, r, rank_at(w, a + 1, i), owner);
        if (t < w->g - 1)
            ring_schedule_block(s, queries, RING_SLOT_BLOCK, step, r, rank_at(w, a, i + 1), owner);
    }
}

/* The outer message is waited for after all g inner steps: that is the time it has. */
static void forward(const Two *w)
{
    RingSchedule *s = w->s;
    for (int m = 0; m < w->M; m++) {
        for (int t = 0; t < w->g; t++) {
            step_out(w, 0, m, t);
            for (int r = 0; r < s->ranks; r++)
                ring_schedule_compute(s, m * w->g + t, r, r, owner_at(w, r, m, t), -1);
            ring_schedule_wait_all(s, RING_SLOT_BLOCK, m * w->g + t);
        }
        ring_schedule_wait_all(s, RING_SLOT_OUTER, m * w->g + w->g - 1);
    }
}

/* A half of a node's part is complete: it waits for what other nodes found, and goes on with it. */
static void join(const Two *w, int queries, int m, int half, int step)
{
    RingSchedule *s = w->s;
    ring_schedule_wait_all(s, RING_SLOT_CARRY + half, step);
    for (int r = 0; r < s->ranks && (queries || m > 0); r++) {
        const int a = r / w->g, i = r % w->g;
        const int owner = owner_at(w, r, m, queries ? w->g - 1 : 0);
        const int next = rank_at(w, queries ? a + 1 : a - 1, i);
        ring_schedule_sum(s, queries, RING_SLOT_CARRY + half, half, step, r,
                          queries && m == w->M - 1 ? owner : next, owner);
    }
}

/* The way home. Sums are complete for a node at s = 0. Backwards through the same tree: m from M-1
 * to 0, t from g-1 to 0. */
static void ring_backward(const Two *w)
{
    RingSchedule *s = w->s;
    for (int m = w->M - 1; m >= 0; m--) {
        for (int t = w->g - 1; t >= 0; t--) {
            const int step = (w->M - m) * w->g - 1 - t;
            for (int r = 0; r < s->ranks; r++) {
                const int a = r / w->g, i = r % w->g, owner = owner_at(w, r, m, t);
                if (t == w->g - 1 && m > 0)
                    ring_schedule_block(s, 0, RING_SLOT_OUTER, step, r, rank_at(w, a - 1, i),
                                        owner);
                if (t > 0)
                    ring_schedule_block(s, 0, RING_SLOT_BLOCK, step, r, rank_at(w, a, i - 1),
                                        owner);
            }
            for (int half = 0; half < RING_HALVES; half++) {
                ring_schedule_wait_all(s, RING_SLOT_SUM + half, step);
                for (int r = 0; r < s->ranks; r++)
                    ring_schedule_compute(s, step, r, r, owner_at(w, r, m, t), half);
                for (int r = 0; r < s->ranks && t > 0; r++)
                    ring_schedule_sum(s, 0, RING_SLOT_SUM + half, half, step, r,
                                      rank_at(w, r / w->g, r % w->g - 1), owner_at(w, r, m, t));
                if (t == 0)
                    join(w, 0, m, half, step);
            }
            ring_schedule_wait_all(s, RING_SLOT_BLOCK, step);
        }
        ring_schedule_wait_all(s, RING_SLOT_OUTER, (w->M - m) * w->g - 1);
    }
}

/* Forwards through the tree, as the queries go. */
static void burst_backward(const Two *w)
{
    RingSchedule *s = w->s;
    for (int m = 0; m < w->M; m++) {
        for (int t = 0; t < w->g; t++) {
            const int step = m * w->g + t;
            step_out(w, 1, m, t);
            for (int half = 0; half < RING_HALVES; half++) {
                ring_schedule_wait_all(s, RING_SLOT_SUM + half, step);
                for (int r = 0; r < s->ranks; r++)
                    ring_schedule_compute(s, step, r, owner_at(w, r, m, t), r, half);
                for (int r = 0; r < s->ranks && t < w->g - 1; r++)
                    ring_schedule_sum(s, 1, RING_SLOT_SUM + half, half, step, r,
                                      rank_at(w, r / w->g, r % w->g + 1), owner_at(w, r, m, t));
                if (t == w->g - 1)
                    join(w, 1, m, half, step);
            }
            ring_schedule_wait_all(s, RING_SLOT_BLOCK, step);
        }
        ring_schedule_wait_all(s, RING_SLOT_OUTER, m * w->g + w->g - 1);
    }
    for (int half = 0; half < RING_HALVES; half++)
        ring_schedule_wait_all(s, RING_SLOT_CARRY + half, s->ranks - 1);
}

/* One node, or one rank on each, never comes here: ring_method_on has made it a flat ring. */
void ring_schedule_double(RingSchedule *s)
{
    const int M = s->plan->setup.nodes;
    const Two two = {s, M, s->ranks / M};
    if (s->pass == RING_FORWARD)
        forward(&two);
    else if (s->plan->setup.method == RING_METHOD_RING_DOUBLE)
        ring_backward(&two);
    else
        burst_backward(&two);
}
