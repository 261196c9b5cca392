/* SPDX-License-Identifier: MIT
 *
 * world_mpi.c: a run over MPI, as one of its ranks sees it, and the transport that it uses.
 *
 * All processes have read the same command line and made the same inputs from the same seed, so
 * nothing needs to be dealt out: each rank takes its shard from its own copy. What comes together
 * on rank 0 are results, bytes and times.
 *
 * Interface: ring_world_mpi (world_mpi.h), ring_transport_mpi (messages_mpi.h).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transports/mpi/mpi_end.h"
#include "transports/mpi/world_mpi.h"

/* --- the transport -----------------------------------------------------------------------------*/

static int mpi_start(RingRank *r, RingExchange *x)
{
    x->ticket = mpi_post(r, x->list, x->count);
    return x->ticket ? 0 : -1;
}

static int mpi_wait(RingRank *r, RingExchange *x)
{
    return mpi_finish(r, x->ticket, x->list);
}

/* The other ranks wait for messages that will not come, so all end together. */
static void mpi_abandon(RingRank *r)
{
    mpi_abort(r->failure);
}

/* As a crash would: no MPI_Finalize, no message, no clean-up. mpirun sees the exit status and ends
 * the others. */
static void mpi_leave(RingRank *r)
{
    (void)r;
    _exit(3); /* EXIT_RUNTIME of cli.h */
}

static void mpi_note(RingRank *r)
{
    mpi_be_at(r, HEART_COMPUTE, 0, 0);
}

const RingTransport ring_transport_mpi = {.name = "mpi",
                                          .start = mpi_start,
                                          .wait = mpi_wait,
                                          .barrier = mpi_barrier,
                                          .abandon = mpi_abandon,
                                          .leave = mpi_leave,
                                          .note = mpi_note};

/* --- a run ------------------------------------------------------------------------------------*/

/* A number that differs between cases, so that no rank takes part in another case than the others:
 * FNV-1a over the plan's numbers; never 0. */
static int number_of(const RingPlan *plan)
{
    const RingSetup *s = &plan->setup;
    const int64_t all[] = {plan->shape.B,  plan->shape.H, plan->shape.Hkv, plan->shape.Nq,
                           plan->shape.Nk, plan->shape.d, plan->dtype,     plan->backward,
                           s->method,      s->layout,     s->ranks,        s->nodes,
                           s->partials,    s->fault.kind, s->fault.step,   s->verify_hops};
    uint32_t sum = 2166136261u;
    size_t i;
    for (i = 0; i < sizeof all / sizeof *all; i++)
        sum = (sum ^ (uint32_t)all[i]) * 16777619u;
    return (int)(sum >> 2) + 1;
}

/* A mistake of the program, not of the user. */
static int refuse(RingReport *report, const char *why)
{
    report->failed = 1;
    snprintf(report->failure, sizeof report->failure, "%s", why);
    return -1;
}

/* The same ring_rank_main as for threads. Around it: go (all mean the same run), settle (no message
 * is left over), and the reports of all ranks. A rank that fails ends all processes (mpi_abandon):
 * whoever comes back from these has not failed. */
int ring_world_mpi(const RingTask *task, const RingBackend *backend, RingReport *report)
{
    MpiEnd *e = ring_mpi_end();
    RingRank r;
    int world = e ? e->world : 0;
    memset(report, 0, sizeof *report);
    memset(&r, 0, sizeof r);
    if (!e || world != task->plan->setup.ranks)
        return refuse(report, e ? "the plan is not made for as many ranks as MPI has"
                                : "MPI has not been started");
    report->ranks = world;
    r.rank = e->rank;
    r.world = world;
    r.plan = task->plan;
    r.transport = &ring_transport_mpi;
    r.backend = backend;
    r.threads = task->plan->setup.threads > world ? task->plan->setup.threads / world : 1;
    const int said = mpi_go(e, number_of(task->plan));
    if (said == MPI_GIVES_UP)
        ring_mpi_give_up();
    if (said == MPI_PASSED)
        return refuse(report, "rank 0 has passed over this case");
    mpi_begin(e, &r);
    ring_rank_main(&r, task);
    mpi_settle(&r);
    ring_report_gather(&r, report);
    ring_rank_release(&r);
    return 0;
}
