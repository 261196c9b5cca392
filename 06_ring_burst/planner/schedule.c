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
 * Halves of a block's gradients may have a clock each, a stream: then a half waits for its own sums
 * and for what was computed for the same half, and its blocks of threads take the places that those
 * of the other leave idle (rounds.c):
 *
 *     stream 0   half 0 =======     half 0 of the next block =======
 *     stream 1          ...half 1 =======                       ...half 1 =====
 *
 * Attention in 16 bits is two calls, half of the heads in each stream. Both wait for the same keys,
 * and messages and whatever else comes after them wait for both.
 *
 * That is all of the model: no protocol, no switch, no kernel that is slowed down by a copy beside
 * it. What the model misses, the fit of the rates has to absorb (common/tools/fit_ring.py). Where
 * the fit cannot, the prediction is off, and the pages show by how much.
 *
 * Interface: ring_schedule_make, ring_schedule_run, ring_schedule_free (schedule.h).
 */
#include "planner/schedule.h"
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Passes over memory before a rank's first call and behind its last one, counted with these calls:
 *
 *     forward    the first call reads no state, and the last one writes O rounded instead of it
 *     backward   delta reads O and dO; dK and dV begin as zeros; where the queries stay, the kernel
 *                reads dO and clears its own dQ; in the end sums are read, and stored rounded */
static void around_the_calls(RingSchedule *s)
{
    const AttnShape *n = &s->plan->shape;
    const double b = (double)dtype_size(s->plan->dtype), each = (double)(n->B * n->d);
    for (int r = 0; r < s->ranks; r++) {
        const double q = each * (double)(s->plan->q[r].tokens * n->H);
        const double kv = each * (double)(2 * s->plan->k[r].tokens * n->Hkv);
        RingAction *first = NULL, *last = NULL;
        for (int64_t i = 0; i < s->count[r]; i++)
            if (s->actions[r][i].work.pairs > 0) {
                last = &s->actions[r][i];
                first = first ? first : last;
            }
        if (!first)
            continue;
        if (s->pass == RING_FORWARD) {
            first->bytes -= 4 * q;
            last->bytes += (b - 4) * q;
        } else {
            first->bytes +=
                2 * b * q + 4 * kv + (ring_queries_travel(s->plan, s->pass) ? 0 : (b + 4) * q);
            last->after = (4 + b) * (q + kv);
        }
    }
}

int ring_schedule_make(RingSchedule *s, const RingPlan *plan, RingPass pass)
{
    memset(s, 0, sizeof *s);
    s->plan = plan;
    s->pass = pass;
    s->ranks = plan->setup.ranks;
    if (ring_schedule_rehearse(s) != 0) {
        ring_schedule_free(s);
        return -1;
    }
    around_the_calls(s);
    return 0;
}

void ring_schedule_free(RingSchedule *s)
{
    for (int r = 0; r < s->ranks; r++)
        free(s->actions[r]);
    free(s->messages);
    memset(s, 0, sizeof *s);
}

/* --- playing -----------------------------------------------------------------------------------*/

/* 10 d operations for a pair backward and 4 d forward: five products of a tile instead of two. */
static RingCall call_of(const RingSchedule *s, const RingAction *a, const RingRates *rates)
{
    const AttnShape *n = &s->plan->shape;
    const int backward = s->pass == RING_BACKWARD;
    const double pairs = (double)a->work.pairs + rates->masked_keys * (double)a->work.partial_rows;
    const double flops = (backward ? 10.0 : 4.0) * (double)(n->B * n->H * n->d) * a->heads * pairs;
    const double share = (double)(backward ? n->Hkv : n->H) * a->heads;
    const int64_t heads = n->B * (share > 1 ? (int64_t)share : 1);
    const double slow = ring_hopper_takes(s->plan, a->q, a->k) ? 1 : fmax(1, rates->scattered);
    return (RingCall){.pass = s->pass,
                      .q = a->q,
                      .k = a->k,
                      .heads = heads,
                      .pairs = pairs,
                      .seconds = slow * flops / rates->flops[backward]};
}

typedef struct Player {
    RingSchedule *s;
    const RingRates *rates;
    double clock[RING_MAX_RANKS][RING_STREAMS];
    double host[RING_MAX_RANKS];    /* what it has asked for, up to when; it is never behind */
    double put_off[RING_MAX_RANKS]; /* messages that are handed over after the next kernel */
    double queue[RING_MAX_RANKS];   /* of messages: none leaves before the one before it can */
    int64_t at[RING_MAX_RANKS];
    double out[RING_MAX_RANKS][2], in[RING_MAX_RANKS][2]; /* when a rank's links are free again */
    RingMessage **ready; /* at both ends, from the time in start; no link yet */
    int64_t ready_count;
    int waits[RING_MAX_RANKS]; /* for a message that has not left yet */
    int streams;               /* halves of sums, or of heads, have clocks of their own */
    double *places;            /* of each rank's GPU: when they are free */
} Player;

/* Two streams, or everything comes after everything before it. Where no message travels (a window
 * of few tokens) the first keys are the last ones, and attention is one call without a state. */
static int streams_of(const RingSchedule *s, const RingRates *rates)
{
    const RingSetup *setup = &s->plan->setup;
    const RingMethod method = ring_method_on(setup->method, s->ranks, setup->nodes);
    return !s->plan->mask && !setup->deterministic && s->message_count > 0 &&
           (ring_two_streams(method, s->pass, s->plan->dtype, rates) ||
            ring_head_streams(method, s->ranks, s->pass, s->plan->dtype, rates));
}

/* When that is done which a rank's next action comes after. */
static double clock_of(const Player *p, int rank)
{
    const int stream = p->streams ? p->s->actions[rank][p->at[rank]].stream : -1;
    const double *clock = p->clock[rank];
    return stream < 0 ? fmax(clock[0], clock[1]) : clock[stream];
}

