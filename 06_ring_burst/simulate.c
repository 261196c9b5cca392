/* SPDX-License-Identifier: MIT
 *
 * simulate.c: somebody's own method, run over simulated ranks on the CPU.
 *
 * The user's shared object has the method, the program has the world. ring_simulate is called from
 * the object and runs here: threads as ranks, a log for each, the same job as for the program's own
 * methods. So a student's ring is watched by the same eyes: flight, deadlock, bytes.
 *
 * Interface: see simulate.h.
 */
#include "simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agree.h"

static RingSetup chosen = {.ranks = 4, .nodes = 1, .timeout_s = 60.0, .threads = 1};

/* The program's side, before the shared object is called; it runs in a child process and finds what
 * was chosen here. */
void ring_simulate_setup(const RingSetup *setup)
{
    chosen = *setup;
}

/* Where the forward pass of a backward call writes to: the caller's O and lse are its inputs. */
static int scratch_outputs(AttnArgs *args, void **memory)
{
    const AttnShape *n = &args->shape;
    const size_t rows = (size_t)(n->B * n->H * n->Nq);
    *memory = malloc(rows * (size_t)(n->d + 1) * sizeof(float));
    if (!*memory)
        return -1;
    args->lse = *memory;
    args->O.data = args->lse + rows;
    args->O.stride[2] = n->d;
    args->O.stride[1] = n->H * n->d;
    args->O.stride[0] = n->Nq * n->H * n->d;
    return 0;
}

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
    const RingJob job = {.plan = plan,
                         .args = args,
                         .rounds = 1,
                         .method = method,
                         .forward_ms = &ms[0],
                         .backward_ms = plan->backward ? &ms[1] : NULL};
    AttnStatus status = ATTN_OK;
    char sentence[256];
    RingModelCase m;
    RingReport *report = calloc(1, sizeof *report);
    if (!report || ring_model_case(&m, plan) != 0) {
        free(report);
        return refuse("out of memory for the ranks", ATTN_NO_MEMORY);
    }
    if (ring_world_sim(&job, &ring_space_cpu, report) != 0)
        status = refuse(report->failure, RING_FAILED);
    else if (plan->setup.fault.kind == RING_NO_FAULT &&
             !ring_bytes_agree(&m, report, plan->backward, sentence, sizeof sentence))
        status = refuse(sentence, RING_FAILED);
    ring_model_free(&m);
    ring_report_free(report);
    free(report);
    return status;
}

/* A backward pass needs what its forward pass left (visitors, O, lse), so a backward call runs
 * both. */
AttnStatus ring_simulate(const AttnArgs *args, RingMethod like, const RingMethodTable *method,
                         int backward)
{
    AttnArgs mine = *args;
    RingSetup setup = chosen;
    RingPlan plan;
    char why[256];
    void *memory = NULL;
    AttnStatus status;
    setup.method = like;
    if (!ring_method(like))
        return refuse("ring_simulate: there is no method of this number", RING_FAILED);
    if (method && (!method->forward || (backward && !method->backward)))
        return refuse(method->forward ? "ring_simulate: the table has no backward pass"
                                      : "ring_simulate: the table has no forward pass",
                      RING_FAILED);
    if (!backward)
        mine.dO.data = NULL; /* no backward pass follows */
    if (ring_plan_make(&plan, &mine, &setup, why) != 0)
        return refuse(why, ATTN_SKIP);
    if (backward && scratch_outputs(&mine, &memory) != 0)
        status = refuse("out of memory for O and lse", ATTN_NO_MEMORY);
    else
        status = run(&plan, &mine, method);
    ring_plan_free(&plan);
    free(memory);
    return status;
}
