/* SPDX-License-Identifier: MIT
 *
 * rank_main.c: one rank's whole run, the same for threads, processes and GPUs.
 *
 *     own shard of Q, K, V                               set-up, not timed
 *     for each round:
 *         barrier, forward pass                          timed
 *         O and lse of the last round to rank 0
 *         own shard of dO, barrier, backward pass        timed
 *         gradients of the last round to rank 0
 *         benchmarks on GPUs: the local baseline              timed
 *
 * A round's time is that of its slowest rank, from a common start. The outputs that are checked
 * are those of a timed round.
 *
 * dO comes when the backward pass begins and goes with its end, so that the memory of the forward
 * pass is what a forward pass needs.
 *
 * Interface: ring_rank_main, ring_rank_numbers (ring_world.h).
 */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "runtime/ring_world.h"

/* A method of the user's own (simulate.h), or that of the plan. */
static const RingMethodTable *method_of(const RingTask *task)
{
    const RingSetup *s = &task->plan->setup;
    return task->method ? task->method : ring_method(ring_method_on(s->method, s->ranks, s->nodes));
}

/* --- set-up ------------------------------------------------------------------------------------*/

/* What a method sees of the plan. */
void ring_rank_numbers(RingRank *r)
{
    const RingPlan *plan = r->plan;
    const AttnShape *n = &plan->shape;
    r->nodes = plan->setup.nodes;
    r->hops_up = plan->hops_up;
    r->hops_down = plan->hops_down;
    r->backward = plan->backward;
    r->B = n->B, r->H = n->H, r->Hkv = n->Hkv, r->d = n->d;
    r->dtype = plan->dtype;
    r->partials = plan->setup.partials == ATTN_BF16 ? ATTN_BF16 : ATTN_F32;
    r->q_tokens = plan->nq, r->k_tokens = plan->nk;
    r->nq = plan->nq[r->rank], r->nk = plan->nk[r->rank];
}

/* What is live when the backward pass begins counts for its peak: the shards, O, lse and what the
 * method kept of the forward pass. */
static void begin_pass(RingRank *r, RingPass pass)
{
    r->pass = pass;
    r->step = 0;
    if (pass == RING_BACKWARD && r->live_bytes > r->peak_backward_bytes)
        r->peak_backward_bytes = r->live_bytes;
}

/* Each rank cuts its shard out of the whole tensor by itself. In a real training run the tokens
 * would never have been in one place; here the same seed makes the same inputs everywhere, and so
 * set-up needs no message. */
static void *read_shard(RingRank *r, const Tensor *from, const RingShard *shard, size_t bytes,
                        const char *name)
{
    void *p = ring_alloc(r, bytes, name);
    if (p)
        ring_shard_read(r, p, from, shard);
    return p;
}

/* What is there when the rank has failed is freed by tear_down. */
static int set_up(RingRank *r, const RingTask *task)
{
    const RingMethodTable *method = method_of(task);
    const RingShard *q = &r->plan->q[r->rank], *k = &r->plan->k[r->rank];
    const size_t kv_bytes = ring_kv_bytes(r, r->rank);
    ring_rank_numbers(r);
    if (!method)
        return ring_fail(r, "there is no method number %d", (int)r->plan->setup.method);
    if (r->backend->open(r) != 0)
        return -1;
    r->Q = read_shard(r, &task->args->Q, q, ring_q_bytes(r, r->rank), "Q");
    r->K = read_shard(r, &task->args->K, k, kv_bytes, "K");
    r->V = read_shard(r, &task->args->V, k, kv_bytes, "V");
    r->lse = ring_alloc(r, ring_row_bytes(r, r->rank), "lse");
    if (r->failed)
        return -1;
    return method->open ? method->open(r) : 0;
}

static void free_gradients(RingRank *r)
{
    ring_free(r, r->dQ, r->dQ_bytes);
    ring_free(r, r->dK, r->dK_bytes);
    ring_free(r, r->dV, r->dV_bytes);
    ring_free(r, r->dO, ring_q_bytes(r, r->rank));
    r->dQ = r->dK = r->dV = r->dO = NULL;
}

