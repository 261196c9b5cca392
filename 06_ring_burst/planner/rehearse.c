/* SPDX-License-Identifier: MIT
 *
 * rehearse.c: the timetable of a method, written down by the method itself.
 *
 * A method (methods/) asks for messages and for work, and does not know who carries and who
 * computes. Here it gets a transport that carries nothing and a backend that computes nothing: what
 * they are asked for is written down. What a method asks for next never depends on what a
 * message brings, so one rank after the other goes through its whole pass, and nobody waits.
 *
 *     ring, 3 ranks, forward, what rank 1 writes down at step 0:
 *
 *     start K to 2, start V to 2, start K from 0, start V from 0
 *     compute (queries 1, keys 1)
 *     wait, wait, wait, wait                                           for each of the four
 *
 * Memory is addresses that belong to nobody: the library compares them (ring_touch), and no one
 * reads what is there.
 *
 * Interface: ring_schedule_make, ring_schedule_free (schedule.h).
 */
#include "planner/schedule.h"

#include "tensor.h"

#include <stdlib.h>
#include <string.h>

typedef struct Rehearsal {
    RingSchedule *s;
    RingPlan plan;    /* without faults and trailers */
    uintptr_t memory; /* the next address that nobody has */
    RingWork all;     /* Ulysses: of all tokens, counted once */
    int *waiting;     /* [from][to][tensor]: the first message of which one end is known; or -1 */
} Rehearsal;

/* --- the timetable -----------------------------------------------------------------------------*/

/* A new line at the end of the rank's list. NULL: the rank has failed. */
static RingAction *write_down(RingRank *r, RingActionKind kind)
{
    RingSchedule *s = ((Rehearsal *)r->endpoint)->s;
    RingAction *list;
    if (ring_grow(r, &s->actions[r->rank], s->count[r->rank], &s->room[r->rank], sizeof *list,
                  "a timetable") != 0)
        return NULL;
    list = &s->actions[r->rank][s->count[r->rank]++];
    *list = (RingAction){.kind = kind, .step = r->step, .message = -1, .heads = 1};
    return list;
}

/* A backward pass comes after its forward pass, which is gone through for what it leaves. */
static int listens(const RingRank *r)
{
    return r->pass == ((const Rehearsal *)r->endpoint)->s->pass;
}

/* --- the transport -----------------------------------------------------------------------------*/

/* How many ranks further on a message goes. */
static int distance_of(const RingRank *r, const RingTransfer *t)
{
    return ((t->sends ? t->peer - r->rank : r->rank - t->peer) + r->world) % r->world;
}

/* Number of the message of which this is an end; -1: the rank has failed. Ranks with a lower number
 * have written down their ends; messages of one tensor between two ranks keep their order. line:
 * the first one of the exchange. */
static int message_of(RingRank *r, const RingTransfer *t, int line)
{
    Rehearsal *p = r->endpoint;
    RingSchedule *s = p->s;
    const int from = t->sends ? r->rank : t->peer, to = t->sends ? t->peer : r->rank;
    int *at = &p->waiting[(from * s->ranks + to) * RING_TENSORS + (int)t->tensor], number = *at;
    if (t->peer < r->rank) {
        if (number < 0)
            return ring_fail(r, "the other end of a message was not written down");
        *at = s->messages[number].next;
    } else {
        if (ring_grow(r, &s->messages, s->message_count, &s->message_room, sizeof *s->messages,
                      "a timetable") != 0)
            return -1;
        while (*at >= 0)
            at = &s->messages[*at].next;
        number = *at = s->message_count++;
        s->messages[number] = (RingMessage){
            .from = from, .to = to, .tensor = t->tensor, .bytes = (int64_t)t->bytes, .next = -1};
    }
    if (t->sends) {
        s->messages[number].step = r->step;
        s->messages[number].order =
            (line * RING_TENSORS + (int)t->tensor) * s->ranks + distance_of(r, t);
    }
    return number;
}

