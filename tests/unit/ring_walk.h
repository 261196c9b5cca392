/* SPDX-License-Identifier: MIT
 *
 * ring_walk.h: blocks that walk from rank to rank, hop by hop, as the methods of stage 06 move
 * them, and every byte counted where it leaves. It notes which queries met which keys, and that
 * gradients come home: what the formulas of model_ring_bytes.h must agree with.
 *
 * Interface: Walk, walk.
 */
#ifndef RING_WALK_H
#define RING_WALK_H

#include "oracle_case.h"

#include "models/model_ring_bytes.h"

enum { RANKS = 16 };

typedef struct Walk {
    RingModelCase c;
    int64_t nq[RANKS], nk[RANKS];
    int64_t sent[RANKS][RING_TENSORS], inner[RANKS], outer[RANKS];
    int met[RANKS][RANKS]; /* times that queries of one rank met keys of another */
} Walk;

static void move(Walk *w, int from, int to, RingTensor tensor, int64_t bytes)
{
    const int g = w->c.ranks / w->c.nodes;
    if (from == to)
        return;
    w->sent[from][tensor] += bytes;
    *(from / g == to / g ? &w->inner[from] : &w->outer[from]) += bytes;
}

static int64_t size_of(const Walk *w, RingTensor tensor, int owner)
{
    const AttnShape *s = &w->c.shape;
    const int64_t element = w->c.dtype == ATTN_F32 ? 4 : 2;
    const int64_t sum = w->c.partials == ATTN_F32 ? 4 : 2;
    switch (tensor) {
    case RING_K:
    case RING_V:
        return s->B * w->nk[owner] * s->Hkv * s->d * element;
    case RING_DK:
    case RING_DV:
        return s->B * w->nk[owner] * s->Hkv * s->d * sum;
    case RING_DQ:
        return s->B * w->nq[owner] * s->H * s->d * sum;
    case RING_LSE:
    case RING_DELTA:
        return s->B * w->nq[owner] * s->H * 4;
    default:
        return s->B * w->nq[owner] * s->H * s->d * element;
    }
}

static const RingTensor keys[] = {RING_K, RING_V, RING_TENSORS};
static const RingTensor key_sums[] = {RING_DK, RING_DV, RING_TENSORS};
static const RingTensor queries[] = {RING_Q, RING_DO, RING_LSE, RING_DELTA, RING_TENSORS};
static const RingTensor query_sums[] = {RING_DQ, RING_TENSORS};

/* Everybody's block goes where to[] says: held[] (the owner of what a rank has) follows. */
static void shift(Walk *w, const int *to, int *held, const RingTensor *what)
{
    int next[RANKS];
    for (int r = 0; r < w->c.ranks; r++) {
        for (const RingTensor *t = what; *t != RING_TENSORS; t++)
            move(w, r, to[r], *t, size_of(w, *t, held[r]));
        next[to[r]] = held[r];
    }
    memcpy(held, next, sizeof next);
}

static void neighbours(const Walk *w, int *to, int way)
{
    for (int r = 0; r < w->c.ranks; r++)
        to[r] = (r + way + w->c.ranks) % w->c.ranks;
}

static void own(int *held)
{
    for (int r = 0; r < RANKS; r++)
        held[r] = r;
}

static void meet(Walk *w, const int *held, int keys_visit)
{
    for (int r = 0; r < w->c.ranks; r++)
        w->met[keys_visit ? r : held[r]][keys_visit ? held[r] : r]++;
}

/* Keys go out and, in the backward pass, turn back with their sums. */
static void walk_ring(Walk *w, RingPass pass)
{
    for (int way = 1; way >= -1; way -= 2) {
        const int hops = way > 0 ? w->c.hops_up : w->c.hops_down;
        Walk out = *w;
        int held[RANKS], to[RANKS];
        own(held);
        if (way > 0)
            meet(w, held, 1);
        for (int t = 0; t < hops; t++) {
            neighbours(w, to, way);
            shift(pass == RING_FORWARD ? w : &out, to, held, keys);
            meet(w, held, 1);
        }
        neighbours(w, to, -way);
        for (int t = 0; t < hops && pass == RING_BACKWARD; t++) {
            int sums[RANKS];
            memcpy(sums, held, sizeof sums);
            shift(w, to, held, keys);
            shift(w, to, sums, key_sums);
        }
        for (int r = 0; r < w->c.ranks && pass == RING_BACKWARD; r++)
            assert_int_equal(r, held[r]); /* gradients have come home */
    }
}

