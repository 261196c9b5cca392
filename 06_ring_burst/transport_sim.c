/* SPDX-License-Identifier: MIT
 *
 * transport_sim.c: messages between threads.
 *
 * The threads run freely, as processes would. A post that finds its other half in the channel
 * copies the message at once; the rank that came first goes on with its work and finds the message
 * there when it waits. So start never blocks, and wait blocks only for a rank that is behind.
 *
 * A thread that waits knows more than a process that does: it can look at all others. If nobody
 * runs, and nobody's message is there, nobody ever will: a deadlock, told at once as who waits for
 * whom, without waiting for a time-out. The time-out is for a rank that runs and does not come.
 *
 * With an adversarial schedule (sim_schedule.c) only one rank runs at a time, and a message that
 * could be delivered waits until the schedule says so.
 *
 * Interface: ring_transport_sim, sim_world_open, sim_world_close, sim_rank_ends, sim_can_go_on,
 * sim_deadlock, sim_deliver, sim_call_all (sim.h).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

/* --- the world ---------------------------------------------------------------------------------*/

int sim_world_open(SimWorld *world, RingRank *ranks, const RingSetup *setup)
{
    const size_t G = (size_t)setup->ranks;
    pthread_condattr_t steady;
    memset(world, 0, sizeof *world);
    world->ranks = setup->ranks;
    world->endpoints = calloc(G, sizeof *world->endpoints);
    world->channels = calloc(G * G * SIM_CHANNELS, sizeof *world->channels);
    if (!world->endpoints || !world->channels) {
        free(world->endpoints);
        free(world->channels);
        return -1;
    }
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
    free(world->endpoints);
    free(world->channels);
    free(world->under_way);
}

void sim_call_all(SimWorld *world)
{
    for (int rank = 0; rank < world->ranks; rank++)
        pthread_cond_signal(&world->endpoints[rank].call);
}

static SimPost **channel_of(SimWorld *world, const SimPost *post)
{
    return &world->channels[(post->from * world->ranks + post->to) * SIM_CHANNELS + post->channel];
}

/* --- who can go on -----------------------------------------------------------------------------*/

static const SimPost *missing(const SimTicket *ticket)
{
    for (int p = 0; p < ticket->count; p++)
        if (ticket->post[p].stage != SIM_ARRIVED)
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
        if (ticket->post[p].stage != SIM_ARRIVED &&
            world->endpoints[peer_of(&ticket->post[p])].state == SIM_GONE)
            return 1;
    return 0;
}

static int somebody_gone(const SimWorld *world)
{
    for (int rank = 0; rank < world->ranks; rank++)
        if (world->endpoints[rank].state == SIM_GONE)
            return 1;
    return 0;
}

int sim_can_go_on(const SimEndpoint *e)
{
    switch (e->state) {
    case SIM_RUNNING:
        return 1;
    case SIM_IN_EXCHANGE:
        return !missing(e->ticket) || hopeless(e->world, e->ticket);
    case SIM_IN_BARRIER:
        return e->barrier_round != e->world->barrier_round || somebody_gone(e->world);
    default:
        return 0;
    }
}

static const char *const passes[RING_PASSES] = {"set-up", "forward", "backward"};

static RingTransfer transfer_of(const SimPost *post)
{
    return (RingTransfer){
        .sends = post->sends, .peer = peer_of(post), .tensor = (RingTensor)post->channel};
}

