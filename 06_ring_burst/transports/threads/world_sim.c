/* SPDX-License-Identifier: MIT
 *
 * world_sim.c: all ranks as threads of this process: a cluster for somebody with one machine.
 *
 * Each thread runs the same ring_rank_main as an MPI process or a GPU does, over its own shard, and
 * learns of the others only through messages. What it has to report is collected when all have
 * ended; nobody can hang, since every wait ends by itself.
 *
 * Who waits for whom? A thread that waits knows more than a process that does: it can look at all
 * others. If nobody runs, and nobody's message is there, nobody ever will go on: a deadlock,
 * reported at once, without waiting for a time-out. The classic one, in which everybody receives
 * before anybody sends:
 *
 *     deadlock; rank 0 is waiting for K from rank 3 (forward step 0); rank 1 is waiting for K from
 *     rank 0 (forward step 0); ...
 *
 * The time-out is for a rank that runs and does not come.
 *
 * The most unkind order of events that is still allowed: a program with a race is right nearly
 * always. Threads that run freely take nearly the same order every time, and a buffer that is
 * overwritten a little too early has long been copied. So with --seed-schedule the order is drawn,
 * not left to luck:
 *
 *     one rank runs at a time, until it starts messages or waits;
 *     then the next event is drawn: a rank that can run, or a message that can be delivered;
 *     a message is copied when it is delivered, not before, and until then there is NaN in the
 *     receiver's memory.
 *
 * So a message may be as late as the sender's wait allows. The same seed gives the same order: a
 * failure that one schedule in a hundred shows can be looked at again.
 *
 * Interface: ring_world_sim (ring_world.h); sim_call_all, sim_missing, sim_transfer, sim_can_go_on,
 * sim_look_for_deadlock, sim_give_reason, sim_turn_pass, sim_turn_offer (sim.h).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/io/fill.h"
#include "transports/threads/sim.h"

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
static int describe_one(const SimEndpoint *e, char *text, size_t room)
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
static void report_deadlock(SimWorld *world)
{
    char named[RING_MAX_RANKS] = {0};
    size_t written = (size_t)snprintf(world->failure, sizeof world->failure, "deadlock");
    for (int count = 0; count < world->ranks; count++) {
        char text[192];
        size_t length;
        int least = 0;
        while (named[least])
            least++;
        for (int rank = least + 1; rank < world->ranks; rank++)
            if (!named[rank] && behind(&world->endpoints[rank], &world->endpoints[least]))
                least = rank;
        named[least] = 1;
        length = (size_t)describe_one(&world->endpoints[least], text, sizeof text);
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
        report_deadlock(world);
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

/* --- an unkind order ---------------------------------------------------------------------------*/

/* The generator of the random inputs, and not rand(): the same seed has to give the same order on
 * every machine. */
static uint64_t draw(SimWorld *world)
{
    return fill_mix(world->random += FILL_STEP);
}

/* FNV-1a: multiplies all events into one number. Equal orders have equal fingerprints, so a test
 * can ask whether a seed really repeats itself, and whether two seeds really differ. */
static void remember(SimWorld *world, uint64_t event)
{
    world->fingerprint = (world->fingerprint ^ event) * UINT64_C(0x100000001B3);
}

/* -1: nobody can run. That is no deadlock yet: a message under way may wake somebody up. */
static int draw_rank(SimWorld *world)
{
    int able[RING_MAX_RANKS], count = 0;
    for (int rank = 0; rank < world->ranks; rank++)
        if (sim_can_go_on(&world->endpoints[rank]))
            able[count++] = rank;
    return count ? able[draw(world) % (uint64_t)count] : -1;
}

/* The rank whose thread this is copies it. Any message may be drawn, also the last to set out:
 * between channels there is no order. Within a channel the posts have met already, first with
 * first, so each message arrives at its own place, early or late. */
static void deliver_one(SimWorld *world, RingRank *by)
{
    SimPost **at = &world->under_way, *receive;
    for (uint64_t m = draw(world) % (uint64_t)world->under_way_count; m > 0; m--)
        at = &(*at)->next;
    receive = *at;
    *at = receive->next;
    world->under_way_count--;
    remember(world, (uint64_t)(1000 + (receive->from * world->ranks + receive->to) * SIM_CHANNELS +
                               receive->channel));
    sim_carry(by, receive);
    sim_deliver(world, receive);
}

/* Some messages arrive, or none, and then a rank runs. Patience differs from seed to seed: with 0
 * messages come as late as can be, when nobody can run without them; with 7 nearly at once.
 * Different mistakes need different luck. */
static void draw_turn(SimWorld *world, RingRank *by)
{
    int rank = draw_rank(world);
    while (world->under_way_count > 0 && (rank < 0 || draw(world) % 8 < world->patience)) {
        deliver_one(world, by);
        rank = draw_rank(world);
    }
    world->turn = rank;
    remember(world, (uint64_t)(rank + 1));
}

static void start_schedule(SimWorld *world, uint64_t seed)
{
    world->scheduled = 1;
    world->random = seed;
    world->fingerprint = UINT64_C(0xCBF29CE484222325);
    world->patience = (unsigned)(draw(world) % 8);
    draw_turn(world, NULL);
}

/* All threads exist and all but one sleep: so the order of everything is that of the draws. */
static void await_turn(SimEndpoint *e)
{
    SimWorld *world = e->world;
    while (world->turn != e->rank->rank && !world->failed)
        pthread_cond_wait(&e->call, &world->lock);
}

static void begin_turn(SimEndpoint *e)
{
    pthread_mutex_lock(&e->world->lock);
    await_turn(e);
    pthread_mutex_unlock(&e->world->lock);
}

/* When all ranks have ended nobody can run either, and all is well. */
static int somebody_waits(const SimWorld *world)
{
    for (int rank = 0; rank < world->ranks; rank++)
        if (world->endpoints[rank].state == SIM_IN_EXCHANGE ||
            world->endpoints[rank].state == SIM_IN_BARRIER)
            return 1;
    return 0;
}

/* After a failure all run at once: there is nothing left to be drawn. */
void sim_turn_pass(SimEndpoint *e)
{
    SimWorld *world = e->world;
    if (world->failed || world->turn != e->rank->rank)
        return;
    draw_turn(world, e->rank);
    if (world->turn >= 0)
        pthread_cond_signal(&world->endpoints[world->turn].call);
    else if (somebody_waits(world))
        report_deadlock(world);
    if (e->state < SIM_ENDED)
        await_turn(e);
}

void sim_turn_offer(SimWorld *world, SimPost *receive)
{
    receive->next = world->under_way;
    world->under_way = receive;
    world->under_way_count++;
}

/* --- the world ---------------------------------------------------------------------------------*/

/* One lock for the whole world. A network has none, but with one lock "can anybody go on?" is a
 * question that can be answered: nobody changes anything while it is asked. */
static int open_world(SimWorld *world, RingRank *ranks, const RingSetup *setup)
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
        start_schedule(world, setup->schedule_seed);
    return 0;
}

static void close_world(SimWorld *world)
{
    for (int rank = 0; rank < world->ranks; rank++)
        pthread_cond_destroy(&world->endpoints[rank].call);
    pthread_mutex_destroy(&world->lock);
    free(world->channels);
}

/* --- a run -------------------------------------------------------------------------------------*/

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
        begin_turn(e);
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
    if (open_world(&world, ranks, setup) != 0) {
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
    close_world(&world);
    return report->failed ? -1 : 0;
}
