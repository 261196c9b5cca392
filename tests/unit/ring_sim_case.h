/* SPDX-License-Identifier: MIT
 *
 * ring_sim_case.h: a small attention over ranks that are threads, for the tests of what lies below
 * the methods: messages, memory, faults.
 *
 * The method is one of the tests' own, so that these tests do not depend on the stage's: keys go
 * round, one hop a step; backward they go round once more with their gradients, G hops, all of it
 * at once and without overlap.
 *
 * Interface:
 * - SimCase, sim_case, sim_case_free: a problem, a plan and a task.
 * - sim_run: the task; 0, or -1 and report.failure.
 * - sim_right: do all results agree with the oracle?
 * - plain_ring: the method.
 * - sim_causal, sim_run_table, sim_same_bits: small things that several tests need.
 */
#ifndef RING_SIM_CASE_H
#define RING_SIM_CASE_H

#include "alloc.h"
#include "judge_case.h"
#include "runtime/ring_world.h"

typedef struct SimCase {
    Case *problem;
    RingPlan plan;
    RingTask task;
    RingReport report;
} SimCase;

/* --- a plain ring ------------------------------------------------------------------------------*/

typedef struct PlainRing { /* memory of a method that fails is found here */
    void *K[2], *V[2];
    float *O_state, *dK[2], *dV[2], *delta;
} PlainRing;

static inline size_t plain_room(const RingRank *r)
{
    return (size_t)ring_kv_count(r, ring_max_nk(r)) * sizeof(float);
}

static inline int plain_open(RingRank *r)
{
    PlainRing *ring = r->method = calloc(1, sizeof *ring);
    const size_t room = plain_room(r);
    assert_non_null(ring);
    for (int n = 0; n < 2; n++) {
        ring->K[n] = ring_alloc(r, room, "K that visits");
        ring->V[n] = ring_alloc(r, room, "V that visits");
        ring->dK[n] = ring_alloc(r, room, "dK that visits");
        ring->dV[n] = ring_alloc(r, room, "dV that visits");
    }
    ring->O_state = ring_alloc(r, (size_t)ring_q_count(r, r->nq) * sizeof(float), "O");
    ring->delta = ring_alloc(r, ring_row_bytes(r, r->rank), "delta");
    return r->failed ? -1 : 0;
}

static inline void plain_close(RingRank *r)
{
    PlainRing *ring = r->method;
    for (int n = 0; ring && n < 2; n++) {
        ring_free(r, ring->K[n], plain_room(r));
        ring_free(r, ring->V[n], plain_room(r));
        ring_free(r, ring->dK[n], plain_room(r));
        ring_free(r, ring->dV[n], plain_room(r));
    }
    if (ring) {
        ring_free(r, ring->O_state, (size_t)ring_q_count(r, r->nq) * sizeof(float));
        ring_free(r, ring->delta, ring_row_bytes(r, r->rank));
    }
    free(ring);
}

static inline int plain_next(const RingRank *r, int places)
{
    return (r->rank + places + r->world) % r->world;
}

/* K and V of `owner` go up, those of owner - 1 come into place t % 2. */
static inline int plain_post(RingRank *r, RingExchange *x, int t, const RingBlock *k)
{
    const PlainRing *ring = r->method;
    const int up = plain_next(r, 1), down = plain_next(r, -1), G = r->world;
    const size_t out = ring_kv_bytes(r, k->owner), in = ring_kv_bytes(r, (k->owner + G - 1) % G);
    return ring_send(r, x, up, RING_K, k->a, out) || ring_send(r, x, up, RING_V, k->b, out) ||
                   ring_receive(r, x, down, RING_K, ring->K[t % 2], in) ||
                   ring_receive(r, x, down, RING_V, ring->V[t % 2], in)
               ? -1
               : 0;
}

static inline int plain_forward(RingRank *r)
{
    const PlainRing *ring = r->method;
    const RingBlock q = ring_own_queries(r);
    RingBlock k = ring_own_keys(r);
    if (ring_start_state(r, &q, ring->O_state, r->lse) != 0)
        return -1;
    for (int t = 0; t < r->world; t++) {
        RingExchange x = {0};
        if (ring_step(r, t) != 0 || (t + 1 < r->world && plain_post(r, &x, t, &k) != 0) ||
            ring_start(r, &x) != 0 || ring_attend(r, &q, &k, ring->O_state, r->lse) != 0 ||
            ring_round(r, ring->O_state, ring_q_count(r, r->nq)) != 0 || ring_wait(r, &x) != 0)
            return -1;
        k = ring_remote_keys(r, (k.owner + r->world - 1) % r->world, ring->K[t % 2],
                             ring->V[t % 2]);
    }
    return ring_finish_O(r, &q, r->O, ring->O_state);
}

/* The sums of `owner` go up behind its keys; those of owner - 1 come. */
static inline int plain_pass_sums(RingRank *r, int t, int owner)
{
    const PlainRing *ring = r->method;
    const int up = plain_next(r, 1), down = plain_next(r, -1), G = r->world;
    const size_t out = (size_t)ring_kv_count(r, r->plan->k[owner].tokens) * sizeof(float);
    const size_t in =
        (size_t)ring_kv_count(r, r->plan->k[(owner + G - 1) % G].tokens) * sizeof(float);
    RingExchange x = {0};
    if (ring_send(r, &x, up, RING_DK, ring->dK[t % 2], out) ||
        ring_send(r, &x, up, RING_DV, ring->dV[t % 2], out) ||
        ring_receive(r, &x, down, RING_DK, ring->dK[1 - t % 2], in) ||
        ring_receive(r, &x, down, RING_DV, ring->dV[1 - t % 2], in) || ring_start(r, &x))
        return -1;
    return ring_wait(r, &x);
}