static int tell_one(const SimEndpoint *e, char *text, size_t room)
{
    char words[80] = "waiting for all ranks", where[48] = "";
    if (e->state == SIM_IN_EXCHANGE) {
        const RingTransfer transfer = transfer_of(missing(e->ticket));
        ring_transfer_words(&transfer, words);
    }
    if (e->state >= SIM_ENDED)
        snprintf(words, sizeof words, "%s", e->state == SIM_ENDED ? "done" : "gone");
    else if (!e->outside)
        snprintf(where, sizeof where, " (%s step %d)", passes[e->pass], e->step);
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

/* Free running: asked by each rank that stops running. */
static void look_for_deadlock(SimWorld *world)
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

/* --- messages ----------------------------------------------------------------------------------*/

void sim_deliver(SimWorld *world, SimPost *receive)
{
    SimPost *send = receive->partner;
    send->stage = receive->stage = SIM_ARRIVED;
    send->end_ms = receive->end_ms = ring_now_ms();
    pthread_cond_signal(&world->endpoints[send->from].call);
    pthread_cond_signal(&world->endpoints[receive->to].call);
}

/* The other half of a post, taken out of the channel; or NULL, and the post waits there. A channel
 * never holds sends and receives at once. */
static SimPost *meet(SimWorld *world, SimPost *post)
{
    SimPost **first = channel_of(world, post), *other = *first;
    if (other && other->sends != post->sends) {
        *first = other->next;
        post->partner = other;
        other->partner = post;
        post->stage = other->stage = SIM_MATCHED;
        return other;
    }
    while (*first)
        first = &(*first)->next;
    post->next = NULL;
    *first = post;
    return NULL;
}

/* By the rank that came second, whose thread this is. A GPU's failure shows when it is waited for:
 * nothing has arrived then. */
void sim_carry(RingRank *by, SimPost *receive)
{
    const RingSpace *space = by->space;
    SimPost *send = receive->partner;
    if (space->carry && receive->channel != SIM_HOST_CHANNEL)
        send->arrived = receive->arrived = space->carry(by, receive->data, receive->ready,
                                                        send->data, send->ready, receive->bytes);
    else
        memcpy(receive->data, send->data, receive->bytes);
}

static void copy_freely(SimWorld *world, SimPost *receive, SimPost *second)
{
    SimEndpoint *from = &world->endpoints[receive->from], *to = &world->endpoints[receive->to];
    from->copies++;
    to->copies++;
    pthread_mutex_unlock(&world->lock);
    sim_carry(second->sends ? from->rank : to->rank, receive);
    pthread_mutex_lock(&world->lock);
    from->copies--;
    to->copies--;
    sim_deliver(world, receive);
}

static int post_one(SimWorld *world, SimPost *post)
{
    SimPost *other = meet(world, post), *receive = post->sends ? other : post;
    if (!other)
        return 0;
    if (post->bytes != other->bytes) { /* both ranks are told; nothing is copied */
        receive->partner_bytes = receive->partner->bytes;
        sim_deliver(world, receive);
    } else if (world->scheduled) {
        return sim_turn_offer(world, receive);
    } else {
        copy_freely(world, receive, post);
    }
    return 0;
}

/* Until a message is delivered its receiver's memory holds NaN. */
static void poison(const RingRank *r, const SimPost *post)
{
    if (!post->sends && (!r->space->carry || post->channel == SIM_HOST_CHANNEL))
        memset(post->data, 0xFF, post->bytes);
}

static SimTicket *new_ticket(RingRank *r, const RingTransfer *list, int count, int host)
{
    SimTicket *ticket = ring_keep(r, sizeof *ticket + (size_t)count * sizeof ticket->post[0]);
    if (!ticket)
        return NULL;
    ticket->count = count;
    for (int p = 0; p < count; p++) {
        const RingTransfer *t = &list[p];
        ticket->post[p] = (SimPost){.sends = t->sends,
                                    .from = t->sends ? r->rank : t->peer,
                                    .to = t->sends ? t->peer : r->rank,
                                    .channel = host ? (int)SIM_HOST_CHANNEL : (int)t->tensor,
                                    .data = t->data,
                                    .bytes = t->bytes,
                                    .partner_bytes = t->bytes};
    }
    return ticket;
}

/* A GPU's queue has to reach this point before the memory of a transfer is free to travel. */
static int note_ready(RingRank *r, SimTicket *ticket)
{
    for (int p = 0; r->space->ready && p < ticket->count; p++) {
        SimPost *post = &ticket->post[p];
        if (post->channel != SIM_HOST_CHANNEL &&
            !(post->ready = r->space->ready(r, post->data, post->bytes)))
            return -1;
    }
    return 0;
}

/* Locked. Others may ask where this rank is. */
static void note_place(SimEndpoint *e)
{
    e->outside = e->rank->pass == RING_SETUP;
    if (e->outside)
        return;
    e->pass = e->rank->pass;
    e->step = e->rank->step;
}

static int post_all(RingRank *r, SimTicket *ticket)
{
    SimEndpoint *e = r->endpoint;
    SimWorld *world = e->world;
    int status = 0;
    if (note_ready(r, ticket) != 0)
        return -1;
    pthread_mutex_lock(&world->lock);
    note_place(e);
    for (int p = 0; world->scheduled && p < ticket->count; p++)
        poison(r, &ticket->post[p]);
    for (int p = 0; p < ticket->count && !world->failed && status == 0; p++)
        status = post_one(world, &ticket->post[p]);
    if (world->scheduled)
        sim_turn_pass(e);
    pthread_mutex_unlock(&world->lock);
    return status == 0 ? 0 : ring_fail(r, "out of memory for messages");
}

/* --- waiting -----------------------------------------------------------------------------------*/

static struct timespec deadline_of(const RingRank *r)
{
    struct timespec at;
    const double seconds = r->plan->setup.timeout_s;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += (time_t)seconds;
    at.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

/* Locked. Waits in `state` until the rank can go on, something failed, or time is up (-1). */
static int block(SimEndpoint *e, SimState state)
{
    SimWorld *world = e->world;
    const struct timespec deadline = deadline_of(e->rank);
    int late = 0;
    note_place(e);
    e->state = state;
    while (!sim_can_go_on(e) && !world->failed && !late) {
        if (world->scheduled) {
            sim_turn_pass(e);
            continue;
        }
        look_for_deadlock(world);
        if (!world->failed)
            late = pthread_cond_timedwait(&e->call, &world->lock, &deadline) == ETIMEDOUT;
    }
    late = late && !sim_can_go_on(e);
    e->state = SIM_RUNNING;
    return late ? -1 : 0;
}

/* Locked. Why a wait ended without success. */
static void give_reason(const RingRank *r, const SimPost *post, int late, char text[96])
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
                 passes[world->endpoints[gone].pass], world->endpoints[gone].step);
    else if (late && peer)
        snprintf(text, 96, "nothing within %g s; rank %d was last seen in %s step %d",
                 r->plan->setup.timeout_s, peer->rank->rank, passes[peer->pass], peer->step);
    else if (late)
        snprintf(text, 96, "not all came within %g s", r->plan->setup.timeout_s);
    else
        snprintf(text, 96, "another rank has failed");
}

