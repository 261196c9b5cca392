/* SPDX-License-Identifier: MIT
 *
 * schedule_write.c: how a timetable is written down: actions at the end of a rank's list, messages
 * at the end of both ends' lists. The same few sentences serve all methods: a block of keys or
 * queries goes from one rank to another, a half of its sums does, a pair of blocks is computed.
 *
 *     ring, 3 ranks, forward, what rank 1 has to do at step 0:
 *
 *     start K from 0, start V from 0, start K to 2, start V to 2       one message, two ends
 *     compute (queries 1, keys 1)
 *     wait, wait, wait, wait                                           for each of the four
 *
 * Interface: ring_schedule_message, ring_schedule_block, ring_schedule_sum, ring_schedule_wait,
 * ring_schedule_wait_all, ring_schedule_compute, ring_schedule_memory (schedule.h).
 */
#include "planner/schedule.h"

#include "tensor.h"

#include <stdlib.h>

/* The list, with room for one more; a failure is noted, and nothing is written any more. */
static void *grow(RingSchedule *s, void *list, int64_t count, int64_t *room, size_t size)
{
    const int64_t more = *room ? 2 * *room : 64;
    void *grown;
    if (count < *room || s->no_memory)
        return list;
    grown = realloc(list, (size_t)more * size);
    if (!grown) {
        s->no_memory = 1;
        return list;
    }
    *room = more;
    return grown;
}

/* A new line at the end of a rank's timetable; -1 where there is nothing to say. */
static RingAction *say(RingSchedule *s, int rank, RingActionKind kind, int step)
{
    RingAction *a;
    s->actions[rank] =
        grow(s, s->actions[rank], s->count[rank], &s->room[rank], sizeof *s->actions[rank]);
    if (s->no_memory)
        return NULL;
    a = &s->actions[rank][s->count[rank]++];
    *a = (RingAction){.kind = kind,
                      .step = step,
                      .message = -1,
                      .q_owner = -1,
                      .k_owner = -1,
                      .half = -1,
                      .stream = -1,
                      .heads = 1};
    return a;
}

/* Halves of sums have slots of their own, and what is computed for one does not wait for the
 * other. */
static int stream_of(int slot)
{
    return slot == RING_SLOT_SUM || slot == RING_SLOT_CARRY       ? 0
           : slot == RING_SLOT_SUM_1 || slot == RING_SLOT_CARRY_1 ? 1
                                                                  : -1;
}

/* The rank has started its end of a message. Noted as open: some later wait of this slot will close
 * it. */
static void say_start(RingSchedule *s, int rank, int step, int slot, int message)
{
    RingAction *a = say(s, rank, RING_ACT_START, step);
    s->open[rank] =
        grow(s, s->open[rank], s->open_count[rank], &s->open_room[rank], sizeof *s->open[rank]);
    if (s->no_memory)
        return;
    a->message = message;
    a->stream = stream_of(slot);
    s->open[rank][s->open_count[rank]++] = (RingOpen){slot, message};
}

/* Three entries: the message itself, and the start at both ends. Where a real run would match a
 * send with a receive, both ends are written down together here. */
void ring_schedule_message(RingSchedule *s, int slot, int step, int from, int to, RingTensor tensor,
                           int64_t bytes)
{
    const int number = (int)s->message_count;
    if (bytes == 0 || from == to)
        return;
    s->messages = grow(s, s->messages, s->message_count, &s->message_room, sizeof *s->messages);
    if (s->no_memory)
        return;
    s->messages[s->message_count++] =
        (RingMessage){.from = from, .to = to, .step = step, .tensor = tensor, .bytes = bytes};
    say_start(s, from, step, slot, number);
    say_start(s, to, step, slot, number);
}

/* Waits for what was started in this slot and not waited for yet, as ring_wait does for an
 * exchange. */
void ring_schedule_wait(RingSchedule *s, int slot, int step, int rank)
{
    int64_t kept = 0;
    for (int64_t n = 0; n < s->open_count[rank]; n++) {
        const RingOpen open = s->open[rank][n];
        RingAction *a;
        if (open.slot != slot) {
            s->open[rank][kept++] = open;
            continue;
        }
        a = say(s, rank, RING_ACT_WAIT, step);
        if (a) {
            a->message = open.message;
            a->stream = stream_of(slot);
        }
    }
    s->open_count[rank] = kept;
}

