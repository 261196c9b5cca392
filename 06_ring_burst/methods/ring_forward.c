/* SPDX-License-Identifier: MIT
 *
 * ring_forward.c: attention over keys that go round, the forward pass of ring and burst.
 *
 * Every rank has its queries and all that becomes of them (O, lse) and never gives them away. Keys
 * travel to the next rank, always the same way, so that at step t rank r sees what rank r - t had
 * in the beginning. 4 ranks, who has whose keys:
 *
 *     step        0   1   2   3
 *     rank 0      0   3   2   1
 *     rank 1      1   0   3   2        each column has every owner once,
 *     rank 2      2   1   0   3        each row has seen all of them after G-1 hops
 *     rank 3      3   2   1   0
 *
 * The whole trick is that attention over some keys, (O, lse), can be continued with other keys, in
 * any order (stage 03). So a step is: pass on the keys at hand, and while they travel, and the next
 * ones come, compute with them. They are only read, so both can happen at once. What arrives needs
 * a place that nobody reads or sends from. Two buffers are enough: while a remote block in one is
 * computed with and passed on, the next one comes into the other.
 *
 * A window needs fewer hops (plan.c). With a right side it also needs keys of later ranks: those
 * come the other way round in a ring of their own, before. (The first hop of that ring has no work
 * to hide behind, since the own keys belong to the other one.)
 *
 * Interface: ring_forward (methods.h).
 */
#include "methods/methods.h"

/* The tour that computes with the own keys is the last one. */
static void see_round(RingRank *r, RingState *state, RingRemote *remote, RingTour tour)
{
    const int way = tour.way, hops = tour.hops;
    RingBlock k = ring_own_keys(r), next = k;
    RingExchange x = {0};
    for (int t = 0; t <= hops && !r->failed; t++) { /* k: keys of rank r - way * t */
        ring_step(r, tour.first_step + t);
        if (t < hops) { /* both messages travel while this rank computes */
            ring_send_keys(r, &x, ring_at(r, way), &k);
            ring_receive_keys(r, &x, ring_at(r, -way), ring_at(r, -way * (t + 1)),
                              &remote->buffer[t % 2], &next);
            ring_start(r, &x);
        }
        if (t == hops && tour.own)
            ring_see_last_keys(r, state, &k);
        else if (t > 0 || tour.own)
            ring_see_keys(r, state, &k);
        ring_wait(r, &x);
        remote->last = k;
        k = next;
    }
}

void ring_forward(RingRank *r, RingState *state, RingRemote *up, RingRemote *down, int keep)
{
    const int hops_up = r->hops_up, hops_down = r->hops_down;
    ring_open_state(r, state);
    if (hops_down > 0) {
        ring_open_keys(r, down->buffer, hops_down < 2 ? hops_down : 2);
        see_round(r, state, down, (RingTour){-1, hops_down, 0, 0});
        if (!keep)
            ring_close_keys(r, down->buffer, 2);
    }
    ring_open_keys(r, up->buffer, hops_up < 2 ? hops_up : 2);
    see_round(r, state, up, (RingTour){+1, hops_up, hops_down, 1});
    if (!keep)
        ring_close_keys(r, up->buffer, 2);
    ring_close_state(r, state);
}