static int await(RingRank *r, SimTicket *ticket)
{
    SimEndpoint *e = r->endpoint;
    SimWorld *world = e->world;
    const SimPost *post;
    char words[80], text[96];
    int late;
    pthread_mutex_lock(&world->lock);
    e->ticket = ticket;
    late = block(e, SIM_IN_EXCHANGE) != 0;
    e->ticket = NULL;
    post = missing(ticket);
    if (post) {
        const RingTransfer transfer = transfer_of(post);
        ring_transfer_words(&transfer, words);
        give_reason(r, post, late, text);
    }
    pthread_mutex_unlock(&world->lock);
    return post ? ring_fail(r, "%s: %s", words, text) : 0;
}

static int fail_size(RingRank *r, const SimPost *post)
{
    return ring_fail(r, "%s from rank %d has %zu bytes, expected were %zu",
                     ring_tensor_name((RingTensor)post->channel), post->from, post->partner->bytes,
                     post->bytes);
}

static int sim_start(RingRank *r, RingExchange *x)
{
    x->ticket = new_ticket(r, x->list, x->count, 0);
    return x->ticket ? post_all(r, x->ticket) : -1;
}

static int sim_wait(RingRank *r, RingExchange *x)
{
    SimTicket *ticket = x->ticket;
    if (await(r, ticket) != 0)
        return -1;
    for (int p = 0; p < ticket->count; p++) {
        x->list[p].end_ms = ticket->post[p].arrived ? 0.0 : ticket->post[p].end_ms;
        if (ticket->post[p].partner_bytes != ticket->post[p].bytes)
            return fail_size(r, &ticket->post[p]);
        if (r->space->follow && r->space->follow(r, ticket->post[p].arrived) != 0)
            return -1;
    }
    ring_unkeep(r, ticket);
    return 0;
}

