/* SPDX-License-Identifier: MIT
 *
 * ring_sim_case.h: a small attention over ranks that are threads, for the tests of what lies below
 * the methods: messages, memory, faults.
 *
 * Where the method itself does not matter it is the stage's plainest one, ring-minimal. Tests with
 * passes of their own find memory for them in Rooms.
 *
 * Interface:
 * - SimCase, sim_case, sim_case_free: a problem, a plan and a task.
 * - sim_run: the task; 0, or -1 and report.failure.
 * - sim_right: do all results agree with the oracle?
 * - Rooms, rooms_open: memory for a method of a test's own, as its `open`.
 * - sim_causal, sim_message, sim_run_table: small things that several tests need.
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

/* --- memory ------------------------------------------------------------------------------------*/

/* Each has the bytes of any rank's keys in float32, or of its queries (O_state) or their rows. */
typedef struct Rooms {
    void *K[2], *V[2];
    float *O_state, *dK[2], *dV[2], *delta;
} Rooms;

static inline size_t room_bytes(const RingRank *r)
{
    return (size_t)ring_kv_count(r, ring_max_nk(r)) * sizeof(float);
}

/* Closed with the method's last pass. */
static inline void *new_room(RingRank *r, size_t bytes)
{
    RingBuffer room = {0};
    ring_open_buffer(r, &room, bytes, "a room");
    return room.data;
}

static inline int rooms_open(RingRank *r)
{
    Rooms *rooms = ring_method_state(r, sizeof *rooms);
    if (!rooms)
        return -1;
    for (int n = 0; n < 2; n++) {
        rooms->K[n] = new_room(r, room_bytes(r));
        rooms->V[n] = new_room(r, room_bytes(r));
        rooms->dK[n] = new_room(r, room_bytes(r));
        rooms->dV[n] = new_room(r, room_bytes(r));
    }
    rooms->O_state = new_room(r, (size_t)ring_q_count(r, r->nq) * sizeof(float));
    rooms->delta = new_room(r, ring_row_bytes(r, r->rank));
    return ring_status(r);
}

/* --- a run -------------------------------------------------------------------------------------*/

static inline RingSetup sim_setup(int ranks, RingLayout layout)
{
    return (RingSetup){.method = RING_METHOD_RING_MINIMAL,
                       .layout = layout,
                       .ranks = ranks,
                       .nodes = 1,
                       .deterministic = 1,
                       .timeout_s = 20.0,
                       .threads = 1};
}

/* The problem changes hands. table NULL: the method of the setup. */
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
    Case *c = case_new((AttnShape){1, 2, 1, N, N, 4}, ATTN_F32, LAYOUT_BSHD, 1);
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    return c;
}

/* One message, by the ranks at its ends; any other may call it, too. */
static inline int sim_message(RingRank *r, int from, int to, RingTensor tensor, void *data,
                              size_t bytes)
{
    RingExchange x = {0};
    if ((r->rank == from && ring_send(r, &x, to, tensor, data, bytes)) ||
        (r->rank == to && ring_receive(r, &x, from, tensor, data, bytes)) || ring_start(r, &x))
        return -1;
    return ring_wait(r, &x);
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

#endif
