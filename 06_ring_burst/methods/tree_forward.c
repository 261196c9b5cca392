/* SPDX-License-Identifier: MIT
 *
 * tree_forward.c: a ring in two levels, the forward pass of both double rings.
 *
 * A node is a machine with g GPUs that talk fast; between M machines the wires are slow. A single
 * ring through all of them is as slow as its slowest link: in every step somebody waits for a block
 * that crosses from machine to machine. Two levels make the crossing rare. Inside each node blocks
 * go round g times; meanwhile every rank sends the block it began with to the same place of the
 * next node, for which there are g steps of time.
 *
 *     outer step m = 0 .. M-1, inner step s = 0 .. g-1
 *     rank (a, i) on node a, place i has the keys of owner (a - m, i - s)
 *
 *     M = 2, g = 2         m 0         m 1
 *     owner at         s   0    1      0    1
 *     rank (0, 0)         00   01     10   11
 *     rank (0, 1)         01   00     11   10
 *     rank (1, 0)         10   11     00   01        10 goes to (0, 0) while (1, 0) computes
 *     rank (1, 1)         11   10     01   00        with 10 and 11
 *
 * M (g-1) hops inside a node and M-1 between nodes: as many as in one ring, but all of a node's
 * ranks use their own wire, and only every g-th step needs it.
 *
 * What is sent outwards stays in its buffer for a whole outer step, so that inner remote blocks
 * need buffers of their own: two and two.
 *
 * Interface: ring_place, ring_place_at, ring_tree_forward (methods.h).
 */
#include "methods/methods.h"

RingPlace ring_place(const RingRank *r)
{
    const int nodes = r->nodes, size = r->world / nodes;
    return (RingPlace){nodes, size, r->rank / size, r->rank % size};
}

int ring_place_at(const RingPlace *p, int nodes, int places)
{
    const int node = ((p->node + nodes) % p->nodes + p->nodes) % p->nodes;
    const int place = ((p->place + places) % p->size + p->size) % p->size;
    return node * p->size + place;
}

/* Where the keys of the next inner step come to. The very last ones, with which the backward pass
 * begins, come to the free outer buffer: they will leave for another node, and stay long. */
static RingKeys *inner_buffer(RingTree *tree, const RingPlace *p, int m, int s, int keep)
{
    if (!keep || m < p->nodes - 1 || s < p->size - 2)
        return &tree->inner[s % 2];
    tree->last_buffer = (p->nodes - 1) % 2;
    return &tree->outer[tree->last_buffer];
}

/* Outer step m: the keys of one node, of which k has come first. */
static void visit_node(RingRank *r, RingState *state, RingTree *tree, int m, RingBlock k, int keep)
{
    const RingPlace p = ring_place(r);
    RingBlock next = k;
    RingExchange x = {0};
    for (int s = 0; s < p.size && !r->failed; s++) { /* k: keys of (node - m, place - s) */
        if (s > 0)
            ring_step(r, m * p.size + s);
        if (s < p.size - 1) {
            ring_send_keys(r, &x, ring_place_at(&p, 0, +1), &k);
            ring_receive_keys(r, &x, ring_place_at(&p, 0, -1), ring_place_at(&p, -m, -s - 1),
                              inner_buffer(tree, &p, m, s, keep), &next);
            ring_start(r, &x);
        }
        if (m == p.nodes - 1 && s == p.size - 1)
            ring_see_last_keys(r, state, &k);
        else
            ring_see_keys(r, state, &k);
        ring_wait(r, &x);
        tree->last = k;
        k = next;
    }
}

void ring_tree_forward(RingRank *r, RingState *state, RingTree *tree, int keep)
{
    const RingPlace p = ring_place(r);
    RingBlock first = ring_own_keys(r), next = first;
    RingExchange x = {0};
    ring_open_state(r, state);
    ring_open_keys(r, tree->inner, p.size == 2 ? 1 : 2);
    ring_open_keys(r, tree->outer, p.nodes == 2 && !keep ? 1 : 2);
    for (int m = 0; m < p.nodes && !r->failed; m++) { /* first: keys of (node - m, place) */
        ring_step(r, m * p.size);
        if (m < p.nodes - 1) {
            ring_send_keys(r, &x, ring_place_at(&p, +1, 0), &first);
            ring_receive_keys(r, &x, ring_place_at(&p, -1, 0), ring_place_at(&p, -m - 1, 0),
                              &tree->outer[m % 2], &next);
            ring_start(r, &x);
        }
        visit_node(r, state, tree, m, first, keep);
        ring_wait(r, &x);
        first = next;
    }
    if (!keep) {
        ring_close_keys(r, tree->inner, 2);
        ring_close_keys(r, tree->outer, 2);
    }
    ring_close_state(r, state);
}
