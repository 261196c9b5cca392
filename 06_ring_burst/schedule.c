/* SPDX-License-Identifier: MIT
 *
 * schedule.c: playing a timetable through with the speeds of a machine.
 *
 * A rank works through its list. To compute takes time; to start a message takes none, but a
 * message leaves only when both ends have started it and the links of both are free; to wait takes
 * until it has arrived. The player always moves the rank whose clock is furthest behind, so links
 * are given away in the order in which messages become ready, and of those that do so at one time,
 * in the order of the timetable.
 *
 *     rank 0   start ....... compute ================ wait .. compute ====
 *     rank 1          start compute =========== wait ....... compute ====
 *     K 0 -> 1        |---- latency ----|---- bytes / bandwidth ----|
 *                     both ends have started
 *
 * That is all of the model: no protocol, no switch, no kernel that is slowed down by a copy beside
 * it. What it misses the fit of the rates has to absorb (common/tools/fit_ring.py), and where it
 * cannot, the prediction is off, which is shown and not hidden.
 *
 * Interface: ring_schedule_make, ring_schedule_run, ring_schedule_free (schedule.h).
 */
#include "schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int ring_schedule_make(RingSchedule *s, const RingPlan *plan, RingPass pass)
{
    memset(s, 0, sizeof *s);
    s->plan = plan;
    s->pass = pass;
    s->ranks = plan->setup.ranks;
    switch (ring_method_on(plan->setup.method, s->ranks, plan->setup.nodes)) {
    case RING_METHOD_ALLGATHER:
        ring_schedule_gather(s);
        break;
    case RING_METHOD_ULYSSES:
        ring_schedule_ulysses(s);
        break;
    case RING_METHOD_RING_DOUBLE:
    case RING_METHOD_BURST_DOUBLE:
        ring_schedule_double(s);
        break;
    default:
        ring_schedule_flat(s);
    }
    if (!s->no_memory)
        return 0;
    ring_schedule_free(s);
    return -1;
}

void ring_schedule_free(RingSchedule *s)
{
    for (int r = 0; r < s->ranks; r++) {
        free(s->actions[r]);
        free(s->open[r]);
    }
    free(s->messages);
    memset(s, 0, sizeof *s);
}

/* --- playing -----------------------------------------------------------------------------------*/

/* 10 d operations for a pair backward and 4 d forward: five products of a tile instead of two. */
static double seconds_of(const RingSchedule *s, const RingAction *a, const RingRates *rates)
{
    const AttnShape *n = &s->plan->shape;
    const int backward = s->pass == RING_BACKWARD, idle = a->work.pairs == 0 && a->bytes == 0;
    const double pairs = (double)a->work.pairs + rates->masked_keys * (double)a->work.partial_rows;
    const double flops = (backward ? 10.0 : 4.0) * (double)(n->B * n->H * n->d) * a->heads * pairs;
    return idle ? 0 : rates->call_s + flops / rates->flops[backward] + a->bytes / rates->memory;
}

typedef struct Player {
    RingSchedule *s;
    const RingRates *rates;
    double clock[RING_MAX_RANKS];
    int64_t at[RING_MAX_RANKS];
    double out[RING_MAX_RANKS][2], in[RING_MAX_RANKS][2]; /* when a rank's links are free again */
    RingMessage **ready; /* at both ends, from the time in start; no link yet */
    int64_t ready_count;
} Player;

static int sooner(const void *a, const void *b)
{
    const RingMessage *x = *(RingMessage *const *)a, *y = *(RingMessage *const *)b;
    return x->start != y->start ? (x->start > y->start ? 1 : -1) : x < y ? -1 : x > y;
}

/* Messages that are ready get their links. A rank has one way out and one way in on each kind of
 * link. A message needs the sender's way out and the receiver's way in at the same time; the next
 * one that wants either has to wait. */
static void leave(Player *p)
{
    const int node = p->s->ranks / p->s->plan->setup.nodes;
    qsort(p->ready, (size_t)p->ready_count, sizeof(RingMessage *), sooner);
    for (int64_t n = 0; n < p->ready_count; n++) {
        RingMessage *m = p->ready[n];
        const RingLink link = m->from / node == m->to / node ? RING_INNER : RING_OUTER;
        double *out = &p->out[m->from][link], *in = &p->in[m->to][link];
        m->start = fmax(m->start, fmax(*out, *in));
        m->end = m->start + p->rates->latency[link] + (double)m->bytes / p->rates->bandwidth[link];
        m->travels = 1;
        *out = *in = m->end;
    }
    p->ready_count = 0;
}

/* One action of a rank. 0: it has to wait for a message that does not travel yet. Only two things
 * can stop a rank: its list is at an end, or it waits for a message that has not set out. */
static int play(Player *p, int rank)
{
    RingAction *a = &p->s->actions[rank][p->at[rank]];
    RingMessage *m = a->message >= 0 ? &p->s->messages[a->message] : NULL;
    double *clock = &p->clock[rank];
    if (a->kind == RING_ACT_WAIT && !m->travels)
        return 0;
    a->start = *clock;
    if (a->kind == RING_ACT_COMPUTE)
        *clock += seconds_of(p->s, a, p->rates);
    else if (a->kind == RING_ACT_WAIT)
        *clock = m->end > *clock ? m->end : *clock;
    else if (++m->ends_ready == 2) {
        m->start = *clock;
        p->ready[p->ready_count++] = m;
    }
    a->end = *clock;
    p->at[rank]++;
    return 1;
}

/* The rank that is furthest behind of those not tried; -1: none. */
static int furthest_behind(const Player *p, const int *tried)
{
    int first = -1;
    for (int r = 0; r < p->s->ranks; r++)
        if (!tried[r] && p->at[r] < p->s->count[r] && (first < 0 || p->clock[r] < p->clock[first]))
            first = r;
    return first;
}

/* 0: all is over (or nobody can go on, which no timetable here does). */
static int move_somebody(Player *p)
{
    int tried[RING_MAX_RANKS] = {0}, rank;
    while ((rank = furthest_behind(p, tried)) >= 0) {
        if (p->ready_count && p->clock[rank] > p->ready[0]->start)
            break;
        if (play(p, rank))
            return 1;
        tried[rank] = 1;
    }
    if (!p->ready_count)
        return 0;
    leave(p);
    return 1;
}

/* No clock ticks here: time jumps from event to event. A pass of 64 ranks is some ten thousand such
 * jumps, and done in milliseconds. */
double ring_schedule_run(RingSchedule *s, const RingRates *rates)
{
    Player p = {.s = s, .rates = rates};
    double last = 0;
    p.ready = malloc(((size_t)s->message_count + 1) * sizeof(RingMessage *));
    if (!p.ready)
        return -1;
    for (int64_t n = 0; n < s->message_count; n++)
        s->messages[n].ends_ready = s->messages[n].travels = 0;
    while (move_somebody(&p))
        continue;
    free(p.ready);
    for (int r = 0; r < s->ranks; r++)
        last = fmax(last, p.clock[r]);
    return last;
}
