/* SPDX-License-Identifier: MIT
 *
 * world_sim.c: all ranks as threads of this process: a cluster for somebody with one machine.
 *
 * Each thread runs the same ring_rank_main as an MPI process or a GPU does, over its own shard, and
 * learns of the others only through messages. What it has to tell is collected when all have ended;
 * nobody can hang, since every wait ends by itself.
 *
 * Interface: ring_world_sim (ring_world.h).
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "transports/threads/sim.h"

typedef struct SimThread {
    RingRank *rank;
    const RingTask *task;
    pthread_t thread;
} SimThread;

/* What mpirun's processes do by having a main of their own. */
static void *rank_thread(void *context)
{
    SimThread *t = context;
    SimEndpoint *e = t->rank->endpoint;
    if (e->world->scheduled)
        sim_turn_begin(e);
    ring_rank_main(t->rank, t->task);
    sim_rank_ends(e);
    return NULL;
}

/* A rank that could not be started has failed before it began: the others give up. */
static void run_threads(SimWorld *world, SimThread *threads)
{
    int started = 0;
    while (started < world->ranks &&
           pthread_create(&threads[started].thread, NULL, rank_thread, &threads[started]) == 0)
        started++;
    if (started < world->ranks)
        ring_fail(threads[started].rank, "the system starts no more threads");
    for (int rank = 0; rank < started; rank++)
        pthread_join(threads[rank].thread, NULL);
}

/* After pthread_join: nobody writes any more, so no lock is needed to read what the ranks have
 * left. */
static void collect(SimWorld *world, RingRank *ranks, RingReport *report)
{
    report->ranks = world->ranks;
    report->schedule = world->scheduled ? world->fingerprint : 0;
    for (int rank = 0; rank < world->ranks; rank++) {
        ring_rank_report(&ranks[rank], report);
        report->failed |= ranks[rank].failed;
        ring_rank_release(&ranks[rank]);
    }
    snprintf(report->failure, sizeof report->failure, "%s", world->failure);
    for (int rank = 0; report->failed && !report->failure[0] && rank < world->ranks; rank++)
        if (report->rank[rank].failed)
            snprintf(report->failure, sizeof report->failure, "%s", report->rank[rank].failure);
}

/* The cores are dealt out to the ranks: with more ranks than cores each has one thread, and they
 * take turns. */
int ring_world_sim(const RingTask *task, const RingBackend *backend, RingReport *report)
{
    const RingSetup *setup = &task->plan->setup;
    const int G = setup->ranks;
    RingRank ranks[RING_MAX_RANKS];
    SimThread threads[RING_MAX_RANKS];
    SimWorld world;
    memset(report, 0, sizeof *report);
    if (sim_world_open(&world, ranks, setup) != 0) {
        report->failed = 1;
        snprintf(report->failure, sizeof report->failure, "out of memory for %d ranks", G);
        return -1;
    }
    for (int rank = 0; rank < G; rank++) {
        ranks[rank] = (RingRank){.rank = rank,
                                 .world = G,
                                 .plan = task->plan,
                                 .transport = &ring_transport_sim,
                                 .backend = backend,
                                 .endpoint = &world.endpoints[rank],
                                 .threads = setup->threads > G ? setup->threads / G : 1};
        threads[rank] = (SimThread){.rank = &ranks[rank], .task = task};
    }
    run_threads(&world, threads);
    collect(&world, ranks, report);
    sim_world_close(&world);
    return report->failed ? -1 : 0;
}
