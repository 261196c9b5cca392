/* SPDX-License-Identifier: MIT
 *
 * schedule_all.c: the timetables of the methods in which everybody sends to everybody: allgather
 * and Ulysses.
 *
 *     allgather   all keys start at once, in round t to rank r + t; owner after owner is computed
 *                 as they come. Backward: round t also sends rank r + t its part of dK, dV
 *     ulysses     what comes before the computation and after it cannot hide behind it
 *
 * In a ring the step says when a message leaves. Here all of them leave at once, and what keeps
 * them apart is the link: one message after the other goes through it. So the keys of the last
 * round have the time of all rounds before to arrive.
 *
 * Interface: ring_schedule_gather, ring_schedule_ulysses (schedule.h).
 */
#include "planner/schedule.h"

#include "tensor.h"

/* dK or dV of a rank in float32. For the memory that adding up costs. */
static int64_t keys_bytes(const RingSchedule *s, int owner)
{
    const AttnShape *n = &s->plan->shape;
    return n->B * s->plan->k[owner].tokens * n->Hkv * n->d * (int64_t)sizeof(float);
}

/* In round t the own keys go to rank r - way * t. Each round has a slot of its own, so that it can
 * be waited for alone. */
static void gather(RingSchedule *s, int way)
{
    const int G = s->ranks;
    for (int t = 1; t < G; t++)
        for (int r = 0; r < G; r++)
            ring_schedule_block(s, 0, RING_SLOT_LATER + t, 0, r, (r - way * t + G) % G, r);
}

/* All messages start at the beginning, so round t has t steps of computing to arrive in. */
static void gather_forward(RingSchedule *s)
{
    const int G = s->ranks;
    gather(s, -1);
    for (int t = 0; t < G; t++)
        for (int r = 0; r < G; r++) {
            ring_schedule_wait(s, RING_SLOT_LATER + t, t, r);
            ring_schedule_compute(s, t, r, r, (r - t + G) % G, -1);
        }
}

/* What came from another rank is added before the same half of the next part leaves. */
static void gather_backward(RingSchedule *s)
{
    const int G = s->ranks;
    if (G == 1) {
        ring_schedule_compute(s, 0, 0, 0, 0, -1);
        return;
    }
    gather(s, +1);
    for (int t = 0; t < G; t++) {
        ring_schedule_wait_all(s, RING_SLOT_LATER + t, t);
        for (int half = 0; half < RING_HALVES; half++) {
            ring_schedule_wait_all(s, RING_SLOT_SUM + half, t);
            for (int r = 0; r < G; r++) {
                const int owner = (r + t) % G;
                ring_schedule_memory(s, t, r, half, t > 1 ? 6.0 * (double)keys_bytes(s, r) / 2 : 0);
                ring_schedule_compute(s, t, r, r, owner, half);
            }
            for (int r = 0; r < G; r++)
                ring_schedule_sum(s, 0, RING_SLOT_SUM + half, half, t, r, (r + t) % G, (r + t) % G);
        }
    }
    for (int half = 0; half < RING_HALVES; half++)
        ring_schedule_wait_all(s, RING_SLOT_SUM + half, G - 1);
}

void ring_schedule_gather(RingSchedule *s)
{
    (s->pass == RING_FORWARD ? gather_forward : gather_backward)(s);
}

/* To shares of heads: of the sender's tokens; back: of the receiver's. Every pair of ranks: G (G -
 * 1) messages for each tensor. */
static void exchange_heads(RingSchedule *s, int step, RingTensor tensor, int queries, size_t row,
                           int back)
{
    const RingPlan *plan = s->plan;
    const int G = s->ranks;
    const int64_t heads = queries ? plan->shape.H : plan->shape.Hkv;
    const int64_t share = heads > G ? heads / G : 1;
    for (int t = 1; t < G; t++)
        for (int r = 0; r < G; r++) {
            const int to = (r + t) % G;
            const RingShard *shards = queries ? plan->q : plan->k;
            ring_schedule_message(s, RING_SLOT_BLOCK, step, r, to, tensor,
                                  plan->shape.B * shards[back ? to : r].tokens * share *
                                      (int64_t)row);
        }
}

/* Heads are cut out of tokens or put back: every element read once and written once. */
static void repack(RingSchedule *s, int step)
{
    const AttnShape *n = &s->plan->shape;
    for (int r = 0; r < s->ranks; r++) {
        const double tokens =
            (double)(s->plan->q[r].tokens * n->H) + 2.0 * (double)(s->plan->k[r].tokens * n->Hkv);
        ring_schedule_wait(s, RING_SLOT_BLOCK, step, r);
        ring_schedule_memory(s, step, r, -1,
                             2.0 * tokens * (double)(n->B * n->d) *
                                 (double)dtype_size(s->plan->dtype));
    }
}

/* All pairs of all tokens, for a share of the heads. */
static void compute_heads(RingSchedule *s, int step)
{
    const AttnShape *n = &s->plan->shape;
    const int G = s->ranks;
    RingWork work = {0, 0, ATTN_TILE_MASKED};
    double bytes;
    for (int q = 0; q < G; q++)
        for (int k = 0; k < G; k++) {
            const RingWork pair = ring_pair_work(s->plan, q, k);
            work.pairs += pair.pairs;
            work.partial_rows += q == k ? pair.partial_rows : 0;
        }
    bytes = (double)(n->Nq * n->H) / G; /* of float32 sums: O, or dK and dV */
    if (s->pass == RING_BACKWARD)
        bytes = 2 * (double)(n->Nk * (n->Hkv > G ? n->Hkv / G : 1));
    for (int r = 0; r < G; r++) {
        RingAction *a;
        ring_schedule_memory(s, step, r, -1, 8 * bytes * (double)(n->B * n->d));
        if (s->no_memory)
            return;
        a = &s->actions[r][s->count[r] - 1];
        a->q_owner = a->k_owner = r;
        a->heads = 1.0 / G;
        a->work = work;
    }
}

/* Start, wait, compute, start, wait: the only timetable here in which no rank computes while a
 * message of its own travels. */
void ring_schedule_ulysses(RingSchedule *s)
{
    const size_t row = (size_t)s->plan->shape.d * dtype_size(s->plan->dtype);
    const int forward = s->pass == RING_FORWARD;
    exchange_heads(s, 0, forward ? RING_Q : RING_DO, 1, row, 0);
    if (forward) {
        exchange_heads(s, 0, RING_K, 0, row, 0);
        exchange_heads(s, 0, RING_V, 0, row, 0);
    }
    repack(s, 0);
    compute_heads(s, 0);
    exchange_heads(s, 1, forward ? RING_O : RING_DQ, 1, row, 1);
    if (forward) {
        exchange_heads(s, 1, RING_LSE, 1, sizeof(float), 1);
    } else {
        exchange_heads(s, 1, RING_DK, 0, row, 1);
        exchange_heads(s, 1, RING_DV, 0, row, 1);
    }
    repack(s, 1);
}
