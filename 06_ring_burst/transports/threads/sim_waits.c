/* SPDX-License-Identifier: MIT
 *
 * sim_waits.c: who waits for whom.
 *
 * A thread that waits knows more than a process that does: it can look at all others. If nobody
 * runs, and nobody's message is there, nobody ever will go on: a deadlock, told at once, without
 * waiting for a time-out. The classic one, in which everybody receives before anybody sends:
 *
 *     deadlock; rank 0 is waiting for K from rank 3 (forward step 0); rank 1 is waiting for K from
 *     rank 0 (forward step 0); ...
 *
 * The time-out is for a rank that runs and does not come.
 *
 * Interface: sim_world_open, sim_world_close, sim_call_all, sim_missing, sim_transfer,
 * sim_can_go_on, sim_deadlock, sim_look_for_deadlock, sim_give_reason (sim.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transports/threads/sim.h"

/* --- the world ---------------------------------------------------------------------------------*/

/* One lock for the whole world. A network has none, but with one lock "can anybody go on?" is a
 * question that can be answered: nobody changes anything while it is asked. */
int sim_world_open(SimWorld *world, RingRank *ranks, const RingSetup *setup)
{
    const size_t G = (size_t)setup->ranks;
    pthread_condattr_t steady;
    memset(world, 0, sizeof *world);
    world->ranks = setup->ranks;
    world->channels = calloc(G * G * SIM_CHANNELS, sizeof *world->channels);
    if (!world->channels)
        return -1;
    pthread_mutex_init(&world->lock, NULL);
    pthread_condattr_init(&steady); /* time-outs do not care about a changed wall clock */
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    for (size_t rank = 0; rank < G; rank++) {
        SimEndpoint *e = &world->endpoints[rank];
        e->world = world;
        e->rank = &ranks[rank];
        pthread_cond_init(&e->call, &steady);
    }
    pthread_condattr_destroy(&steady);
    if (setup->adversarial)
        sim_schedule_start(world, setup->schedule_seed);
    return 0;
}

void sim_world_close(SimWorld *world)
{
    for (int rank = 0; rank < world->ranks; rank++)
        pthread_cond_destroy(&world->endpoints[rank].call);
    pthread_mutex_destroy(&world->lock);
    free(world->channels);
}

void sim_call_all(SimWorld *world)
{
    for (int rank = 0; rank < world->ranks; rank++)
        pthread_cond_signal(&world->endpoints[rank].call);
}

/* --- who can go on -----------------------------------------------------------------------------*/

/* A ticket is complete when all its messages are, in whatever order they came. */
const SimPost *sim_missing(const SimTicket *ticket)
{
    for (int p = 0; p < ticket->count; p++)
        if (!ticket->post[p].complete)
            return &ticket->post[p];
    return NULL;
}

static int peer_of(const SimPost *post)
{
    return post->sends ? post->to : post->from;
}

/* A rank that is gone will not answer. */
static int hopeless(const SimWorld *world, const SimTicket *ticket)
{
    for (int p = 0; p < ticket->count; p++)
        if (!ticket->post[p].complete &&
            world->endpoints[peer_of(&ticket->post[p])].state == SIM_GONE)
            return 1;
    return 0;
}

/* Nobody passes a barrier any more when one rank will never come. */
static int somebody_gone(const SimWorld *world)
{
    for (int rank = 0; rank < world->ranks; rank++)
        if (world->endpoints[rank].state == SIM_GONE)
            return 1;
    return 0;
}

/* The heart of the detector. Each rank either runs, or waits for something that has happened, or
 * can never go on by itself. If the last is true of all, nothing will ever happen again. */
int sim_can_go_on(const SimEndpoint *e)
{
    switch (e->state) {
    case SIM_RUNNING:
        return 1;
    case SIM_IN_EXCHANGE:
        return !sim_missing(e->ticket) || hopeless(e->world, e->ticket);
    case SIM_IN_BARRIER:
        return e->barrier_round != e->world->barrier_round || somebody_gone(e->world);
    default:
        return 0;
    }
}

RingTransfer sim_transfer(const SimPost *post)
{
    return (RingTransfer){
        .sends = post->sends, .peer = peer_of(post), .tensor = (RingTensor)post->channel};
}

