/* SPDX-License-Identifier: MIT
 *
 * transport_sim.c: the transport between threads: how two posts meet and become a message; start,
 * wait, barrier.
 *
 * The threads run freely, as processes would: start never blocks, and wait blocks only for a rank
 * that is behind. The rank that posts second finds the other half in the channel and copies the
 * message at once, from one rank's memory to the other's. So nobody has to be woken up to make a
 * message move, as in MPI libraries that only move messages while somebody waits.
 *
 * With an adversarial schedule (world_sim.c) only one rank runs at a time, every start and wait is
 * a place where another may be drawn, and the copy is made when the schedule says so.
 *
 * Whatever happens, each wait ends: with the message, or with a sentence.
 *
 *     start    posts both kinds of messages; whichever end comes second copies
 *     wait     until all posts of the ticket have arrived; or a sentence
 *     barrier  until all ranks are here; or a sentence
 *
 * Interface: ring_transport_sim, sim_rank_ends, sim_deliver, sim_carry (sim.h).
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "transports/threads/sim.h"

/* --- messages ----------------------------------------------------------------------------------*/

/* One queue for each sender, receiver and tensor. Within it first meets first: that is the promise,
 * "messages of one tensor arrive in the order sent", and the only order there is. */
static SimPost **channel_of(SimWorld *world, const SimPost *post)
{
    return &world->channels[(post->from * world->ranks + post->to) * SIM_CHANNELS + post->channel];
}

/* Both sides may be waiting: the receiver for its data, the sender for leave to write its memory
 * again. */
void sim_deliver(SimWorld *world, SimPost *receive)
{
    SimPost *send = receive->partner;
    send->complete = receive->complete = 1;
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
        return other;
    }
    while (*first)
        first = &(*first)->next;
    post->next = NULL;
    *first = post;
    return NULL;
}

/* By the rank that came second, whose thread this is. A GPU's failure shows when it is waited for:
 * nothing has arrived then. The lock is not held while bytes are copied: the other ranks go on.
 * With a GPU nothing is copied here at all, a copy is only put into a queue. */
void sim_carry(RingRank *by, SimPost *receive)
{
    const RingBackend *backend = by->backend;
    SimPost *send = receive->partner;
    if (backend->carry && receive->channel != SIM_HOST_CHANNEL)
        send->arrived = receive->arrived = backend->carry(by, receive->data, receive->ready,
                                                          send->data, send->ready, receive->bytes);
    else
        memcpy(receive->data, send->data, receive->bytes);
}

/* The count of copies keeps both memories alive: a rank that fails meanwhile waits in withdraw
 * until nobody copies from or to what it is about to free. */
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

/* Sizes can differ only by a mistake: both were computed from the same plan. Copying the smaller of
 * the two would hide it. */
static void post_one(SimWorld *world, SimPost *post)
{
    SimPost *other = meet(world, post), *receive = post->sends ? other : post;
    if (!other)
        return;
    if (post->bytes != other->bytes) { /* both ranks are told; nothing is copied */
        receive->partner_bytes = receive->partner->bytes;
        receive->partner_pass = receive->partner->pass;
        receive->partner_step = receive->partner->step;
        sim_deliver(world, receive);
    } else if (world->scheduled) {
        sim_turn_offer(world, receive);
    } else {
        copy_freely(world, receive, post);
    }
}

/* Until a message is delivered its receiver's memory holds NaN. */
static void poison(const RingRank *r, const SimPost *post)
{
    if (!post->sends && (!r->backend->carry || post->channel == SIM_HOST_CHANNEL))
        memset(post->data, 0xFF, post->bytes);
}

/* A ticket is what a rank gets for an exchange and waits with: one post for each of its messages.
 * It lies in memory that the log keeps, since the peer points into it. */
static SimTicket *new_ticket(RingRank *r, const RingTransfer *list, int count)
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
                                    .channel = (int)t->tensor,
                                    .data = t->data,
                                    .bytes = t->bytes,
                                    .pass = r->pass,
                                    .step = r->step,
                                    .partner_bytes = t->bytes};
    }
    return ticket;
}