static int sim_barrier(RingRank *r)
{
    SimEndpoint *e = r->endpoint;
    SimWorld *world = e->world;
    char text[96];
    int late, through;
    pthread_mutex_lock(&world->lock);
    e->barrier_round = world->barrier_round;
    if (++world->in_barrier == world->ranks) {
        world->in_barrier = 0;
        world->barrier_round++;
        sim_call_all(world);
    }
    late = block(e, SIM_IN_BARRIER) != 0;
    through = e->barrier_round != world->barrier_round;
    if (!through)
        give_reason(r, NULL, late, text);
    pthread_mutex_unlock(&world->lock);
    return through ? 0 : ring_fail(r, "waiting for all ranks: %s", text);
}

/* --- results and ends --------------------------------------------------------------------------*/

static int host_message(RingRank *r, int sends, int peer, void *data, size_t bytes)
{
    const RingTransfer transfer = {.sends = sends, .peer = peer, .data = data, .bytes = bytes};
    SimTicket *ticket;
    if (r->failed)
        return -1;
    if (bytes == 0)
        return 0;
    ticket = new_ticket(r, &transfer, 1, 1);
    if (!ticket || post_all(r, ticket) != 0 || await(r, ticket) != 0)
        return -1;
    if (ticket->post[0].partner_bytes != bytes)
        return ring_fail(r, "results of rank %d have an unexpected size", peer);
    ring_unkeep(r, ticket);
    return 0;
}

static int sim_host_send(RingRank *r, int peer, const void *data, size_t bytes)
{
    return host_message(r, 1, peer, (void *)data, bytes);
}

static int sim_host_receive(RingRank *r, int peer, void *data, size_t bytes)
{
    return host_message(r, 0, peer, data, bytes);
}

/* Locked. Nobody copies from or to this rank's memory any more. */
static void withdraw(SimEndpoint *e)
{
    SimWorld *world = e->world;
    const int rank = e->rank->rank;
    int left = 0;
    for (int c = 0; c < world->ranks * world->ranks * SIM_CHANNELS; c++) {
        const int from = c / SIM_CHANNELS / world->ranks, to = c / SIM_CHANNELS % world->ranks;
        if (from == rank || to == rank)
            world->channels[c] = NULL;
    }
    for (int m = 0; m < world->under_way_count; m++)
        if (world->under_way[m]->from != rank && world->under_way[m]->to != rank)
            world->under_way[left++] = world->under_way[m];
    world->under_way_count = left;
    while (e->copies > 0)
        pthread_cond_wait(&e->call, &world->lock);
}

static void sim_abandon(RingRank *r)
{
    SimEndpoint *e = r->endpoint;
    SimWorld *world = e->world;
    pthread_mutex_lock(&world->lock);
    if (e->state != SIM_GONE) {
        if (!world->failed)
            snprintf(world->failure, sizeof world->failure, "%s", r->failure);
        world->failed = 1;
        e->state = SIM_FAILED;
        withdraw(e);
    }
    sim_call_all(world);
    pthread_mutex_unlock(&world->lock);
}

static void sim_leave(RingRank *r)
{
    SimEndpoint *e = r->endpoint;
    pthread_mutex_lock(&e->world->lock);
    e->state = SIM_GONE;
    note_place(e);
    withdraw(e);
    sim_call_all(e->world);
    pthread_mutex_unlock(&e->world->lock);
}

void sim_rank_ends(SimEndpoint *e)
{
    SimWorld *world = e->world;
    pthread_mutex_lock(&world->lock);
    if (e->state == SIM_RUNNING)
        e->state = SIM_ENDED;
    if (world->scheduled)
        sim_turn_pass(e);
    else if (!world->failed)
        look_for_deadlock(world);
    pthread_mutex_unlock(&world->lock);
}

const RingTransport ring_transport_sim = {
    .name = "sim",
    .start = sim_start,
    .wait = sim_wait,
    .barrier = sim_barrier,
    .host_send = sim_host_send,
    .host_receive = sim_host_receive,
    .abandon = sim_abandon,
    .leave = sim_leave,
};