/* Backward keys go out again, and the sums with them, one hop further: home. */
static void walk_minimal(Walk *w, RingPass pass)
{
    int held[RANKS], sums[RANKS], to[RANKS];
    own(held);
    own(sums);
    neighbours(w, to, 1);
    meet(w, held, 1);
    for (int t = 1; t <= w->c.ranks; t++) {
        if (pass == RING_BACKWARD)
            shift(w, to, sums, key_sums);
        if (t == w->c.ranks)
            break;
        shift(w, to, held, keys);
        meet(w, held, 1);
    }
    for (int r = 0; r < w->c.ranks && pass == RING_BACKWARD; r++)
        assert_int_equal(r, sums[r]);
}

static void walk_burst(Walk *w)
{
    for (int side = 0; side < 2; side++) {
        const int hops = side ? w->c.hops_down : w->c.hops_up;
        const int way = side || w->c.hops_up == w->c.ranks - 1 ? 1 : -1;
        int held[RANKS], sums[RANKS], to[RANKS];
        own(held);
        own(sums);
        if (!side)
            meet(w, held, 0);
        neighbours(w, to, way);
        for (int t = 0; t < hops; t++) {
            shift(w, to, held, queries);
            shift(w, to, sums, query_sums);
            meet(w, held, 0);
        }
        for (int r = 0; r < w->c.ranks && hops; r++)
            move(w, r, sums[r], RING_DQ, size_of(w, RING_DQ, sums[r]));
    }
}

static void walk_gather(Walk *w, RingPass pass)
{
    for (int from = 0; from < w->c.ranks; from++)
        for (int to = 0; to < w->c.ranks; to++) {
            move(w, from, to, RING_K, size_of(w, RING_K, from));
            move(w, from, to, RING_V, size_of(w, RING_V, from));
            w->met[to][from]++;
            if (pass == RING_BACKWARD) { /* the other's part of what the sender found for it */
                move(w, from, to, RING_DK, size_of(w, RING_DK, to));
                move(w, from, to, RING_DV, size_of(w, RING_DV, to));
            }
        }
}

/* Head by head: query head h is worked on by rank h / (H/G), whose kv head is that of its first
 * query head; a kv head is needed by every rank that has a query head of it. */
static void walk_heads(Walk *w, RingPass pass)
{
    const AttnShape *s = &w->c.shape;
    const int64_t e = w->c.dtype == ATTN_F32 ? 4 : 2;
    const int G = w->c.ranks;
    for (int r = 0; r < G; r++) {
        for (int64_t h = 0; h < s->H; h++) {
            const int worker = (int)(h / (s->H / G));
            const int64_t q = s->B * w->nq[r] * s->d * e;
            move(w, r, worker, pass == RING_FORWARD ? RING_Q : RING_DO, q);
            move(w, worker, r, pass == RING_FORWARD ? RING_O : RING_DQ, q);
            if (pass == RING_FORWARD)
                move(w, worker, r, RING_LSE, s->B * w->nq[r] * 4);
        }
        for (int64_t h = 0; h < s->Hkv; h++)
            for (int worker = 0; worker < G; worker++) {
                const int64_t kv = s->B * w->nk[r] * s->d * e, group = s->H / s->Hkv;
                const int64_t first = worker * (s->H / G), last = first + s->H / G - 1;
                if (h < first / group || h > last / group)
                    continue;
                for (int side = 0; side < 2; side++)
                    if (pass == RING_FORWARD)
                        move(w, r, worker, side ? RING_V : RING_K, kv);
                    else
                        move(w, worker, r, side ? RING_DV : RING_DK, kv);
            }
        for (int k = 0; k < G; k++)
            w->met[r][k]++;
    }
}

