/* SPDX-License-Identifier: MIT
 *
 * sim.c: all ranks as threads of this process: a cluster for somebody with one machine; and the
 * transport between them.
 *
 * Each thread runs the same ring_rank_main as an MPI process or a GPU does, over its own shard, and
 * learns of the others only through messages. What it has to report is collected when all have
 * ended; nobody can hang, since every wait ends by itself.
 *
 * A transfer is posted twice: by the rank that sends and by the rank that receives. The two posts
 * meet in a channel (from, to, tensor), in the order in which each side posted, and the message can
 * be copied from one rank's memory to the other's:
 *
 *     rank 1: send K to 2       -> | channel 1 -> 2, K | <-       rank 2: receive K from 1
 *                                  first with first, second with second
 *
 * No copy is kept in between. A sender that overwrites its data too early damages the message, and
 * a receiver that looks too early finds what was there before, as on a real network. The threads
 * run freely, as processes would: start never blocks, and wait blocks only for a rank that is
 * behind. The rank that posts second copies the message at once. So nobody has to be woken up to
 * make a message move, as in MPI libraries that only move messages while somebody waits.
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
 * Interface: ring_world_sim (ring_world.h).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness/io/fill.h"
#include "runtime/ring_world.h"

enum { SIM_HOST_CHANNEL = RING_TENSORS, SIM_CHANNELS }; /* results on their way to rank 0 */

typedef struct SimPost {
    int sends, from, to, channel;
    void *data;
    size_t bytes;
    int complete;  /* 1: the message has arrived */
    RingPass pass; /* where its rank posted it */
    int step;
    size_t partner_bytes; /* what the other side thinks its size is, and where that was posted */
    RingPass partner_pass;
    int partner_step;
    double end_ms;           /* when it arrived */
    void *ready, *arrived;   /* with a GPU: points of its queues (RingBackend) */
    struct SimPost *partner; /* the other half, once they have met */
    struct SimPost *next;    /* in the channel, or under way */
} SimPost;

typedef struct SimTicket {
    int count;
    SimPost post[];
} SimTicket;

typedef enum SimState {
    SIM_RUNNING,
    SIM_IN_EXCHANGE, /* waiting for its ticket */
    SIM_IN_BARRIER,
    SIM_ENDED,  /* as it should */
    SIM_FAILED, /* and has said why */
    SIM_GONE    /* --inject exit: without a word */
} SimState;

typedef struct SimEndpoint {
    struct SimWorld *world;
    RingRank *rank;
    SimState state;
    RingPass pass; /* where it was when it last sent or waited in a pass */
    int step;
    int outside;         /* it is not in a pass now */
    SimTicket *ticket;   /* waited for */
    int barrier_round;   /* of the barrier waited in */
    int copies;          /* messages from or to this rank's memory that are being copied now */
    pthread_cond_t call; /* something has changed for this rank */
} SimEndpoint;

typedef struct SimWorld {
    pthread_mutex_t lock;
    int ranks;
    SimEndpoint endpoints[RING_MAX_RANKS];
    SimPost **channels; /* [from][to][channel]: posts that have not met, first first */
    int in_barrier, barrier_round;
    double heard_ms; /* of any rank, that it does something */
    int failed, deadlock;
    char failure[512]; /* what went wrong first */
    /* only with an adversarial schedule */
    int scheduled, turn;
    uint64_t random, fingerprint;
    unsigned patience;  /* 0: messages arrive only when nobody can run; 7: soon */
    SimPost *under_way; /* a list: the receivers' halves of messages that have met */
    int under_way_count;
} SimWorld;

static void call_all(SimWorld *world)
{
    for (int rank = 0; rank < world->ranks; rank++)
        pthread_cond_signal(&world->endpoints[rank].call);
}

/* --- messages ----------------------------------------------------------------------------------*/

/* One queue for each sender, receiver and tensor. Within it first meets first: that is the promise,
 * "messages of one tensor arrive in the order sent", and the only order there is. */
static SimPost **channel_of(SimWorld *world, const SimPost *post)
{
    return &world->channels[(post->from * world->ranks + post->to) * SIM_CHANNELS + post->channel];
}

/* Both sides may be waiting: the receiver for its data, the sender for leave to write its memory
 * again. */
static void deliver(SimWorld *world, SimPost *receive)
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
static void carry(RingRank *by, SimPost *receive)
{
    const RingBackend *backend = by->backend;
    SimPost *send = receive->partner;
    if (backend->carry && receive->channel != SIM_HOST_CHANNEL)
        send->arrived = receive->arrived = backend->carry(by, receive->data, receive->ready,
                                                          send->data, send->ready, receive->bytes);
    else
        memcpy(receive->data, send->data, receive->bytes);
}

/* --- who can go on -----------------------------------------------------------------------------*/

/* A ticket is complete when all its messages are, in whatever order they came. */
static const SimPost *missing(const SimTicket *ticket)
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

/* states: bits of SimState. */
static int somebody_is(const SimWorld *world, unsigned states)
{
    for (int rank = 0; rank < world->ranks; rank++)
        if (states >> world->endpoints[rank].state & 1)
            return 1;
    return 0;
}

