/* SPDX-License-Identifier: MIT
 *
 * schedule.c: playing a timetable through with the speeds of a machine.
 *
 * A rank works through its list. To compute takes time; to start a message takes none, but a
 * message leaves only when both ends have started it and the links of both are free; to wait takes
 * until it has arrived. The player always moves the rank whose clock is furthest behind, so links
 * are given away in the order in which messages become ready, and of those that do so at one time,
 * in the order of the timetables.
 *
 *     rank 0   start ....... compute ================ wait .. compute ====
 *     rank 1          start compute =========== wait ....... compute ====
 *     K 0 -> 1        |---- latency ----|---- bytes / bandwidth ----|
 *                     both ends have started
 *
 * That is all of the model: no protocol, no switch, no blocks of threads that leave multiprocessors
 * idle, no two streams that share a GPU, no kernel that is slowed down by a copy beside it. It says
 * which method is faster, not how fast it is. By how much it is off, nobody has measured; the lab
 * has figures of a finer model that is gone.
 *
 * Interface: ring_schedule_run (schedule.h).
 */
#include "planner/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 10 d operations for a pair backward and 4 d forward: five products of a tile instead of two. */
static double seconds_of(const RingSchedule *s, const RingAction *a, const RingRates *rates)
{
    const AttnShape *n = &s->plan->shape;
    const int backward = s->pass == RING_BACKWARD;
    const double pairs = (double)a->work.pairs + rates->masked_keys * (double)a->work.partial_rows;
    const double flops = (backward ? 10.0 : 4.0) * (double)(n->B * n->H * n->d) * a->heads * pairs;
    const double slow = ring_hopper_takes(s->plan, a->q, a->k) ? 1 : fmax(1, rates->scattered);
    return slow * flops / rates->flops[backward];
}

typedef struct Player {
    RingSchedule *s;
    const RingRates *rates;
    double clock[RING_MAX_RANKS]; /* when that is done which a rank's next action comes after */
    int64_t at[RING_MAX_RANKS];
    double out[RING_MAX_RANKS][2], in[RING_MAX_RANKS][2]; /* when a rank's links are free again */
    RingMessage **ready; /* at both ends, from the time in start; no link yet */
    int64_t ready_count;
    int waits[RING_MAX_RANKS]; /* for a message that has not left yet */
} Player;

static int sooner(const void *a, const void *b)
{
    const RingMessage *x = *(RingMessage *const *)a, *y = *(RingMessage *const *)b;
    if (x->start != y->start)
        return x->start > y->start ? 1 : -1;
    return x->order != y->order ? x->order - y->order : x < y ? -1 : x > y;
}

/* Messages that are ready get their links. A rank has one way out and one way in on each kind of
 * link. A message needs the sender's way out and the receiver's way in at the same time; the next
 * one that wants either has to wait. */
static void leave(Player *p)
{
    qsort(p->ready, (size_t)p->ready_count, sizeof(RingMessage *), sooner);
    for (int64_t n = 0; n < p->ready_count; n++) {
        RingMessage *m = p->ready[n];
        const RingLink link = ring_link(&p->s->plan->setup, m->from, m->to);
        double *out = &p->out[m->from][link], *in = &p->in[m->to][link];
        m->start = fmax(m->start, fmax(*out, *in));
        m->end = m->start + p->rates->latency[link] + (double)m->bytes / p->rates->bandwidth[link];
        m->travels = 1;
        *out = *in = m->end;
    }
    p->ready_count = 0;
    memset(p->waits, 0, sizeof p->waits);
}

/* A remote block of which nothing is seen holds nobody up. */
static void compute(const Player *p, RingAction *a)
{
    if (a->work.pairs == 0 && a->bytes == 0)
        return;
    a->end += p->rates->call_s + a->bytes / p->rates->memory;
    if (a->kind == RING_ACT_COMPUTE)
        a->end += seconds_of(p->s, a, p->rates);
}

/* One action of a rank. 0: it waits for a message that has not set out. */
static int play(Player *p, int rank)
{
    RingAction *a = &p->s->actions[rank][p->at[rank]];
    RingMessage *m = a->message >= 0 ? &p->s->messages[a->message] : NULL;
    if (a->kind == RING_ACT_WAIT && !m->travels)
        return 0;
    a->start = a->end = p->clock[rank];
    if (a->kind == RING_ACT_COMPUTE || a->kind == RING_ACT_MEMORY)
        compute(p, a);
    if (a->kind == RING_ACT_WAIT)
        a->end = fmax(a->start, m->end);
    if (a->kind == RING_ACT_START) {
        m->start = fmax(m->ends_ready++ ? m->start : 0, a->start);
        if (m->ends_ready == 2)
            p->ready[p->ready_count++] = m;
    }
    p->clock[rank] = a->end;
    p->at[rank]++;
    return 1;
}

/* The rank that is furthest behind of those that can go on; -1: none. */
static int furthest_behind(const Player *p)
{
    double least = INFINITY;
    int first = -1;
    for (int r = 0; r < p->s->ranks; r++) {
        const double clock = p->waits[r] || p->at[r] == p->s->count[r] ? INFINITY : p->clock[r];
        if (clock < least) {
            least = clock;
            first = r;
        }
    }
    return first;
}

/* 0: all is over (or nobody can go on, which no timetable here does). */
static int move_somebody(Player *p)
{
    int rank;
    while ((rank = furthest_behind(p)) >= 0) {
        if (p->ready_count && p->clock[rank] > p->ready[0]->start)
            break;
        if (play(p, rank))
            return 1;
        p->waits[rank] = 1;
    }
    if (!p->ready_count)
        return 0;
    leave(p);
    return 1;
}

/* No clock ticks here: time jumps from event to event, some ten thousand times for 64 ranks. */
double ring_schedule_run(RingSchedule *s, const RingRates *rates)
{
    Player p = {.s = s, .rates = rates};
    double last = -1;
    p.ready = malloc(((size_t)s->message_count + 1) * sizeof(RingMessage *));
    if (p.ready) {
        for (int64_t n = 0; n < s->message_count; n++)
            s->messages[n].ends_ready = s->messages[n].travels = 0;
        while (move_somebody(&p))
            continue;
        for (int r = 0; r < s->ranks; r++)
            last = fmax(last, p.clock[r]);
    }
    free(p.ready);
    return last;
}