/* "rank 2 is waiting for K from rank 1 (forward step 1)": follow such sentences from rank to rank,
 * and where one leads back to the beginning is the circle. */
static int tell_one(const SimEndpoint *e, char *text, size_t room)
{
    char words[80] = "waiting for all ranks", where[48] = "";
    if (e->state == SIM_IN_EXCHANGE) {
        const RingTransfer transfer = sim_transfer(sim_missing(e->ticket));
        ring_transfer_words(&transfer, words);
    }
    if (e->state >= SIM_ENDED)
        snprintf(words, sizeof words, "%s", e->state == SIM_ENDED ? "done" : "gone");
    else if (!e->outside)
        snprintf(where, sizeof where, " (%s step %d)", ring_pass_name(e->pass), e->step);
    return snprintf(text, room, "; rank %d is %s%s", e->rank->rank, words, where);
}

/* Is a less far on than b? Ranks that are through with a pass come later, those that have ended
 * last. */
static int behind(const SimEndpoint *a, const SimEndpoint *b)
{
    if ((a->state >= SIM_ENDED) != (b->state >= SIM_ENDED))
        return a->state < SIM_ENDED;
    if (a->outside != b->outside)
        return b->outside;
    return a->pass != b->pass ? a->pass < b->pass : a->step < b->step;
}

/* The rank that is least far on stands first: usually it is the one to look at. */
void sim_deadlock(SimWorld *world)
{
    char told[RING_MAX_RANKS] = {0};
    size_t written = (size_t)snprintf(world->failure, sizeof world->failure, "deadlock");
    for (int count = 0; count < world->ranks; count++) {
        char text[192];
        size_t length;
        int least = 0;
        while (told[least])
            least++;
        for (int rank = least + 1; rank < world->ranks; rank++)
            if (!told[rank] && behind(&world->endpoints[rank], &world->endpoints[least]))
                least = rank;
        told[least] = 1;
        length = (size_t)tell_one(&world->endpoints[least], text, sizeof text);
        if (written + length + 8 > sizeof world->failure) {
            snprintf(world->failure + written, sizeof world->failure - written, "; ...");
            break;
        }
        memcpy(world->failure + written, text, length + 1);
        written += length;
    }
    world->failed = world->deadlock = 1;
    sim_call_all(world);
}

/* Free running: asked by each rank that stops running. A deadlock is a circle: 0 waits for 1, 1 for
 * 2, 2 for 0. It is not necessary to look for the circle. If nobody runs, no copy is being made and
 * no wait is fulfilled, then each waits for another who waits (or has ended), and since there are
 * finitely many ranks the chain must close. */
void sim_look_for_deadlock(SimWorld *world)
{
    int waiting = 0;
    for (int rank = 0; rank < world->ranks; rank++) {
        const SimEndpoint *e = &world->endpoints[rank];
        if (sim_can_go_on(e) || e->copies > 0)
            return;
        waiting += e->state == SIM_IN_EXCHANGE || e->state == SIM_IN_BARRIER;
    }
    if (waiting > 0 && !world->failed)
        sim_deadlock(world);
}

/* Locked. Why a wait ended without success, from the surest reason to the vaguest: a deadlock, a
 * rank that is known to be gone, a late peer, and last a failure that another rank tells. */
void sim_give_reason(const RingRank *r, const SimPost *post, int late, char text[96])
{
    const SimWorld *world = ((SimEndpoint *)r->endpoint)->world;
    const SimEndpoint *peer = post ? &world->endpoints[peer_of(post)] : NULL;
    int gone = 0;
    while (gone < world->ranks && world->endpoints[gone].state != SIM_GONE)
        gone++;
    if (world->deadlock)
        snprintf(text, 96, "deadlock");
    else if (gone < world->ranks)
        snprintf(text, 96, "rank %d is gone, last seen in %s step %d", gone,
                 ring_pass_name(world->endpoints[gone].pass), world->endpoints[gone].step);
    else if (late && peer)
        snprintf(text, 96, "nothing within %g s; rank %d was last seen in %s step %d",
                 r->plan->setup.timeout_s, peer->rank->rank, ring_pass_name(peer->pass),
                 peer->step);
    else if (late)
        snprintf(text, 96, "not all came within %g s", r->plan->setup.timeout_s);
    else
        snprintf(text, 96, "another rank has failed");
}