/* Double rings: a block visits all places of a node, then all of the next one. */
static void node_neighbours(const Walk *w, int *to, int nodes_on, int places_on)
{
    const int M = w->c.nodes, g = w->c.ranks / M;
    for (int r = 0; r < w->c.ranks; r++)
        to[r] = (r / g + nodes_on + M) % M * g + (r % g + places_on + g) % g;
}

static void walk_tree(Walk *w, const RingTensor *what, int keys_visit)
{
    const int M = w->c.nodes, g = w->c.ranks / M;
    int first[RANKS], held[RANKS], to[RANKS];
    own(first);
    for (int m = 0; m < M; m++) {
        memcpy(held, first, sizeof held);
        meet(w, held, keys_visit);
        node_neighbours(w, to, 0, 1);
        for (int t = 1; t < g; t++) {
            shift(w, to, held, what);
            meet(w, held, keys_visit);
        }
        node_neighbours(w, to, 1, 0);
        if (m < M - 1)
            shift(w, to, first, what);
    }
}

/* Where rank r's block of outer step m, inner step s comes from. */
static int tree_owner(const Walk *w, int r, int m, int s)
{
    const int M = w->c.nodes, g = w->c.ranks / M;
    return (r / g - m + M) % M * g + (r % g - s + g) % g;
}

static void walk_tree_home(Walk *w)
{
    const int M = w->c.nodes, g = w->c.ranks / M, G = w->c.ranks;
    int far[RANKS], held[RANKS], sums[RANKS], to[RANKS];
    for (int r = 0; r < G; r++)
        far[r] = tree_owner(w, r, M - 1, g - 1);
    for (int m = M - 1; m >= 0; m--) {
        memcpy(held, far, sizeof held);
        memcpy(sums, far, sizeof sums);
        meet(w, held, 1);
        node_neighbours(w, to, 0, -1);
        for (int t = 1; t < g; t++) {
            shift(w, to, held, keys);
            shift(w, to, sums, key_sums);
            meet(w, held, 1);
        }
        node_neighbours(w, to, -1, 0);
        if (m > 0) {
            shift(w, to, far, keys);
            shift(w, to, sums, key_sums);
        }
    }
    for (int r = 0; r < G; r++)
        assert_true(held[r] == r && sums[r] == r);
}

static void walk_tree_dQ(Walk *w)
{
    const int M = w->c.nodes, g = w->c.ranks / M, G = w->c.ranks;
    int sums[RANKS], to[RANKS];
    for (int m = 0; m < M; m++) {
        for (int r = 0; r < G; r++)
            sums[r] = tree_owner(w, r, m, 0);
        node_neighbours(w, to, 0, 1);
        for (int t = 1; t < g; t++)
            shift(w, to, sums, query_sums);
        for (int r = 0; r < G; r++)
            assert_int_equal(tree_owner(w, r, m, g - 1), sums[r]);
        node_neighbours(w, to, 1, 0);
        for (int r = 0; r < G; r++)
            move(w, r, m < M - 1 ? to[r] : sums[r], RING_DQ, size_of(w, RING_DQ, sums[r]));
    }
}

static void walk(Walk *w, RingPass pass)
{
    switch (w->c.method) {
    case RING_METHOD_ALLGATHER:
        walk_gather(w, pass);
        break;
    case RING_METHOD_ULYSSES:
        walk_heads(w, pass);
        break;
    case RING_METHOD_RING_DOUBLE:
        pass == RING_FORWARD ? walk_tree(w, keys, 1) : walk_tree_home(w);
        break;
    case RING_METHOD_BURST_DOUBLE:
        walk_tree(w, pass == RING_FORWARD ? keys : queries, pass == RING_FORWARD);
        if (pass == RING_BACKWARD)
            walk_tree_dQ(w);
        break;
    case RING_METHOD_RING_MINIMAL:
        walk_minimal(w, pass);
        break;
    default:
        if (pass == RING_BACKWARD && w->c.method == RING_METHOD_BURST)
            walk_burst(w);
        else
            walk_ring(w, pass);
    }
}

#endif