/* Undoes set_up, also when only half of it was done: every free takes NULL. */
static void tear_down(RingRank *r, const RingTask *task)
{
    const RingMethodTable *method = method_of(task);
    if (method && method->close)
        method->close(r);
    ring_method_end(r);
    free_gradients(r);
    ring_free(r, r->Q, ring_q_bytes(r, r->rank));
    ring_free(r, r->K, ring_kv_bytes(r, r->rank));
    ring_free(r, r->V, ring_kv_bytes(r, r->rank));
    ring_free(r, r->O, ring_q_bytes(r, r->rank));
    ring_free(r, r->lse, ring_row_bytes(r, r->rank));
    workspace_free(r->mask);
    r->mask = NULL;
    r->backend->close(r);
}

/* --- rounds ------------------------------------------------------------------------------------*/

/* What can be timed has one prototype: both passes, and the local baseline. */
static int forward_pass(RingRank *r, const RingTask *task)
{
    return method_of(task)->forward(r);
}

static int backward_pass(RingRank *r, const RingTask *task)
{
    return method_of(task)->backward(r);
}

static int baseline_pass(RingRank *r, const RingTask *task)
{
    for (int call = 0; call < task->baseline_calls; call++)
        if (r->backend->baseline(r, r->pass) != 0)
            return -1;
    return 0;
}

/* Together with all others, and timed. Why the barrier: without it a rank that came late would seem
 * to wait for nobody, and the others would count its lateness as their communication. Why `finish`
 * on both sides: on a GPU the host only asks for work, and a clock that is read before the queues
 * are empty measures asking. */
static int timed_pass(RingRank *r, const RingTask *task,
                      int (*pass)(RingRank *r, const RingTask *task), double *ms)
{
    double begin;
    if (r->backend->finish(r) != 0 || r->transport->barrier(r) != 0)
        return -1;
    begin = ring_now_ms();
    ring_stream(r, RING_BOTH_STREAMS);
    if (pass(r, task) != 0) /* a rank that has failed keeps its first sentence */
        ring_fail(r, "the method returned -1 and did not say why (ring_fail)");
    if (r->failed || r->backend->finish(r) != 0)
        return -1;
    *ms = ring_now_ms() - begin;
    return 0;
}

/* A backward pass may have given O back (burst, after delta); then there is a new one. What an
 * earlier round has left must not pass for what this one computes. */
static int forward_round(RingRank *r, const RingTask *task, int last, double *ms)
{
    begin_pass(r, RING_FORWARD);
    if (!r->O && !(r->O = ring_alloc(r, ring_q_bytes(r, r->rank), "O")))
        return -1;
    if (r->backend->poison(r, r->O, ring_q_bytes(r, r->rank)) != 0 ||
        r->backend->poison(r, r->lse, ring_row_bytes(r, r->rank)) != 0 ||
        timed_pass(r, task, forward_pass, ms) != 0)
        return -1;
    if (!r->plan->backward)
        ring_method_end(r);
    begin_pass(r, RING_SETUP);
    return last ? ring_collect_forward(r, task) : 0;
}

/* Nor must gradients of an earlier round, or of the local baseline, which are the same without a
 * mask and messages. A pass allocates them while it is timed, and a GPU's backend hands out memory
 * that it has kept as it was. So they are poisoned behind the pass that made them. */
static int drop_gradients(RingRank *r)
{
    if (r->backend->poison(r, r->dQ, r->dQ_bytes) != 0 ||
        r->backend->poison(r, r->dK, r->dK_bytes) != 0 ||
        r->backend->poison(r, r->dV, r->dV_bytes) != 0)
        return -1;
    free_gradients(r);
    return 0;
}

static int backward_round(RingRank *r, const RingTask *task, int last, double *ms)
{
    begin_pass(r, RING_BACKWARD);
    r->dO = read_shard(r, &task->args->dO, &r->plan->q[r->rank], ring_q_bytes(r, r->rank), "dO");
    if (!r->dO || timed_pass(r, task, backward_pass, ms) != 0)
        return -1;
    ring_method_end(r);
    if (!r->dQ || !r->dK || !r->dV)
        return ring_fail(r, "the method's backward pass left no dQ, dK or dV");
    begin_pass(r, RING_SETUP);
    if (last && ring_collect_backward(r, task) != 0)
        return -1;
    return drop_gradients(r);
}

