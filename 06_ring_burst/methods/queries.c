/* SPDX-License-Identifier: MIT
 *
 * queries.c: queries that travel, which only backward passes do.
 *
 * A block of queries is four messages: Q and dO, and with them lse and delta, one number for each
 * row. That is what an outsider needs to compute gradients of these rows: P = exp(S - lse), and
 * dS = P (dP - delta). Both belong to the whole, finished attention. Whoever recomputed them from
 * the keys at hand would get gradients of another function.
 *
 * Interface: ring_open_queries, ring_send_queries, ring_receive_queries, ring_open_split_delta
 * (relay.h).
 */
#include "methods/relay.h"

void ring_open_queries(RingRank *r, RingQueries *buffers, int count)
{
    const size_t bytes = ring_most_bytes(r, ring_q_bytes),
                 rows = ring_most_bytes(r, ring_row_bytes);
    for (int n = 0; n < count; n++) {
        ring_open_buffer(r, &buffers[n].Q, bytes, "Q of other ranks");
        ring_open_buffer(r, &buffers[n].dO, bytes, "dO of other ranks");
        ring_open_buffer(r, &buffers[n].lse, rows, "lse of other ranks");
        ring_open_buffer(r, &buffers[n].delta, rows, "delta of other ranks");
    }
}

void ring_send_queries(RingRank *r, RingExchange *x, int peer, const RingBlock *q)
{
    const size_t bytes = ring_q_bytes(r, q->owner), rows = ring_row_bytes(r, q->owner);
    ring_send(r, x, peer, RING_Q, q->a, bytes);
    ring_send(r, x, peer, RING_DO, q->b, bytes);
    ring_send(r, x, peer, RING_LSE, q->lse, rows);
    ring_send(r, x, peer, RING_DELTA, q->delta, rows);
}

void ring_receive_queries(RingRank *r, RingExchange *x, int peer, int owner,
                          const RingQueries *buffer, RingBlock *arriving)
{
    const size_t bytes = ring_q_bytes(r, owner), rows = ring_row_bytes(r, owner);
    *arriving = ring_remote_queries(r, owner, buffer->Q.data, buffer->dO.data, buffer->lse.data,
                                    buffer->delta.data);
    ring_receive(r, x, peer, RING_Q, buffer->Q.data, bytes);
    ring_receive(r, x, peer, RING_DO, buffer->dO.data, bytes);
    ring_receive(r, x, peer, RING_LSE, buffer->lse.data, rows);
    ring_receive(r, x, peer, RING_DELTA, buffer->delta.data, rows);
}

/* A quarter of the queries is a block of its own for a kernel, and wants its rows of lse and delta
 * contiguous. */
void ring_open_split_delta(RingRank *r, RingBlock *q, RingBuffer *lse, RingBuffer *delta)
{
    const size_t bytes = ring_row_bytes(r, r->rank);
    RingBuffer rows = {0};
    ring_open_delta(r, q, &rows);
    ring_open_buffer(r, lse, bytes, "lse in halves");
    ring_open_buffer(r, delta, bytes, "delta in halves");
    if (!r->failed) {
        ring_split_rows(r, lse->data, r->lse);
        ring_split_rows(r, delta->data, rows.data);
    }
    q->lse = lse->data;
    q->delta = delta->data;
    ring_close_buffer(r, &rows);
    ring_free(r, r->O, ring_q_bytes(r, r->rank));
    r->O = NULL;
}
