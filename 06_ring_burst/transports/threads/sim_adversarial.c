/* SPDX-License-Identifier: MIT
 *
 * sim_adversarial.c: the most unkind order of events that is still allowed.
 *
 * A program with a race is right nearly always. Threads that run freely take nearly the same order
 * every time, and a buffer that is overwritten a little too early has long been copied. So here the
 * order is drawn, not left to luck:
 *
 *     one rank runs at a time, until it starts messages or waits;
 *     then the next event is drawn: a rank that can run, or a message that can be delivered;
 *     a message is copied when it is delivered, not before, and until then there is NaN in the
 *     receiver's memory.
 *
 * So a message may be as late as the sender's wait allows. The same seed gives the same order: a
 * failure that one schedule in a hundred shows can be looked at again.
 *
 * Interface: sim_schedule_start, sim_turn_begin, sim_turn_pass, sim_turn_offer (sim.h).
 */
#include "io/fill.h"
#include "transports/threads/sim.h"

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

void sim_schedule_start(SimWorld *world, uint64_t seed)
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

void sim_turn_begin(SimEndpoint *e)
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
        sim_deadlock(world);
    if (e->state < SIM_ENDED)
        await_turn(e);
}

void sim_turn_offer(SimWorld *world, SimPost *receive)
{
    receive->next = world->under_way;
    world->under_way = receive;
    world->under_way_count++;
}