/* A GPU's queue has to reach this point before the memory of a transfer is free to travel. */
static int note_ready(RingRank *r, SimTicket *ticket)
{
    for (int p = 0; r->backend->ready && p < ticket->count; p++) {
        SimPost *post = &ticket->post[p];
        if (post->channel != SIM_HOST_CHANNEL &&
            !(post->ready = r->backend->ready(r, post->data, post->bytes)))
            return -1;
    }
    return 0;
}

/* Locked. Others may ask where this rank is, and when anybody was heard of. */
static void record_place(SimEndpoint *e)
{
    e->world->heard_ms = ring_now_ms();
    e->outside = e->rank->pass == RING_SETUP;
    if (e->outside)
        return;
    e->pass = e->rank->pass;
    e->step = e->rank->step;
}

/* With a schedule the memory of all receives is poisoned first: whoever reads before ring_wait
 * finds NaN, and NaN stays NaN through every product and sum until the checker sees it. */
static int post_all(RingRank *r, SimTicket *ticket)
{
    SimEndpoint *e = r->endpoint;
    SimWorld *world = e->world;
    if (note_ready(r, ticket) != 0)
        return -1;
    pthread_mutex_lock(&world->lock);
    record_place(e);
    for (int p = 0; world->scheduled && p < ticket->count; p++)
        poison(r, &ticket->post[p]);
    for (int p = 0; p < ticket->count && !world->failed; p++)
        post_one(world, &ticket->post[p]);
    if (world->scheduled)
        sim_turn_pass(e);
    pthread_mutex_unlock(&world->lock);
    return 0;
}

/* Locked. Nobody copies from or to this rank's memory any more. */
static void withdraw(SimEndpoint *e)
{
    SimWorld *world = e->world;
    const int rank = e->rank->rank;
    SimPost **at = &world->under_way;
    for (int c = 0; c < world->ranks * world->ranks * SIM_CHANNELS; c++) {
        const int from = c / SIM_CHANNELS / world->ranks, to = c / SIM_CHANNELS % world->ranks;
        if (from == rank || to == rank)
            world->channels[c] = NULL;
    }
    while (*at)
        if ((*at)->from == rank || (*at)->to == rank) {
            *at = (*at)->next;
            world->under_way_count--;
        } else {
            at = &(*at)->next;
        }
    while (e->copies > 0)
        pthread_cond_wait(&e->call, &world->lock);
}

/* --- waiting -----------------------------------------------------------------------------------*/

/* A rank may have to wait for much work of others. So it is not its own waiting that counts, but
 * how long nothing was heard of anybody: no step, no message, no wait. */
static double deadline_ms(const SimEndpoint *e)
{
    return e->world->heard_ms + 1e3 * e->rank->plan->setup.timeout_s;
}

/* Until somebody calls, or until that time of the steady clock. A condition variable gives the lock
 * back while it sleeps and takes it again before it returns. `e->call` is this rank's own, so that
 * a message wakes up the two ranks that it concerns and not all. */
static void wait_until(SimEndpoint *e, double ms)
{
    struct timespec at = {(time_t)(ms / 1e3), 0};
    at.tv_nsec = (long)((ms - 1e3 * (double)at.tv_sec) * 1e6);
    pthread_cond_timedwait(&e->call, &e->world->lock, &at);
}

/* Locked. Waits in `state` until the rank can go on, something failed, or time is up (-1). The loop
 * is the rule of all condition variables: to be woken up means that something may have changed, not
 * that it has. So ask again. */
static int block(SimEndpoint *e, SimState state)
{
    SimWorld *world = e->world;
    int late = 0;
    record_place(e);
    e->state = state;
    while (!sim_can_go_on(e) && !world->failed && !late) {
        if (world->scheduled) {
            sim_turn_pass(e);
            continue;
        }
        sim_look_for_deadlock(world);
        if (!world->failed)
            wait_until(e, deadline_ms(e));
        late = ring_now_ms() >= deadline_ms(e);
    }
    late = late && !sim_can_go_on(e);
    e->state = SIM_RUNNING;
    return late ? -1 : 0;
}