/* What comes after an action of this stream begins at `time` or later. */
static void hold(Player *p, int rank, int stream, double time)
{
    for (int l = 0; l < RING_STREAMS; l++)
        if (!p->streams || stream < 0 || stream == l)
            p->clock[rank][l] = fmax(p->clock[rank][l], time);
}

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

/* A call that begins at `start` or later, which becomes when it does. Passes over memory and the
 * call itself are not cut into blocks: they begin when a place is idle, and all that are idle wait
 * for them. Returns its end. */
static double call(Player *p, int rank, const RingCall *what, double bytes, double *start)
{
    const double passes = p->rates->call_s + bytes / p->rates->memory;
    const double soonest = fmin(p->clock[rank][0], p->clock[rank][1]); /* of either stream */
    const int places = ring_places(p->rates, p->s->pass);
    double *load = p->places + (int64_t)rank * places;
    *start = fmax(fmax(*start, p->host[rank]), load[0]);
    for (int n = 0; n < places; n++) /* an idle place loses the time of these passes, too */
        load[n] =
            load[n] <= *start ? fmax(load[n], soonest) + passes : fmax(load[n], *start + passes);
    return ring_fill(p->s->plan, what, p->rates, *start + passes, load);
}

/* Half of the heads in each stream: two calls, each behind the one before in its stream. The action
 * begins with the first of them and ends with the last. */
static void compute_heads(Player *p, int rank, RingAction *a, const RingCall *all)
{
    double start[RING_STREAMS], end[RING_STREAMS];
    for (int stream = 0; stream < RING_STREAMS; stream++) {
        RingCall half = *all;
        half.heads = all->heads * (stream + 1) / RING_STREAMS - all->heads * stream / RING_STREAMS;
        const double share = (double)half.heads / (double)all->heads;
        half.seconds *= share;
        start[stream] = p->clock[rank][stream];
        end[stream] = call(p, rank, &half, a->bytes * share, &start[stream]);
        hold(p, rank, stream, end[stream]);
    }
    a->start = fmin(start[0], start[1]);
    a->end = fmax(end[0], end[1]);
}

/* What comes last comes after both streams. A remote block of which nothing is seen holds nobody
 * up. */
static void compute(Player *p, int rank, RingAction *a)
{
    const double *clock = p->clock[rank];
    if (a->work.pairs == 0 && a->bytes == 0)
        return;
    if (a->kind == RING_ACT_MEMORY) {
        a->start = fmax(a->start, p->host[rank]);
        a->end = a->start + p->rates->call_s + a->bytes / p->rates->memory;
    } else {
        const RingCall all = call_of(p->s, a, p->rates);
        if (p->streams && p->s->pass == RING_FORWARD && all.heads > 1) {
            compute_heads(p, rank, a, &all);
            return;
        }
        a->end = call(p, rank, &all, a->bytes, &a->start);
    }
    if (a->after > 0)
        a->end = fmax(a->end, fmax(clock[0], clock[1])) + a->after / p->rates->memory;
    hold(p, rank, a->stream, a->end);
}

/* One action of a rank. 0: it waits for a message that has not set out. */
static int play(Player *p, int rank)
{
    RingAction *a = &p->s->actions[rank][p->at[rank]];
    RingMessage *m = a->message >= 0 ? &p->s->messages[a->message] : NULL;
    double *host = &p->host[rank];
    if (a->kind == RING_ACT_WAIT && !m->travels)
        return 0;
    a->start = a->end = clock_of(p, rank);
    if (a->kind == RING_ACT_COMPUTE || a->kind == RING_ACT_MEMORY)
        compute(p, rank, a);
    if (a->kind != RING_ACT_START) { /* asked for first, and then what had been put off */
        *host += p->put_off[rank];
        p->put_off[rank] = 0;
    }
    if (a->kind == RING_ACT_WAIT) {
        a->end = fmax(a->start, m->end);
        hold(p, rank, a->stream, m->end);
    } else if (a->kind == RING_ACT_START) {
        p->put_off[rank] += p->rates->post_s;
        p->queue[rank] = fmax(p->queue[rank], fmax(a->start, *host + p->put_off[rank]));
        m->start = fmax(m->ends_ready++ ? m->start : 0, p->queue[rank]);
        if (m->ends_ready == 2)
            p->ready[p->ready_count++] = m;
    }
    p->at[rank]++;
    return 1;
}

/* The rank that is furthest behind of those that can go on; -1: none. */
static int furthest_behind(const Player *p)
{
    double least = INFINITY;
    int first = -1;
    for (int r = 0; r < p->s->ranks; r++) {
        const double clock = p->waits[r] || p->at[r] == p->s->count[r] ? INFINITY : clock_of(p, r);
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
        if (p->ready_count && clock_of(p, rank) > p->ready[0]->start)
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
    const size_t places = (size_t)s->ranks * (size_t)ring_places(rates, s->pass);
    Player p = {.s = s, .rates = rates, .streams = streams_of(s, rates)};
    double last = -1;
    p.ready = malloc(((size_t)s->message_count + 1) * sizeof(RingMessage *));
    p.places = calloc(places, sizeof *p.places);
    if (p.ready && p.places) {
        for (int64_t n = 0; n < s->message_count; n++)
            s->messages[n].ends_ready = s->messages[n].travels = 0;
        while (move_somebody(&p))
            continue;
        for (int r = 0; r < s->ranks; r++)
            last = fmax(last, fmax(p.clock[r][0], p.clock[r][1]) + rates->pass_s);
    }
    free(p.ready);
    free(p.places);
    return last;
}
