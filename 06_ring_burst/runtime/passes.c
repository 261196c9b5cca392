/* SPDX-License-Identifier: MIT
 *
 * passes.c: the pieces that passes are made of: receive buffers for remote blocks and their
 * messages, the state that a forward pass adds to, and what begins and ends a backward pass.
 *
 * A block of keys is two messages, K and V. One of queries, which only backward passes send, is
 * four: Q and dO, and with them lse and delta, one number for each row. That is what an outsider
 * needs to compute gradients of these rows: P = exp(S - lse), and dS = P (dP - delta). Both belong
 * to the whole, finished attention. Whoever recomputed them from the keys at hand would get
 * gradients of another function.
 *
 * Interface (rank.h): ring_open_keys, ring_send_keys ... ring_receive_queries; ring_open_state ...
 * ring_close_state; ring_open_delta, ring_open_split_delta, ring_backward_local, ring_give_dQ ...
 */
#include "runtime/ring_world.h"

/* --- receive buffers ---------------------------------------------------------------------------*/

/* Of the largest shard of any rank. */
static size_t most_bytes(const RingRank *r, size_t (*bytes)(const RingRank *, int))
{
    size_t most = 0;
    for (int rank = 0; rank < r->world; rank++)
        most = bytes(r, rank) > most ? bytes(r, rank) : most;
    return most;
}

/* How many buffers? A remote block is computed with and passed on while the next one arrives: two.
 * With one hop in all there is only one remote block, and one buffer is enough. */
void ring_open_keys(RingRank *r, RingKeys *buffers, int count)
{
    const size_t bytes = most_bytes(r, ring_kv_bytes);
    for (int n = 0; n < count; n++) {
        ring_open_buffer(r, &buffers[n].K, bytes, "K of other ranks");
        ring_open_buffer(r, &buffers[n].V, bytes, "V of other ranks");
    }
}

void ring_close_keys(RingRank *r, RingKeys *buffers, int count)
{
    for (int n = 0; n < count; n++) {
        ring_close_buffer(r, &buffers[n].K);
        ring_close_buffer(r, &buffers[n].V);
    }
}

void ring_open_queries(RingRank *r, RingQueries *buffers, int count)
{
    const size_t bytes = most_bytes(r, ring_q_bytes), rows = most_bytes(r, ring_row_bytes);
    for (int n = 0; n < count; n++) {
        ring_open_buffer(r, &buffers[n].Q, bytes, "Q of other ranks");
        ring_open_buffer(r, &buffers[n].dO, bytes, "dO of other ranks");
        ring_open_buffer(r, &buffers[n].lse, rows, "lse of other ranks");
        ring_open_buffer(r, &buffers[n].delta, rows, "delta of other ranks");
    }
}

/* --- messages of a block -----------------------------------------------------------------------*/

/* The size is that of the *owner's* shard, who is not the sender in general: 31 tokens on 4 ranks
 * are 7, 8, 8, 8, and a rank with 8 passes on 7 when those are the keys of rank 0. */
void ring_send_keys(RingRank *r, RingExchange *x, int peer, const RingBlock *k)
{
    const size_t bytes = ring_kv_bytes(r, k->owner);
    ring_send(r, x, peer, RING_K, k->a, bytes);
    ring_send(r, x, peer, RING_V, k->b, bytes);
}

/* `peer` is where the message comes from, `owner` whose keys they are. Only at the first hop are
 * the two the same rank. The block is described before it is there: it may be used after
 * ring_wait. */
