/* SPDX-License-Identifier: MIT
 *
 * schedule_all.c: the timetables of the methods in which everybody sends to everybody: allgather and
 * Ulysses.
 *
 *     allgather   all keys start at once, in round t to rank r + t; owner after owner is computed as
 *                 they come. Backward: then round t sends rank r + t its part of dK, dV
 *     ulysses     what comes before the computation and after it cannot hide behind it
 *
 * Interface: ring_schedule_gather, ring_schedule_ulysses (schedule.h).
 */
#include "schedule.h"

#include "tensor.h"

static int64_t keys_bytes(const RingSchedule *s, int owner, AttnDtype dtype)
{
    const AttnShape *n = &s->plan->shape;
    return n->B * s->plan->k[owner].tokens * n->Hkv * n->d * (int64_t)dtype_size(dtype);
}

/* Round t has a slot of its own, so that it can be waited for alone. */
static void gather(RingSchedule *s)
{
    const int G = s->ranks;
    for (int t = 1; t < G; t++)
        for (int r = 0; r < G; r++) {
            const int64_t bytes = keys_bytes(s, r, s->plan->dtype);
            ring_say_message(s, RING_SLOT_LATER + t, 0, r, (r + t) % G, RING_K, bytes);
            ring_say_message(s, RING_SLOT_LATER + t, 0, r, (r + t) % G, RING_V, bytes);
        }
}

void ring_schedule_gather(RingSchedule *s)
{
    const int G = s->ranks;
    gather(s);
    for (int t = 0; t < G; t++)
        for (int r = 0; r < G; r++) {
            const int owner = (r - t + G) % G;
            if (t > 0)
                ring_say_wait(s, RING_SLOT_LATER + t, t, r);
            ring_say_compute(s, t, r, r, owner, -1);
        }
    for (int t = 1; t < G && s->pass == RING_BACKWARD; t++) {
        for (int r = 0; r < G; r++) {
            const int owner = (r + t) % G;
            const int64_t bytes = keys_bytes(s, owner, s->plan->setup.partials);
            ring_say_message(s, RING_SLOT_SUM, G + t - 1, r, owner, RING_DK, bytes);
            ring_say_message(s, RING_SLOT_SUM, G + t - 1, r, owner, RING_DV, bytes);
        }
        for (int r = 0; r < G; r++) {
            ring_say_wait(s, RING_SLOT_SUM, G + t - 1, r);
            ring_say_memory(s, G + t - 1, r, 3.0 * 2 * (double)keys_bytes(s, r, ATTN_F32));
        }
    }
}

/* To shares of heads: of the sender's tokens; back: of the receiver's. */
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
            ring_say_message(s, RING_SLOT_BLOCK, step, r, to, tensor,
                             plan->shape.B * shards[back ? to : r].tokens * share * (int64_t)row);
        }
}

static void repack(RingSchedule *s, int step)
{
    const AttnShape *n = &s->plan->shape;
    for (int r = 0; r < s->ranks; r++) {
        const double tokens =
            (double)(s->plan->q[r].tokens * n->H) + 2.0 * (double)(s->plan->k[r].tokens * n->Hkv);
        ring_say_wait(s, RING_SLOT_BLOCK, step, r);
        ring_say_memory(s, step, r,
                        2.0 * tokens * (double)(n->B * n->d) * (double)dtype_size(s->plan->dtype));
    }
}

/* All pairs of all tokens, for a share of the heads. */
static void compute_heads(RingSchedule *s, int step)
{
    const int G = s->ranks;
    RingWork work = {0, 0, ATTN_TILE_MASKED};
    for (int q = 0; q < G; q++)
        for (int k = 0; k < G; k++) {
            const RingWork pair = ring_pair_work(s->plan, q, k);
            work.pairs += pair.pairs;
            work.partial_rows += q == k ? pair.partial_rows : 0;
        }
    for (int r = 0; r < G; r++) {
        RingAction *a;
        ring_say_memory(s, step, r, 1);
        if (s->no_memory)
            return;
        a = &s->actions[r][s->count[r] - 1];
        a->q_owner = a->k_owner = r;
        a->heads = 1.0 / G;
        a->work = work;
    }
}

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
    compute_heads(s, 1);
    exchange_heads(s, 2, forward ? RING_O : RING_DQ, 1, row, 1);
    if (forward) {
        exchange_heads(s, 2, RING_LSE, 1, sizeof(float), 1);
    } else {
        exchange_heads(s, 2, RING_DK, 0, row, 1);
        exchange_heads(s, 2, RING_DV, 0, row, 1);
    }
    repack(s, 2);
}