static inline int plain_differentiate(RingRank *r, const RingBlock *q)
{
    const PlainRing *ring = r->method;
    RingBlock k = ring_own_keys(r);
    if (ring_zero(r, ring->dK[0], plain_room(r)) || ring_zero(r, ring->dV[0], plain_room(r)))
        return -1;
    for (int t = 0; t < r->world; t++) {
        RingExchange x = {0};
        if (ring_step(r, t) != 0 || (t + 1 < r->world && plain_post(r, &x, t, &k) != 0) ||
            ring_start(r, &x) != 0 ||
            ring_differentiate(r, q, &k, r->dQ, ring->dK[t % 2], ring->dV[t % 2]) != 0 ||
            ring_wait(r, &x) != 0 || (r->world > 1 && plain_pass_sums(r, t, k.owner) != 0))
            return -1;
        k = ring_remote_keys(r, (k.owner + r->world - 1) % r->world, ring->K[t % 2],
                             ring->V[t % 2]);
    }
    return 0;
}

static inline int plain_backward(RingRank *r)
{
    const PlainRing *ring = r->method;
    const int64_t q_count = ring_q_count(r, r->nq), kv_count = ring_kv_count(r, r->nk);
    const int home = r->world > 1 ? r->world % 2 : 0; /* where the sums are after G hops */
    RingBlock q = ring_own_queries(r);
    q.delta = ring->delta;
    r->dQ_bytes = (size_t)q_count * sizeof(float);
    r->dK_bytes = r->dV_bytes = (size_t)kv_count * sizeof(float);
    r->dQ_whole = r->dKV_whole = 1;
    r->dQ = ring_alloc(r, r->dQ_bytes, "dQ");
    r->dK = ring_alloc(r, r->dK_bytes, "dK");
    r->dV = ring_alloc(r, r->dV_bytes, "dV");
    if (r->failed || ring_zero(r, r->dQ, r->dQ_bytes) || ring_delta(r, &q, r->O, ring->delta) ||
        plain_differentiate(r, &q) ||
        ring_copy(r, r->dK, r->dK_bytes, ring->dK[home], r->dK_bytes, r->dK_bytes, 1) ||
        ring_copy(r, r->dV, r->dV_bytes, ring->dV[home], r->dV_bytes, r->dV_bytes, 1))
        return -1;
    return ring_narrow(r, r->dQ, q_count, r->plan->dtype) ||
                   ring_narrow(r, r->dK, kv_count, r->plan->dtype) ||
                   ring_narrow(r, r->dV, kv_count, r->plan->dtype)
               ? -1
               : 0;
}

static const RingMethodTable plain_ring = {plain_open, plain_forward, plain_backward, plain_close};

/* --- a run -------------------------------------------------------------------------------------*/

static inline RingSetup sim_setup(int ranks, RingLayout layout)
{
    return (RingSetup){.method = RING_METHOD_RING,
                       .layout = layout,
                       .ranks = ranks,
                       .nodes = 1,
                       .deterministic = 1,
                       .timeout_s = 20.0,
                       .threads = 1};
}

/* The problem changes hands; causal unless its rule says otherwise already. */
static inline SimCase *sim_case(Case *problem, const RingSetup *setup, const RingMethodTable *table)
{
    SimCase *c = calloc(1, sizeof *c);
    char why[256];
    assert_non_null(c);
    c->problem = problem;
    assert_int_equal(0, ring_plan_make(&c->plan, &problem->args, setup, why));
    c->task = (RingTask){.plan = &c->plan, .args = &problem->args, .rounds = 1, .method = table};
    return c;
}

static inline int sim_run(SimCase *c)
{
    ring_report_free(&c->report);
    return ring_world_sim(&c->task, &ring_backend_cpu, &c->report);
}

static inline void sim_case_free(SimCase *c)
{
    ring_report_free(&c->report);
    ring_plan_free(&c->plan);
    case_free(c->problem);
    free(c);
}

static inline int sim_right(const SimCase *c, const char *label)
{
    Oracle oracle = oracle_of(&c->problem->args, c->plan.backward, 1);
    const int right = case_agrees(c->problem, &oracle, c->plan.backward, 4, label);
    oracle_free(&oracle);
    return right;
}

static inline Case *sim_causal(int64_t N)
{
    const Option o = {"causal", {1, 2, 1, 1, 1, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, -1, 0, 0, 0};
    Option sized = o;
    sized.shape.Nq = sized.shape.Nk = N;
    return case_option(&sized, ATTN_F32, 1, 1);
}

/* A method whose forward pass alone is run; part: what its failure says, NULL: none. */
static inline void sim_run_table(const RingMethodTable *table, RingSetup setup, const char *part)
{
    SimCase *c = sim_case(sim_causal(8), &setup, table);
    int status;
    c->plan.backward = 0;
    status = sim_run(c);
    if (part && (status == 0 || !strstr(c->report.failure, part)))
        fail_msg("expected '%s', found '%s'", part, c->report.failure);
    if (!part && status != 0)
        fail_msg("%s", c->report.failure);
    assert_int_equal(0, workspace_live());
    sim_case_free(c);
}

static inline void sim_same_bits(const Tensor *a, const Tensor *b)
{
    for (int64_t i = 0; i < a->shape[0]; i++)
        for (int64_t n = 0; n < a->shape[1]; n++)
            for (int64_t h = 0; h < a->shape[2]; h++)
                for (int64_t x = 0; x < a->shape[3]; x++)
                    assert_int_equal(0, memcmp(&(float){case_get(a, i, n, h, x)},
                                               &(float){case_get(b, i, n, h, x)}, sizeof(float)));
}

#endif
