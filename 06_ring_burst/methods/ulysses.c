/* SPDX-License-Identifier: MIT
 *
 * ulysses.c: no ring at all. Heads do not need each other, so instead of some tokens of all heads,
 * give each rank all tokens of some heads.
 *
 *             tokens                     tokens
 *           0 0 1 1 2 2 3 3            0 0 0 0 0 0 0 0
 *     heads 0 0 1 1 2 2 3 3   all to   1 1 1 1 1 1 1 1     who has which tokens of which heads
 *           0 0 1 1 2 2 3 3    all     2 2 2 2 2 2 2 2
 *           0 0 1 1 2 2 3 3   <---->   3 3 3 3 3 3 3 3
 *
 * On the right every rank does ordinary attention, in one call of the block kernel. Before it Q, K,
 * V change sides, after it O and lse come back; backward dO goes, and dQ, dK, dV come back. These
 * are finished results, so all but lse travel in the dtype, and a rank sends less the more ranks
 * there are: (G-1)/G of its own share of each. But nothing hides behind anything, and there cannot
 * be more ranks than heads.
 *
 * With fewer kv heads than ranks each kv head goes to several ranks, among which its query heads
 * are divided. Backward, each of them comes back with a part of its dK and dV, and the owner of the
 * tokens adds them.
 *
 * The tokens stand in the order of their ranks. Which positions these are the position map knows;
 * attention itself asks for no order.
 *
 *     bytes sent     (G-1)/G n (2 H d b + 4 H) + (G-1) n 2 h d b forward, without 4 H backward,
 *                    h = max(Hkv/G, 1): kv heads of a rank
 *     memory         all tensors once more, what is packed for the way, and float32 results
 *
 * Interface: the method ulysses (its last line).
 * Source: Jacobs et al. 2023, DeepSpeed Ulysses (arXiv 2309.14509).
 */
#include "methods/heads.h"

typedef struct Ulysses {
    RingBuffer Q, K, V, O, lse, dO, delta; /* all tokens of this rank's heads */
    RingBuffer O_sums, dQ_sums, dK_sums, dV_sums;
    RingBuffer packed[3], packed_lse; /* for other ranks, or from them */
    RingBuffer dQ, dK, dV;            /* results */
} Ulysses;

/* [B][all tokens][share of the heads][d]: as many elements as [B][n][all heads][d], dealt out the
 * other way. */
static void open_whole(RingRank *r, RingBuffer *b, const RingHeads *h, size_t size,
                       const char *what)
{
    ring_open_buffer(r, b, (size_t)ring_whole_count(r, h) * size, what);
}

static void open_packed(RingRank *r, RingBuffer *b, const RingHeads *h)
{
    ring_open_buffer(r, b, ring_packed_bytes(r, h), "heads on their way");
}

static void close_packed(RingRank *r, Ulysses *m)
{
    for (int i = 0; i < 3; i++)
        ring_close_buffer(r, &m->packed[i]);
    ring_close_buffer(r, &m->packed_lse);
}

/* All queries, or all keys, of this rank's heads. */
static RingBlock whole_block(const RingHeads *h, void *a, void *b)
{
    return (RingBlock){.owner = RING_EVERYBODY,
                       .tokens = h->whole,
                       .batch_stride = h->whole,
                       .heads = h->share,
                       .a = a,
                       .b = b};
}

/* Ordinary queries, of no rank in particular. */
static RingBlock queries_of(const Ulysses *m, const RingHeads *h)
{
    RingBlock q = whole_block(h, m->Q.data, m->dO.data);
    q.lse = m->lse.data;
    q.delta = m->delta.data;
    return q;
}

/* --- forward -----------------------------------------------------------------------------------*/

/* Q, K, V: from this rank's tokens to this rank's heads. Start and wait without anything between
 * them: nothing can be computed before all tokens are there, and that is why nothing hides. */
static void fetch_heads(RingRank *r, Ulysses *m, const RingHeads *q, const RingHeads *k)
{
    const size_t size = ring_size(r->dtype);
    RingExchange x = {0};
    open_whole(r, &m->Q, q, size, "Q of all tokens");
    open_whole(r, &m->K, k, size, "K of all tokens");
    open_whole(r, &m->V, k, size, "V of all tokens");
    open_packed(r, &m->packed[0], q);
    open_packed(r, &m->packed[1], k);
    open_packed(r, &m->packed[2], k);
    ring_send_mine(r, &x, RING_Q, q, r->Q, m->packed[0].data, m->Q.data);
    ring_send_mine(r, &x, RING_K, k, r->K, m->packed[1].data, m->K.data);
    ring_send_mine(r, &x, RING_V, k, r->V, m->packed[2].data, m->V.data);
    ring_start(r, &x);
    ring_wait(r, &x);
    close_packed(r, m);
}

/* Ordinary attention: the position map has all tokens of all ranks. */
static void attend_heads(RingRank *r, Ulysses *m, const RingHeads *q, const RingHeads *k)
{
    const size_t rows = (size_t)(r->B * q->share * q->whole) * sizeof(float);
    const RingBlock keys = whole_block(k, m->K.data, m->V.data);
    RingBlock queries;
    open_whole(r, &m->O, q, ring_size(r->dtype), "O of all tokens");
    ring_open_buffer(r, &m->lse, rows, "lse of all tokens");
    open_whole(r, &m->O_sums, q, sizeof(float), "O in float32");
    queries = queries_of(m, q);
    queries.O = m->O.data; /* there are no other keys */
    ring_start_state(r, &queries, m->O_sums.data, m->lse.data);
    ring_attend(r, &queries, &keys, m->O_sums.data, m->lse.data);
    ring_finish_O(r, &queries, m->O.data, m->O_sums.data);
    ring_close_buffer(r, &m->O_sums);
}

