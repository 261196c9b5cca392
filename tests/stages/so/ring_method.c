/* SPDX-License-Identifier: MIT
 *
 * ring_method.c: what a student hands in for stage 06: a ring of one's own, without any overlap,
 * over rank.h (see simulate.h). DEED chooses what is wrong with it; 0 is right. The backward
 * pass is the program's own, with DEED 5 that of another method than it says.
 */
#include "runtime/ring_world.h"
#include "runtime/simulate.h"

typedef struct Mine {
    RingState state;
    RingKeys room[2];
} Mine;

static Mine mine_of[RING_MAX_RANKS];

/* In each step: the remote block goes on, the next one comes, then the remote block is looked
 * at. */
static int forward(RingRank *r)
{
    Mine *m = &mine_of[r->rank];
    RingBlock k = ring_own_keys(r), next = k;
    const RingBlock own = k;
    if (DEED == 6)
        return -1;
    ring_open_state(r, &m->state);
    ring_open_keys(r, m->room, 2);
    for (int t = 0; t < r->world && !r->failed; t++) {
        RingExchange x = {0};
        const int hops = t + 1 < r->world;
        ring_step(r, t);
        if (hops && DEED == 7)
            ring_send(r, &x, (r->rank + 1) % r->world, RING_TENSORS, k.a, 8);
        if (hops && DEED != 1) {
            ring_send_keys(r, &x, (r->rank + 1) % r->world, &k);
            if (DEED != 3)
                ring_receive_keys(r, &x, (r->rank + r->world - 1) % r->world,
                                  (r->rank + 2 * r->world - t - 1) % r->world, &m->room[t % 2],
                                  &next);
            ring_start(r, &x);
        }
        if (DEED == 4 && hops) /* it is on its way */
            ring_see_keys(r, &m->state, &next);
        ring_wait(r, &x);
        if (DEED != 4)
            ring_see_keys(r, &m->state, DEED == 2 ? &own : &k);
        k = next;
    }
    ring_close_keys(r, m->room, 2);
    ring_close_state(r, &m->state);
    if (DEED == 11 && r->nq > 0) /* when nobody needs it any more */
        ((float *)r->Q)[0] *= 2.0f;
    return r->failed ? -1 : 0;
}

static int backward_without_gradients(RingRank *r)
{
    return r->failed ? -1 : 0;
}

static const RingMethodTable mine = {NULL, forward, NULL, NULL};
static const RingMethodTable idle = {NULL, forward, backward_without_gradients, NULL};

int ring_burst_abi_version = RING_BURST_ABI_VERSION;

AttnStatus ring_burst_variant(const AttnArgs *args)
{
    return ring_simulate(args, DEED == 10 ? RING_METHOD_AUTO : RING_METHOD_RING, &mine, 0);
}

AttnStatus ring_burst_variant_backward(const AttnArgs *args)
{
    if (DEED == 8 || DEED == 9)
        return ring_simulate(args, RING_METHOD_RING, DEED == 8 ? &mine : &idle, 1);
    return ring_simulate(args, RING_METHOD_RING,
                         ring_method(DEED == 5 ? RING_METHOD_ALLGATHER : RING_METHOD_RING), 1);
}
