/* SPDX-License-Identifier: MIT
 *
 * sim_messages.c: how two posts meet and become a message.
 *
 * The rank that posts second finds the other half in the channel and copies the message at once,
 * from one rank's memory to the other's. So nobody has to be woken up to make a message move, as in
 * MPI libraries that only move messages while somebody waits.
 *
 * With an adversarial schedule the copy is made when the schedule says so.
 *
 * Interface: sim_new_ticket, sim_post_all, sim_deliver, sim_carry, sim_withdraw, sim_record_place
 * (sim.h).
 */
#include <string.h>

#include "transports/threads/sim.h"

/* One queue for each sender, receiver and tensor. Within it first meets first: that is the promise,
 * "messages of one tensor arrive in the order sent", and the only order there is. */
static SimPost **channel_of(SimWorld *world, const SimPost *post)
{
    return &world->channels[(post->from * world->ranks + post->to) * SIM_CHANNELS + post->channel];
}

/* --- messages ----------------------------------------------------------------------------------*/

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

/* The count of copies keeps both memories alive: a rank that fails meanwhile waits in sim_withdraw
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
SimTicket *sim_new_ticket(RingRank *r, const RingTransfer *list, int count)
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
void sim_record_place(SimEndpoint *e)
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
int sim_post_all(RingRank *r, SimTicket *ticket)
{
    SimEndpoint *e = r->endpoint;
    SimWorld *world = e->world;
    if (note_ready(r, ticket) != 0)
        return -1;
    pthread_mutex_lock(&world->lock);
    sim_record_place(e);
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
void sim_withdraw(SimEndpoint *e)
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