/* O and lse: back to those who have the tokens. The whole ones stay for the backward pass. */
static void return_O(RingRank *r, Ulysses *m, const RingHeads *q)
{
    RingExchange x = {0};
    open_packed(r, &m->packed[0], q);
    ring_open_buffer(r, &m->packed_lse, m->lse.bytes, "lse on its way");
    ring_send_whole(r, &x, RING_O, q, m->O.data, m->packed[0].data);
    ring_send_rows(r, &x, q, m->lse.data, m->packed_lse.data, r->lse);
    ring_start(r, &x);
    ring_wait(r, &x);
    ring_place_whole(r, q, m->O.data, m->packed[0].data, r->O);
    close_packed(r, m);
}

static int forward(RingRank *r)
{
    const RingHeads q = ring_query_heads(r), k = ring_key_heads(r);
    Ulysses *m = ring_method_state(r, sizeof *m);
    if (!m)
        return -1;
    ring_step(r, 0);
    fetch_heads(r, m, &q, &k);
    attend_heads(r, m, &q, &k);
    ring_step(r, 1);
    return_O(r, m, &q);
    return ring_status(r);
}

/* --- backward ----------------------------------------------------------------------------------*/

/* Q, K, V, O and lse of all tokens are still there from the forward pass; dO is the only thing that
 * is missing. */
static void fetch_dO(RingRank *r, Ulysses *m, const RingHeads *q)
{
    RingExchange x = {0};
    open_whole(r, &m->dO, q, ring_size(r->dtype), "dO of all tokens");
    open_packed(r, &m->packed[0], q);
    ring_send_mine(r, &x, RING_DO, q, r->dO, m->packed[0].data, m->dO.data);
    ring_start(r, &x);
    ring_wait(r, &x);
    close_packed(r, m);
}

static void open_zeros(RingRank *r, RingBuffer *b, const RingHeads *h, const char *what)
{
    open_whole(r, b, h, sizeof(float), what);
    ring_zero(r, b->data, b->bytes);
}

/* O is needed for delta only, and the inputs for nothing when the sums are there. */
static void differentiate_heads(RingRank *r, Ulysses *m, const RingHeads *q, const RingHeads *k)
{
    const RingBlock keys = whole_block(k, m->K.data, m->V.data);
    RingBlock queries;
    ring_open_buffer(r, &m->delta, m->lse.bytes, "delta of all tokens");
    queries = queries_of(m, q);
    ring_delta(r, &queries, m->O.data, m->delta.data);
    ring_close_buffer(r, &m->O);
    open_zeros(r, &m->dQ_sums, q, "dQ in float32");
    open_zeros(r, &m->dK_sums, k, "dK in float32");
    open_zeros(r, &m->dV_sums, k, "dV in float32");
    ring_differentiate(r, &queries, &keys, m->dQ_sums.data, m->dK_sums.data, m->dV_sums.data);
    ring_narrow(r, m->dQ_sums.data, ring_whole_count(r, q), r->dtype);
    ring_narrow(r, m->dK_sums.data, ring_whole_count(r, k), r->dtype);
    ring_narrow(r, m->dV_sums.data, ring_whole_count(r, k), r->dtype);
    ring_close_buffer(r, &m->Q);
    ring_close_buffer(r, &m->K);
    ring_close_buffer(r, &m->V);
    ring_close_buffer(r, &m->dO);
}

/* Each copy of a kv head has its own part of dK and dV. They are rounded to the dtype for the way,
 * and added in float32 where they arrive (heads.c). */
static void return_gradients(RingRank *r, Ulysses *m, const RingHeads *q, const RingHeads *k)
{
    RingExchange x = {0};
    open_packed(r, &m->packed[0], q);
    open_packed(r, &m->packed[1], k);
    open_packed(r, &m->packed[2], k);
    ring_send_whole(r, &x, RING_DQ, q, m->dQ_sums.data, m->packed[0].data);
    ring_send_whole(r, &x, RING_DK, k, m->dK_sums.data, m->packed[1].data);
    ring_send_whole(r, &x, RING_DV, k, m->dV_sums.data, m->packed[2].data);
    ring_start(r, &x);
    ring_wait(r, &x);
    ring_open_buffer(r, &m->dQ, ring_q_bytes(r, r->rank), "dQ");
    ring_open_buffer(r, &m->dK, ring_kv_bytes(r, r->rank), "dK");
    ring_open_buffer(r, &m->dV, ring_kv_bytes(r, r->rank), "dV");
    ring_place_whole(r, q, m->dQ_sums.data, m->packed[0].data, m->dQ.data);
    ring_place_whole(r, k, m->dK_sums.data, m->packed[1].data, m->dK.data);
    ring_place_whole(r, k, m->dV_sums.data, m->packed[2].data, m->dV.data);
    ring_hand_over_dQ(r, &m->dQ);
    ring_hand_over_dKV(r, &m->dK, &m->dV);
}

static int backward(RingRank *r)
{
    const RingHeads q = ring_query_heads(r), k = ring_key_heads(r);
    Ulysses *m = r->method;
    ring_step(r, 0);
    fetch_dO(r, m, &q);
    differentiate_heads(r, m, &q, &k);
    ring_step(r, 1);
    return_gradients(r, m, &q, &k);
    return ring_status(r);
}

RING_METHOD(ulysses, "all-to-all: all tokens of some heads instead of some tokens of all heads",
            RING_COPIES);