/* Messages of an exchange have no order. Where each rank sends to each, those to the next one come
 * first here: if all began with rank 0, it could take only one at a time. */
static int start(RingRank *r, RingExchange *x)
{
    const RingSchedule *s = ((const Rehearsal *)r->endpoint)->s;
    const int line = s->count[r->rank];
    x->ticket = (void *)(uintptr_t)line;
    for (int distance = 1; distance < r->world && listens(r); distance++)
        for (int i = 0; i < x->count; i++) {
            if (distance_of(r, &x->list[i]) != distance)
                continue;
            const int number = message_of(r, &x->list[i], line);
            RingAction *a = number < 0 ? NULL : write_down(r, RING_ACT_START);
            if (!a)
                return -1;
            a->message = number;
        }
    return 0;
}

static int wait_for(RingRank *r, RingExchange *x)
{
    const RingSchedule *s = ((const Rehearsal *)r->endpoint)->s;
    for (int i = 0; i < x->count && listens(r); i++) {
        RingAction *a = write_down(r, RING_ACT_WAIT);
        if (!a)
            return -1;
        a->message = s->actions[r->rank][(uintptr_t)x->ticket + (uintptr_t)i].message;
    }
    return 0;
}

static const RingTransport transport = {.name = "none", .start = start, .wait = wait_for};

/* --- the backend -------------------------------------------------------------------------------*/

/* All pairs of all tokens, for a share of the heads. */
static RingWork work_of_all(const RingPlan *plan)
{
    RingWork all = {0, 0, ATTN_TILE_MASKED};
    for (int q = 0; q < plan->setup.ranks; q++)
        for (int k = 0; k < plan->setup.ranks; k++) {
            const RingWork pair = ring_pair_work(plan, q, k);
            all.pairs += pair.pairs;
            all.partial_rows += q == k ? pair.partial_rows : 0;
        }
    return all;
}

/* A pair of blocks is computed. float32 sums are read and written back: O, or dK and dV. Queries
 * that travel bring dQ with them: dO is read and the kernel's own dQ cleared, and in the end read
 * and added to the sum. No kernel is called for a remote block of which nothing is seen. */
static int meet(RingRank *r, const RingBlock *q, const RingBlock *k)
{
    Rehearsal *p = r->endpoint;
    const AttnShape *n = &r->plan->shape;
    const int everybody = q->owner == RING_EVERYBODY;
    const double rows = (double)(q->tokens * q->heads), keys = (double)(k->tokens * k->heads);
    RingAction *a = listens(r) ? write_down(r, RING_ACT_COMPUTE) : NULL;
    if (!a)
        return r->failed ? -1 : 0;
    if (everybody && p->all.pairs == 0)
        p->all = work_of_all(r->plan);
    a->q = (RingSpan){q->owner, q->first, q->tokens};
    a->k = (RingSpan){k->owner, k->first, k->tokens};
    a->heads = everybody ? 1.0 / r->world : 1;
    a->work = everybody ? p->all
                        : ring_block_work(r->plan, q->owner, q->first, q->tokens, k->owner,
                                          k->first, k->tokens);
    if (a->work.pairs == 0)
        return 0;
    a->bytes = 8 * rows;
    if (r->pass == RING_BACKWARD)
        a->bytes = 16 * keys + (ring_queries_travel(r->plan, r->pass)
                                    ? rows * (16 + (double)dtype_size(r->plan->dtype))
                                    : 0);
    a->bytes *= (double)(n->B * n->d);
    return 0;
}

/* Small work, known only by the bytes that it reads and writes. One thing behind the other is one
 * line; what begins and ends a pass is counted with its calls (around_the_calls). */
