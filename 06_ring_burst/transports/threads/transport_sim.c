/* SPDX-License-Identifier: MIT
 *
 * transport_sim.c: the transport between threads: start, wait, barrier.
 *
 * The threads run freely, as processes would: start never blocks, and wait blocks only for a rank
 * that is behind. With an adversarial schedule (sim_adversarial.c) only one rank runs at a time,
 * and every start and wait is a place where another may be drawn.
 *
 * Whatever happens, each wait ends: with the message, or with a sentence.
 *
 *     start    posts both kinds of messages; whichever end comes second copies
 *     wait     until all posts of the ticket have arrived; or a sentence
 *     barrier  until all ranks are here; or a sentence
 *
 * Interface: ring_transport_sim, sim_rank_ends (sim.h).
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "transports/threads/sim.h"

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
    sim_record_place(e);
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
    x->ticket = sim_new_ticket(r, x->list, x->count);
    return x->ticket ? sim_post_all(r, x->ticket) : -1;
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
        sim_withdraw(e);
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
    sim_record_place(e);
    pthread_mutex_unlock(&e->world->lock);
}

/* As if a machine had lost its power: no message to anybody. What others know of it is what they
 * can see from outside, the state and the last place that it noted. */
static void sim_leave(RingRank *r)
{
    SimEndpoint *e = r->endpoint;
    pthread_mutex_lock(&e->world->lock);
    e->state = SIM_GONE;
    sim_record_place(e);
    sim_withdraw(e);
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
