/* SPDX-License-Identifier: MIT
 *
 * own_backward.c: a solution of exercise 14 of docs/lab/06_exercises.md: both passes of a ring,
 * over rank.h alone. The sums travel in one piece, each after its step: as many bytes as in
 * halves, and nothing to hide them behind.
 *
 * Interface: ring_burst_variant, ring_burst_variant_backward, ring_burst_abi_version.
 */
#include <stdlib.h>

#include "runtime/simulate.h"

int ring_burst_abi_version = RING_BURST_ABI_VERSION;

typedef struct Own {
    void *K[2], *V[2];    /* two buffers for remote blocks */
    float *dK[2], *dV[2]; /* sums: of the remote block that is here, of the one that comes */
    size_t buffer, sums;  /* bytes of each of them */
    RingBlock last;       /* the remote block that the forward pass has left */
} Own;

static size_t sum_bytes(const RingRank *r, int owner)
{
    return (size_t)ring_kv_count(r, r->k_tokens[owner]) * sizeof(float);
}

static int open_own(RingRank *r)
{
    Own *own = r->method = calloc(1, sizeof *own);
    if (!own)
        return ring_fail(r, "out of memory");
    own->sums = (size_t)ring_kv_count(r, ring_max_nk(r)) * sizeof(float);
    own->buffer = own->sums / sizeof(float) * ring_size(r->dtype);
    for (int i = 0; i < 2; i++) {
        own->K[i] = ring_alloc(r, own->buffer, "K");
        own->V[i] = ring_alloc(r, own->buffer, "V");
    }
    return r->failed ? -1 : 0;
}

static void close_own(RingRank *r)
{
    Own *own = r->method;
    for (int i = 0; own && i < 2; i++) {
        ring_free(r, own->K[i], own->buffer);
        ring_free(r, own->V[i], own->buffer);
        ring_free(r, own->dK[i], own->sums);
        ring_free(r, own->dV[i], own->sums);
    }
    free(own);
    r->method = NULL;
}

/* k goes to the next rank in direction `way`, and the keys of `coming` come. Only starts it. */
static RingBlock pass_on(RingRank *r, RingExchange *x, const RingBlock *k, int way, int coming,
                         int buffer)
{
    const Own *own = r->method;
    const size_t out = ring_kv_bytes(r, k->owner), in = ring_kv_bytes(r, coming);
    ring_send(r, x, ring_at(r, way), RING_K, k->a, out);
    ring_send(r, x, ring_at(r, way), RING_V, k->b, out);
    ring_receive(r, x, ring_at(r, -way), RING_K, own->K[buffer], in);
    ring_receive(r, x, ring_at(r, -way), RING_V, own->V[buffer], in);
    ring_start(r, x);
    return ring_remote_keys(r, coming, own->K[buffer], own->V[buffer]);
}

static int forward(RingRank *r)
{
    Own *own = r->method;
    const RingBlock q = ring_own_queries(r);
    const size_t bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    float *O = ring_alloc(r, bytes, "O");
    RingBlock k = ring_own_keys(r), next = k;
    RingExchange x = {0};
    ring_start_state(r, &q, O, r->lse);
    for (int t = 0; t < r->world && !r->failed; t++) { /* k: keys of rank r - t */
        ring_step(r, t);
        if (t < r->world - 1)
            next = pass_on(r, &x, &k, +1, ring_at(r, -t - 1), t % 2);
        ring_attend(r, &q, &k, O, r->lse);
        ring_wait(r, &x);
        own->last = k;
        k = next;
    }
    ring_finish_O(r, &q, r->O, O);
    ring_free(r, O, bytes);
    return r->failed ? -1 : 0;
}

/* The sums of `owner` follow their keys, those of `coming` come into the other place. */
static void pass_sums_on(RingRank *r, int here, int owner, int coming)
{
    const Own *own = r->method;
    const size_t out = sum_bytes(r, owner), in = sum_bytes(r, coming);
    RingExchange x = {0};
    ring_send(r, &x, ring_at(r, -1), RING_DK, own->dK[here], out);
    ring_send(r, &x, ring_at(r, -1), RING_DV, own->dV[here], out);
    ring_receive(r, &x, ring_at(r, 1), RING_DK, own->dK[1 - here], in);
    ring_receive(r, &x, ring_at(r, 1), RING_DV, own->dV[1 - here], in);
    ring_start(r, &x);
    ring_wait(r, &x); /* at once: the next step cannot begin without them */
}

/* Begins with the remote block that is there and turns the other way: the last one is at home. */
static int turn_back(RingRank *r, const RingBlock *q, float *dQ)
{
    Own *own = r->method;
    RingBlock k = own->last, next = k;
    RingExchange x = {0};
    int here = 0;
    for (int t = r->world - 1; t >= 0 && !r->failed; t--) { /* k: keys of rank r - t */
        const int coming = ring_at(r, -t + 1);
        ring_step(r, r->world - 1 - t);
        if (t > 0)
            next = pass_on(r, &x, &k, -1, coming, t % 2);
        ring_differentiate(r, q, &k, dQ, own->dK[here], own->dV[here]);
        if (t > 0) {
            pass_sums_on(r, here, k.owner, coming);
            here = 1 - here;
        }
        ring_wait(r, &x);
        k = next;
    }
    return here;
}

/* Who owns memory after this: the task has dQ, dK and dV, `close` frees the rest. */
static int backward(RingRank *r)
{
    Own *own = r->method;
    const size_t rows = ring_row_bytes(r, r->rank);
    float *delta = ring_alloc(r, rows, "delta");
    RingBlock q = ring_own_queries(r);
    int here;
    q.delta = delta;
    r->dQ_bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    r->dQ = ring_alloc(r, r->dQ_bytes, "dQ");
    for (int i = 0; i < 2; i++) {
        own->dK[i] = ring_alloc(r, own->sums, "dK");
        own->dV[i] = ring_alloc(r, own->sums, "dV");
    }
    ring_delta(r, &q, r->O, delta); /* of the finished O: over all keys */
    ring_zero(r, r->dQ, r->dQ_bytes);
    ring_zero(r, own->dK[0], own->sums);
    ring_zero(r, own->dV[0], own->sums);
    here = turn_back(r, &q, r->dQ);
    ring_free(r, delta, rows);
    ring_narrow(r, r->dQ, ring_q_count(r, r->nq), r->dtype);
    ring_narrow(r, own->dK[here], ring_kv_count(r, r->nk), r->dtype);
    ring_narrow(r, own->dV[here], ring_kv_count(r, r->nk), r->dtype);
    r->dK = own->dK[here];
    r->dV = own->dV[here];
    own->dK[here] = own->dV[here] = NULL;
    r->dK_bytes = r->dV_bytes = own->sums;
    r->dQ_whole = r->dKV_whole = 1;
    return r->failed ? -1 : 0;
}

static const RingMethodTable own_method = {open_own, forward, backward, close_own};

AttnStatus ring_burst_variant(const AttnArgs *args)
{
    return ring_simulate(args, RING_METHOD_RING, &own_method, 0);
}

AttnStatus ring_burst_variant_backward(const AttnArgs *args)
{
    return ring_simulate(args, RING_METHOD_RING, &own_method, 1);
}