static int pass_over(RingRank *r, double bytes)
{
    const RingSchedule *s = ((const Rehearsal *)r->endpoint)->s;
    const int count = s->count[r->rank];
    RingAction *a = count > 0 ? &s->actions[r->rank][count - 1] : NULL;
    if (!listens(r))
        return 0;
    if (!a || a->kind != RING_ACT_MEMORY || a->step != r->step)
        a = write_down(r, RING_ACT_MEMORY);
    if (!a)
        return -1;
    a->bytes += bytes;
    return 0;
}

static int copy(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                size_t width, int64_t height)
{
    (void)to, (void)to_pitch, (void)from, (void)from_pitch;
    return pass_over(r, 2 * (double)width * (double)height);
}

static int add(RingRank *r, float *to, const float *from, int64_t count)
{
    (void)to, (void)from;
    return pass_over(r, 3 * sizeof(float) * (double)count);
}

/* Two blocks of memory never touch each other. */
static void *alloc(RingRank *r, size_t bytes)
{
    Rehearsal *p = r->endpoint;
    const uintptr_t mine = p->memory;
    p->memory += (bytes / 64 + 1) * 64;
    return (void *)mine;
}

static const RingBackend backend = {.name = "none", .alloc = alloc, .copy = copy, .add = add};

/* --- a rank ------------------------------------------------------------------------------------*/

/* As rank_main.c, without inputs and results. Nothing has to be freed but what a method keeps in
 * host memory. */
static void go_through(RingRank *r)
{
    const RingSetup *setup = &r->plan->setup;
    const RingMethodTable *method =
        ring_method(ring_method_on(setup->method, setup->ranks, setup->nodes));
    const size_t q_bytes = ring_q_bytes(r, r->rank), kv_bytes = ring_kv_bytes(r, r->rank);
    ring_rank_numbers(r);
    r->Q = ring_alloc(r, q_bytes, "Q");
    r->K = ring_alloc(r, kv_bytes, "K");
    r->V = ring_alloc(r, kv_bytes, "V");
    r->O = ring_alloc(r, q_bytes, "O");
    r->dO = ring_alloc(r, q_bytes, "dO");
    r->lse = ring_alloc(r, ring_row_bytes(r, r->rank), "lse");
    if (!method->open || method->open(r) == 0) {
        r->pass = RING_FORWARD;
        method->forward(r);
        r->pass = RING_BACKWARD;
        r->step = 0;
        if (r->plan->backward && !r->failed)
            method->backward(r);
    }
    if (method->close)
        method->close(r);
}

/* All ranks write down what they do. */
static int rehearse(RingSchedule *s)
{
    const size_t channels = (size_t)(s->ranks * s->ranks) * RING_TENSORS;
    Rehearsal *p = calloc(1, sizeof *p);
    int status = p && (p->waiting = malloc(channels * sizeof *p->waiting)) ? 0 : -1;
    if (status == 0) {
        memset(p->waiting, 0xFF, channels * sizeof *p->waiting);
        p->s = s;
        p->memory = 64;
        p->plan = *s->plan;
        p->plan.backward = s->pass == RING_BACKWARD;
        p->plan.setup.fault = (RingFault){0};
        p->plan.setup.verify_hops = 0;
    }
    for (int rank = 0; rank < s->ranks && status == 0; rank++) {
        RingRank r = {.rank = rank,
                      .world = s->ranks,
                      .plan = &p->plan,
                      .transport = &transport,
                      .backend = &backend,
                      .endpoint = p,
                      .log = ring_log_new(0)};
        if (r.log) {
            r.log->meet = meet;
            go_through(&r);
        }
        status = r.log && !r.failed ? 0 : -1;
        ring_log_free(r.log);
    }
    if (p)
        free(p->waiting);
    free(p);
    return status;
}

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
            last->bytes += (4 + b) * (q + kv);
        }
    }
}

int ring_schedule_make(RingSchedule *s, const RingPlan *plan, RingPass pass)
{
    memset(s, 0, sizeof *s);
    s->plan = plan;
    s->pass = pass;
    s->ranks = plan->setup.ranks;
    if (rehearse(s) != 0) {
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