/* Until all posts of the ticket have arrived. A failure names the first that has not. */
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
    post = sim_missing(ticket);
    if (post) {
        const RingTransfer transfer = sim_transfer(post);
        ring_transfer_words(&transfer, words);
        sim_give_reason(r, post, late, text);
    }
    pthread_mutex_unlock(&world->lock);
    return post ? ring_fail(r, "%s: %s", words, text) : 0;
}

/* Two ranks that do not agree about a message have different plans, or one of them is a step
 * ahead. */
static int fail_size(RingRank *r, const SimPost *post)
{
    return ring_fail(r,
                     "%s from rank %d: found %zu bytes, expected were %zu (sent in its %s step %d)",
                     ring_tensor_name((RingTensor)post->channel), post->from, post->partner_bytes,
                     post->bytes, ring_pass_name(post->partner_pass), post->partner_step);
}

/* Posting never waits for the peer: that alone makes it possible to compute while messages
 * travel. */
static int sim_start(RingRank *r, RingExchange *x)
{
    x->ticket = new_ticket(r, x->list, x->count);
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
        if (r->backend->follow && ticket->post[p].channel != SIM_HOST_CHANNEL &&
            r->backend->follow(r, &x->list[p], ticket->post[p].ready, ticket->post[p].arrived) != 0)
            return -1;
    }
    ring_unkeep(r, ticket);
    return 0;
}

/* The last one to come opens the door by counting the round up. A quick rank may be at the next
 * barrier before a slow one has left this one; each waits for its own round to be over. A failure
 * may come while the rank sleeps here; then the round has not gone up, and it says why. */
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
        sim_give_reason(r, NULL, late, text);
    pthread_mutex_unlock(&world->lock);
    return through ? 0 : ring_fail(r, "waiting for all ranks: %s", text);
}

/* --- ends --------------------------------------------------------------------------------------*/

/* The first sentence of all ranks is the one that the user reads. Ranks that wait for this one must
 * not sleep until their time-out: they are called, see that the world has failed, and stop with a
 * sentence of their own that nobody will print. */
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

/* For who polls a GPU: has somebody else failed meanwhile? */
static int sim_look(RingRank *r)
{
    SimEndpoint *e = r->endpoint;
    int failed;
    pthread_mutex_lock(&e->world->lock);
    failed = e->world->failed;
    pthread_mutex_unlock(&e->world->lock);
    return failed ? ring_fail(r, "stopped, since another rank has failed") : 0;
}

/* Only for the sentences of others: "last seen in forward step 2". */
static void sim_note(RingRank *r)
{
    SimEndpoint *e = r->endpoint;
    pthread_mutex_lock(&e->world->lock);
    record_place(e);
    pthread_mutex_unlock(&e->world->lock);
}

/* As if a machine had lost its power: no message to anybody. What others know of it is what they
 * can see from outside, the state and the last place that it noted. */
static void sim_leave(RingRank *r)
{
    SimEndpoint *e = r->endpoint;
    pthread_mutex_lock(&e->world->lock);
    e->state = SIM_GONE;
    record_place(e);
    withdraw(e);
    sim_call_all(e->world);
    pthread_mutex_unlock(&e->world->lock);
}

/* Others may wait for this rank, which will do nothing more. Somebody may have waited for just this
 * rank: then that is a deadlock, and now it shows. */
void sim_rank_ends(SimEndpoint *e)
{
    SimWorld *world = e->world;
    pthread_mutex_lock(&world->lock);
    if (e->state == SIM_RUNNING)
        e->state = SIM_ENDED;
    if (world->scheduled)
        sim_turn_pass(e);
    else if (!world->failed)
        sim_look_for_deadlock(world);
    pthread_mutex_unlock(&world->lock);
}

/* A struct of function pointers: what other languages call an interface. */
const RingTransport ring_transport_sim = {
    .name = "sim",
    .start = sim_start,
    .wait = sim_wait,
    .barrier = sim_barrier,
    .abandon = sim_abandon,
    .leave = sim_leave,
    .note = sim_note,
    .look = sim_look,
};