int ring_queries_travel(const RingSchedule *s)
{
    const RingSetup *setup = &s->plan->setup;
    const RingMethod method = ring_method_on(setup->method, s->ranks, setup->nodes);
    return s->pass == RING_BACKWARD && s->ranks > 1 &&
           (method == RING_METHOD_BURST || method == RING_METHOD_BURST_DOUBLE);
}

/* Cut as ring_half_tokens cuts. */
int64_t ring_part_of(int64_t tokens, int half)
{
    return half < 0 ? tokens : half ? tokens - tokens / 2 : tokens / 2;
}

/* Gradients travel in halves: of the keys, or (burst) of the queries. */
void ring_schedule_compute(RingSchedule *s, int step, int rank, int q_owner, int k_owner, int half)
{
    const RingPlan *plan = s->plan;
    const AttnShape *n = &plan->shape;
    const int burst = ring_queries_travel(s), backward = s->pass == RING_BACKWARD;
    const int q_half = burst ? half : -1, k_half = burst ? -1 : half;
    const int64_t q_all = plan->q[q_owner].tokens, k_all = plan->k[k_owner].tokens;
    const int64_t q = ring_part_of(q_all, q_half), k = ring_part_of(k_all, k_half);
    const RingWork work = ring_block_work(plan, q_owner, q_half == 1 ? q_all - q : 0, q, k_owner,
                                          k_half == 1 ? k_all - k : 0, k);
    RingAction *a = say(s, rank, RING_ACT_COMPUTE, step);
    if (!a)
        return;
    a->q_owner = q_owner;
    a->k_owner = k_owner;
    a->half = a->stream = half;
    a->work = work;
    if (work.pairs == 0) /* a remote block of whom nothing is seen: no kernel is called */
        return;
    /* float32 sums are read and written back: O, or dK and dV. Queries that travel bring dQ with
     * them: dO is read and the kernel's own dQ cleared, and in the end read and added to the sum */
    if (!backward)
        a->bytes = 8.0 * (double)(n->B * n->d * q * n->H);
    else
        a->bytes = (double)(n->B * n->d) *
                   (16.0 * (double)(k * n->Hkv) +
                    (burst ? (double)(q * n->H) * (16.0 + (double)dtype_size(plan->dtype)) : 0));
}

/* Small work, known only by the bytes that it moves. */
void ring_schedule_memory(RingSchedule *s, int step, int rank, int half, double bytes)
{
    RingAction *a = bytes > 0 ? say(s, rank, RING_ACT_COMPUTE, step) : NULL;
    if (!a)
        return;
    a->stream = half;
    a->bytes = bytes;
}

void ring_schedule_block(RingSchedule *s, int queries, int slot, int step, int from, int to,
                         int owner)
{
    const RingPlan *plan = s->plan;
    const AttnShape *n = &plan->shape;
    const int64_t rows =
        n->B * (queries ? plan->q[owner].tokens * n->H : plan->k[owner].tokens * n->Hkv);
    const int64_t bytes = rows * n->d * (int64_t)dtype_size(plan->dtype);
    ring_schedule_message(s, slot, step, from, to, queries ? RING_Q : RING_K, bytes);
    ring_schedule_message(s, slot, step, from, to, queries ? RING_DO : RING_V, bytes);
    if (queries) {
        ring_schedule_message(s, slot, step, from, to, RING_LSE, rows * (int64_t)sizeof(float));
        ring_schedule_message(s, slot, step, from, to, RING_DELTA, rows * (int64_t)sizeof(float));
    }
}

/* Sums travel in the type of --partials, keys and queries in that of the tensors. */
void ring_schedule_sum(RingSchedule *s, int queries, int slot, int half, int step, int from, int to,
                       int owner)
{
    const RingPlan *plan = s->plan;
    const AttnShape *n = &plan->shape;
    const int64_t rows = n->B * (queries ? ring_part_of(plan->q[owner].tokens, half) * n->H
                                         : ring_part_of(plan->k[owner].tokens, half) * n->Hkv);
    const int64_t bytes = rows * n->d * (int64_t)dtype_size(plan->setup.partials);
    ring_schedule_message(s, slot, step, from, to, queries ? RING_DQ : RING_DK, bytes);
    if (!queries)
        ring_schedule_message(s, slot, step, from, to, RING_DV, bytes);
}

void ring_schedule_wait_all(RingSchedule *s, int slot, int step)
{
    for (int r = 0; r < s->ranks; r++)
        ring_schedule_wait(s, slot, step, r);
}
