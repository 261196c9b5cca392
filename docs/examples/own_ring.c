/* SPDX-License-Identifier: MIT
 *
 * own_ring.c: a solution of exercise 13 of docs/lab/06_exercises.md: the forward pass of a ring as
 * a method of your own, for `ring_burst --variant-so`. Written over rank.h alone: what a
 * method sees.
 *
 * Interface: ring_burst_variant, ring_burst_abi_version.
 */
#include "runtime/simulate.h"

int ring_burst_abi_version = RING_BURST_ABI_VERSION;

typedef struct Buffer {
    void *K, *V;
} Buffer;

static size_t buffer_bytes(const RingRank *r)
{
    return (size_t)ring_kv_count(r, ring_max_nk(r)) * ring_size(r->dtype);
}

/* Keys of all ranks, in the order r, r-1, ...: at step t they are those of rank r - t. */
static void go_round(RingRank *r, const RingBlock *q, float *O, const Buffer buffer[2])
{
    const int G = r->world, right = (r->rank + 1) % G, left = (r->rank + G - 1) % G;
    RingBlock k = ring_own_keys(r);
    RingExchange x = {0};
    for (int t = 0; t < G && !r->failed; t++) {
        const int owner = (r->rank + G - t) % G, coming = (owner + G - 1) % G;
        RingBlock next = k;
        ring_step(r, t);
        if (t < G - 1) { /* under way before this step computes */
            const Buffer *to = &buffer[t % 2];
            ring_send(r, &x, right, RING_K, k.a, ring_kv_bytes(r, owner));
            ring_send(r, &x, right, RING_V, k.b, ring_kv_bytes(r, owner));
            ring_receive(r, &x, left, RING_K, to->K, ring_kv_bytes(r, coming));
            ring_receive(r, &x, left, RING_V, to->V, ring_kv_bytes(r, coming));
            ring_start(r, &x);
            next = ring_remote_keys(r, coming, to->K, to->V);
        }
        ring_attend(r, q, &k, O, r->lse);
        ring_wait(r, &x);
        k = next;
    }
}

static int forward(RingRank *r)
{
    const RingBlock q = ring_own_queries(r);
    const size_t bytes = buffer_bytes(r), O_bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    float *O = ring_alloc(r, O_bytes, "O");
    Buffer buffer[2];
    for (int i = 0; i < 2; i++)
        buffer[i] = (Buffer){ring_alloc(r, bytes, "K"), ring_alloc(r, bytes, "V")};
    if (!r->failed) {
        ring_start_state(r, &q, O, r->lse);
        go_round(r, &q, O, buffer);
        ring_finish_O(r, &q, r->O, O);
    }
    for (int i = 0; i < 2; i++) {
        ring_free(r, buffer[i].K, bytes);
        ring_free(r, buffer[i].V, bytes);
    }
    ring_free(r, O, O_bytes);
    return r->failed ? -1 : 0;
}

static const RingMethodTable own_ring = {NULL, forward, NULL, NULL};

AttnStatus ring_burst_variant(const AttnArgs *args)
{
    return ring_simulate(args, RING_METHOD_RING, &own_ring, 0);
}
