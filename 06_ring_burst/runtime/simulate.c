/* SPDX-License-Identifier: MIT
 *
 * simulate.c: somebody's own method, run over simulated ranks on the CPU.
 *
 * The user's shared object has the method, the program has the world. ring_simulate is called from
 * the object and runs here: threads as ranks, a log for each, the same task as for the program's
 * own methods. So a student's ring is watched by the same checks: flight, deadlock, bytes. One more
 * is made here: a rank's shard must not change.
 *
 * Interface: see simulate.h.
 */
#include "runtime/simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost.h"

static RingSetup chosen = {.ranks = 4, .nodes = 1, .timeout_s = 60.0, .threads = 1};

/* The program's side, in the process of the shared object and before that is loaded. */
void ring_simulate_setup(const RingSetup *setup)
{
    chosen = *setup;
}

/* --- inputs stay as they are -------------------------------------------------------------------*/

/* The method that is being run; our two passes stand around its own. */
static const RingMethodTable *theirs;

typedef struct Inputs {
    uint64_t of[4]; /* Q, K, V, dO */
} Inputs;

/* FNV-1a: any byte that changes changes the number. */
static uint64_t fingerprint(const void *p, size_t bytes)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; p && i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)p)[i]) * UINT64_C(0x100000001B3);
    return hash;
}

static Inputs inputs_of(const RingRank *r)
{
    const size_t q = ring_q_bytes(r, r->rank), kv = ring_kv_bytes(r, r->rank);
    return (Inputs){{fingerprint(r->Q, q), fingerprint(r->K, kv), fingerprint(r->V, kv),
                     fingerprint(r->dO, q)}};
}

/* A method that scales Q in place, or receives a remote block into its own K, may be right in one
 * pass. The next pass reads the same shard and is wrong, which a run of one pass would not show. */
static int watch(RingRank *r, int (*pass)(RingRank *r))
{
    static const char *const names[] = {"Q", "K", "V", "dO"};
    const Inputs before = inputs_of(r);
    const int status = pass(r);
    const Inputs after = inputs_of(r);
    for (int i = 0; status == 0 && !r->failed && i < 4; i++)
        if (before.of[i] != after.of[i])
            return ring_fail(r, "the method wrote into its own %s, which is an input", names[i]);
    return status;
}

static int watched_forward(RingRank *r)
{
    return watch(r, theirs->forward);
}

static int watched_backward(RingRank *r)
{
    return watch(r, theirs->backward);
}

/* --- a run -------------------------------------------------------------------------------------*/

static AttnStatus refuse(const char *why, AttnStatus status)
{
    fprintf(stderr, "%s\n", why);
    return status;
}

/* The run itself, and what the ranks sent. One round, no warm-up: what is judged is whether it is
 * right. The plan is that of the method it says it is like, so its bytes are compared with that
 * one's formulas. */
static AttnStatus run(const RingPlan *plan, const AttnArgs *args, const RingMethodTable *method)
{
    double ms[2];
    const RingMethodTable watched =
        method ? (RingMethodTable){method->open, watched_forward, watched_backward, method->close}
               : (RingMethodTable){0};
    const RingTask task = {.plan = plan,
                           .args = args,
                           .rounds = 1,
                           .method = method ? &watched : NULL,
                           .forward_ms = &ms[0],
                           .backward_ms = plan->backward ? &ms[1] : NULL};
    AttnStatus status = ATTN_OK;
    const RingModelCase m = ring_model_case(plan);
    char sentence[256];
    RingReport *report = calloc(1, sizeof *report);
    theirs = method;
    if (!report)
        return refuse("out of memory for the ranks", ATTN_NO_MEMORY);
    if (ring_world_sim(&task, &ring_backend_cpu, report) != 0)
        status = refuse(report->failure, RING_FAILED);
    else if (!ring_bytes_agree(&m, report, plan->backward, sentence, sizeof sentence))
        status = refuse(sentence, RING_FAILED);
    ring_report_free(report);
    free(report);
    return status;
}

/* A backward pass needs what its forward pass left (remote blocks, O, lse), so a backward call runs
 * both. Of the forward pass nothing is collected then: the caller's O and lse are its inputs. */
AttnStatus ring_simulate(const AttnArgs *args, RingMethod like, const RingMethodTable *method,
                         int backward)
{
    AttnArgs mine = *args;
    RingSetup setup = chosen;
    RingPlan plan;
    char why[256];
    AttnStatus status;
    setup.method = like;
    if (!ring_method(like))
        return refuse("ring_simulate: there is no method of this number", RING_FAILED);
    if (method && (!method->forward || (backward && !method->backward)))
        return refuse(method->forward ? "ring_simulate: the table has no backward pass"
                                      : "ring_simulate: the table has no forward pass",
                      RING_FAILED);
    if (backward)
        mine.O.data = mine.lse = NULL;
    else
        mine.dO.data = NULL; /* no backward pass follows */
    if (ring_plan_make(&plan, &mine, &setup, why) != 0)
        return refuse(why, ATTN_SKIP);
    status = run(&plan, &mine, method);
    ring_plan_free(&plan);
    return status;
}