/* The local baseline, forward and backward, right behind the round that it is compared with:
 * whatever slows a GPU down slows both. ms[0], ms[1]: of one call. */
static int baseline_round(RingRank *r, const RingTask *task, double ms[2])
{
    const size_t peaks[2] = {r->peak_bytes, r->peak_backward_bytes};
    const size_t q_bytes = ring_q_bytes(r, r->rank), kv_bytes = ring_kv_bytes(r, r->rank);
    const int trace = r->log->trace;
    r->log->trace = 0;
    begin_pass(r, RING_FORWARD);
    if ((!r->O && !(r->O = ring_alloc(r, q_bytes, "O"))) ||
        timed_pass(r, task, baseline_pass, &ms[0]) != 0)
        return -1;
    if (r->plan->backward) {
        begin_pass(r, RING_BACKWARD);
        r->dO =
            read_shard(r, &task->args->dO, &r->plan->q[r->rank], ring_q_bytes(r, r->rank), "dO");
        r->dQ = ring_alloc(r, r->dQ_bytes = q_bytes, "dQ");
        r->dK = ring_alloc(r, r->dK_bytes = kv_bytes, "dK");
        r->dV = ring_alloc(r, r->dV_bytes = kv_bytes, "dV");
        if (r->failed || timed_pass(r, task, baseline_pass, &ms[1]) != 0 || drop_gradients(r) != 0)
            return -1;
    }
    begin_pass(r, RING_SETUP);
    r->log->trace = trace;
    r->peak_bytes = peaks[0];
    r->peak_backward_bytes = peaks[1];
    ms[0] /= task->baseline_calls;
    ms[1] /= task->baseline_calls;
    return 0;
}

/* Marks become times when all queues are empty. */
static void resolve_events(RingRank *r)
{
    for (int64_t e = 0; e < r->log->event_count; e++) {
        RingEvent *event = &r->log->events[e];
        event->start_ms = r->backend->mark_ms(r, event->start_mark);
        if (event->end_mark >= 0)
            event->end_ms = r->backend->mark_ms(r, event->end_mark);
    }
}

/* ms [4][rounds]: forward, backward; the local baseline forward, backward. Warm-up rounds have
 * negative numbers and are thrown away: in the first one memory is touched for the first time,
 * libraries open their connections, kernels are loaded. */
static int play(RingRank *r, const RingTask *task, double *ms)
{
    for (int round = -task->warmup; round < task->rounds; round++) {
        const int last = round == task->rounds - 1;
        double forward_ms, backward_ms = 0.0, baseline_ms[2] = {0.0, 0.0};
        ring_log_restart(r->log);
        r->backend->forget_marks(r);
        if (forward_round(r, task, last, &forward_ms) != 0 ||
            (r->plan->backward && backward_round(r, task, last, &backward_ms) != 0) ||
            (task->baseline_calls > 0 && baseline_round(r, task, baseline_ms) != 0))
            return -1;
        if (round >= 0) {
            ms[round] = forward_ms;
            ms[task->rounds + round] = backward_ms;
            ms[2 * task->rounds + round] = baseline_ms[0];
            ms[3 * task->rounds + round] = baseline_ms[1];
        }
    }
    resolve_events(r);
    return ring_fault_missed(r);
}

/* Rank 0, after it has heard of all others. */
static void keep_times(const RingTask *task, const double *ms)
{
    double *const kept[] = {task->forward_ms, task->backward_ms, task->baseline_ms,
                            task->baseline_backward_ms};
    for (int which = 0; which < 4; which++)
        if (kept[which])
            memcpy(kept[which], ms + which * task->rounds, (size_t)task->rounds * sizeof *ms);
}

int ring_rank_main(RingRank *r, const RingTask *task)
{
    double *ms = calloc((size_t)task->rounds * 4, sizeof *ms);
    r->log = ring_log_new(task->trace);
    if (!ms || !r->log) {
        free(ms);
        return ring_fail(r, "out of memory");
    }
    if (set_up(r, task) == 0 && play(r, task, ms) == 0 && r->transport->barrier(r) == 0 &&
        ring_collect_times(r, ms, 4 * task->rounds) == 0 && r->rank == 0)
        keep_times(task, ms);
    tear_down(r, task);
    free(ms);
    return r->failed ? -1 : 0;
}