void ring_receive_keys(RingRank *r, RingExchange *x, int peer, int owner, const RingKeys *buffer,
                       RingBlock *arriving)
{
    const size_t bytes = ring_kv_bytes(r, owner);
    *arriving = ring_remote_keys(r, owner, buffer->K.data, buffer->V.data);
    ring_receive(r, x, peer, RING_K, buffer->K.data, bytes);
    ring_receive(r, x, peer, RING_V, buffer->V.data, bytes);
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

/* --- forward -----------------------------------------------------------------------------------*/

/* The state is float32 whatever the dtype: rounding O after every remote block would add an error
 * for every rank (--partials bf16 does it, to show how much). Float32 rounds as well, which tensors
 * of float32 and lse would show: so the sums stay unnormalised, and three floats a row say of
 * what. */
void ring_open_state(RingRank *r, RingState *state)
{
    const size_t bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    state->q = ring_own_queries(r);
    ring_open_buffer(r, &state->O, bytes, "O in float32");
    ring_open_buffer(r, &state->rows, 3 * ring_row_bytes(r, r->rank), "m and l");
    state->q.rows = state->rows.data;
    ring_start_state(r, &state->q, state->O.data, r->lse);
}

/* The merge is inside of ring_attend: the kernel starts from what it has left of the row instead of
 * (0, -inf). */
void ring_see_keys(RingRank *r, RingState *state, const RingBlock *k)
{
    ring_attend(r, &state->q, k, state->O.data, r->lse);
    ring_round(r, state->O.data, ring_q_count(r, r->nq));
}

/* A GPU's kernel has finished rows in its registers then, and can round them to r->O itself: the
 * float32 state is neither written nor read once more. Where remote blocks are rounded as well
 * (--partials bf16) that comes before. */
void ring_see_last_keys(RingRank *r, RingState *state, const RingBlock *k)
{
    state->q.O = ring_size(r->partials) == sizeof(float) ? r->O : NULL;
    ring_see_keys(r, state, k);
    state->q.O = NULL;
}

/* The only division, and the only rounding of O to the dtype, after the last remote block. */
void ring_close_state(RingRank *r, RingState *state)
{
    ring_finish_O(r, &state->q, r->O, state->O.data);
    ring_close_buffer(r, &state->O);
    ring_close_buffer(r, &state->rows);
}

/* --- backward ----------------------------------------------------------------------------------*/

/* Needs the finished O of the forward pass: delta of a part of the keys would be another number. */
void ring_open_delta(RingRank *r, RingBlock *q, RingBuffer *delta)
{
    *q = ring_own_queries(r);
    ring_open_buffer(r, delta, ring_row_bytes(r, r->rank), "delta");
    q->delta = delta->data;
    ring_delta(r, q, r->O, q->delta);
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

/* From now on the task owns the memory. */
void ring_hand_over_dQ(RingRank *r, RingBuffer *dQ)
{
    r->dQ = ring_take_buffer(r, dQ, &r->dQ_bytes);
    r->dQ_whole = 1;
}

void ring_hand_over_dKV(RingRank *r, RingBuffer *dK, RingBuffer *dV)
{
    r->dK = ring_take_buffer(r, dK, &r->dK_bytes);
    r->dV = ring_take_buffer(r, dV, &r->dV_bytes);
    r->dKV_whole = 1;
}

void ring_give_dQ(RingRank *r, RingBuffer *dQ)
{
    ring_narrow(r, dQ->data, ring_q_count(r, r->nq), r->dtype);
    ring_hand_over_dQ(r, dQ);
}

void ring_give_dKV(RingRank *r, RingBuffer *dK, RingBuffer *dV)
{
    ring_narrow(r, dK->data, ring_kv_count(r, r->nk), r->dtype);
    ring_narrow(r, dV->data, ring_kv_count(r, r->nk), r->dtype);
    ring_hand_over_dKV(r, dK, dV);
}

/* One rank, or a window that sees nobody else. Then this is stage 04, bit by bit. */
void ring_backward_local(RingRank *r)
{
    const RingBlock k = ring_own_keys(r);
    const size_t q_bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    const size_t k_bytes = (size_t)ring_kv_count(r, r->nk) * sizeof(float);
    RingBuffer delta = {0}, dQ = {0}, dK = {0}, dV = {0};
    RingBlock q;
    ring_open_delta(r, &q, &delta);
    ring_open_buffer(r, &dQ, q_bytes, "dQ");
    ring_open_buffer(r, &dK, k_bytes, "dK");
    ring_open_buffer(r, &dV, k_bytes, "dV");
    ring_zero(r, dQ.data, q_bytes);
    ring_zero(r, dK.data, k_bytes);
    ring_zero(r, dV.data, k_bytes);
    ring_differentiate(r, &q, &k, dQ.data, dK.data, dV.data);
    ring_give_dQ(r, &dQ);
    ring_give_dKV(r, &dK, &dV);
}