/* The heart of the detector. Each rank either runs, or waits for something that has happened, or
 * can never go on by itself. If the last is true of all, nothing will ever happen again. */
static int can_go_on(const SimEndpoint *e)
{
    switch (e->state) {
    case SIM_RUNNING:
        return 1;
    case SIM_IN_EXCHANGE:
        return !missing(e->ticket) || hopeless(e->world, e->ticket);
    case SIM_IN_BARRIER:
        /* nobody passes it any more when one rank will never come */
        return e->barrier_round != e->world->barrier_round || somebody_is(e->world, 1u << SIM_GONE);
    default:
        return 0;
    }
}

static RingTransfer transfer_of(const SimPost *post)
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
        const RingTransfer transfer = transfer_of(missing(e->ticket));
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
    call_all(world);
}

/* Free running: asked by each rank that stops running. A deadlock is a circle: 0 waits for 1, 1 for
 * 2, 2 for 0. It is not necessary to look for the circle. If nobody runs, no copy is being made and
 * no wait is fulfilled, then each waits for another who waits (or has ended), and since there are
 * finitely many ranks the chain must close. */
static void look_for_deadlock(SimWorld *world)
{
    int waiting = 0;
    for (int rank = 0; rank < world->ranks; rank++) {
        const SimEndpoint *e = &world->endpoints[rank];
        if (can_go_on(e) || e->copies > 0)
            return;
        waiting += e->state == SIM_IN_EXCHANGE || e->state == SIM_IN_BARRIER;
    }
    if (waiting > 0 && !world->failed)
        report_deadlock(world);
}

/* Locked. Why a wait ended without success, from the surest reason to the vaguest: a deadlock, a
 * rank that is known to be gone, a late peer, and last a failure that another rank tells. */
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
        if (can_go_on(&world->endpoints[rank]))
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
    carry(by, receive);
    deliver(world, receive);
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

/* After a failure all run at once: there is nothing left to be drawn. When all ranks have ended
 * nobody can run either, and all is well. */
static void turn_pass(SimEndpoint *e)
{
    SimWorld *world = e->world;
    if (world->failed || world->turn != e->rank->rank)
        return;
    draw_turn(world, e->rank);
    if (world->turn >= 0)
        pthread_cond_signal(&world->endpoints[world->turn].call);
    else if (somebody_is(world, 1u << SIM_IN_EXCHANGE | 1u << SIM_IN_BARRIER))
        report_deadlock(world);
    if (e->state < SIM_ENDED)
        await_turn(e);
}

static void turn_offer(SimWorld *world, SimPost *receive)
{
    receive->next = world->under_way;
    world->under_way = receive;
    world->under_way_count++;
}

/* --- posting -----------------------------------------------------------------------------------*/

/* The count of copies keeps both memories alive: a rank that fails meanwhile waits in withdraw
 * until nobody copies from or to what it is about to free. */
static void copy_freely(SimWorld *world, SimPost *receive, SimPost *second)
{
    SimEndpoint *from = &world->endpoints[receive->from], *to = &world->endpoints[receive->to];
    from->copies++;
    to->copies++;
    pthread_mutex_unlock(&world->lock);
    carry(second->sends ? from->rank : to->rank, receive);
    pthread_mutex_lock(&world->lock);
    from->copies--;
    to->copies--;
    deliver(world, receive);
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
        deliver(world, receive);
    } else if (world->scheduled) {
        turn_offer(world, receive);
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
        turn_pass(e);
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
    while (!can_go_on(e) && !world->failed && !late) {
        if (world->scheduled) {
            turn_pass(e);
            continue;
        }
        look_for_deadlock(world);
        if (!world->failed)
            wait_until(e, deadline_ms(e));
        late = ring_now_ms() >= deadline_ms(e);
    }
    late = late && !can_go_on(e);
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
    post = missing(ticket);
    if (post) {
        const RingTransfer transfer = transfer_of(post);
        ring_transfer_words(&transfer, words);
        give_reason(r, post, late, text);
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
        call_all(world);
    }
    late = block(e, SIM_IN_BARRIER) != 0;
    through = e->barrier_round != world->barrier_round;
    if (!through)
        give_reason(r, NULL, late, text);
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
    call_all(world);
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
    call_all(e->world);
    pthread_mutex_unlock(&e->world->lock);
}

/* Others may wait for this rank, which will do nothing more. Somebody may have waited for just this
 * rank: then that is a deadlock, and now it shows. */
static void rank_ends(SimEndpoint *e)
{
    SimWorld *world = e->world;
    pthread_mutex_lock(&world->lock);
    if (e->state == SIM_RUNNING)
        e->state = SIM_ENDED;
    if (world->scheduled)
        turn_pass(e);
    else if (!world->failed)
        look_for_deadlock(world);
    pthread_mutex_unlock(&world->lock);
}

/* A struct of function pointers: what other languages call an interface. */
static const RingTransport transport = {
    .name = "sim",
    .start = sim_start,
    .wait = sim_wait,
    .barrier = sim_barrier,
    .abandon = sim_abandon,
    .leave = sim_leave,
    .note = sim_note,
    .look = sim_look,
};
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
    rank_ends(e);
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
                                 .transport = &transport,
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
