/* SPDX-License-Identifier: MIT
 *
 * test_ring_stream_orders: what two streams of a GPU's rank wait for.
 *
 * Plays (stream_play.h) in which each needs an order that no other play asks for; the first four
 * were missing once, and nobody saw it on GPUs.
 */
#include "stream_play.h"

/* PIECE bytes, each of them `value`. */
static int expect(RingRank *r, const void *p, int value)
{
    char found[PIECE], expected[PIECE];
    memset(expected, value, PIECE);
    ring_stream(r, RING_BOTH_STREAMS);
    if (r->backend->download(r, found, p, PIECE))
        return -1;
    return memcmp(found, expected, PIECE) ? ring_fail(r, "other values than expected") : 0;
}

/* --- messages ----------------------------------------------------------------------------------*/

/* From K[0] to the other rank's K[1], started in both streams, waited for in `stream`. */
static int exchange(RingRank *r, int stream)
{
    RingExchange x = {0};
    ring_stream(r, RING_BOTH_STREAMS);
    if (ring_step(r, 0) || ring_send(r, &x, 1 - r->rank, RING_K, rooms(r)->K[0], PIECE) ||
        ring_receive(r, &x, 1 - r->rank, RING_K, rooms(r)->K[1], PIECE) || ring_start(r, &x))
        return -1;
    ring_stream(r, stream);
    return ring_wait(r, &x);
}

/* K comes while stream 1 has no work; who asks for something in both streams counts on it. */
static int message_for_stream_1(RingRank *r)
{
    return exchange(r, 1) || copy_in(r, RING_BOTH_STREAMS, rooms(r)->V[0], rooms(r)->K[1]) ? -1 : 0;
}

static int message_of_stream_1(RingRank *r)
{
    return copy_in(r, 1, rooms(r)->K[0], r->K) || exchange(r, RING_BOTH_STREAMS) ? -1 : 0;
}

/* That nobody has written yet when they are sent. */
static int message_of_zeros(RingRank *r)
{
    return zero_in(r, RING_BOTH_STREAMS, rooms(r)->K[0]) || exchange(r, RING_BOTH_STREAMS) ||
                   expect(r, rooms(r)->K[1], 0)
               ? -1
               : 0;
}

/* --- memory ------------------------------------------------------------------------------------*/

/* Sums of either stream, rounded where they stand. */
static int narrowing_in_both(RingRank *r)
{
    if (r->workspace_bytes < PIECE)
        return ring_fail(r, "this play needs a workspace");
    for (int stream = 0; stream < RING_STREAMS; stream++) {
        void *p = stream ? rooms(r)->V[0] : rooms(r)->K[0];
        if (zero_in(r, stream, p) || ring_narrow(r, p, PIECE / 4, ATTN_BF16))
            return -1;
    }
    return 0;
}

/* A piece that one stream has written is freed in both, and the other stream gets the next one. */
static int free_and_use(RingRank *r, int first)
{
    void *p = ring_alloc(r, PIECE, "a piece"), *next;
    if (!p || copy_in(r, first, p, r->K))
        return -1;
    ring_stream(r, RING_BOTH_STREAMS);
    ring_free(r, p, PIECE);
    next = ring_alloc(r, PIECE, "the next piece");
    if (next != p)
        return ring_fail(r, "this play needs the same piece twice");
    if (copy_in(r, 1 - first, next, r->V))
        return -1;
    ring_stream(r, RING_BOTH_STREAMS);
    ring_free(r, next, PIECE);
    return 0;
}

SCENE_OF(free_behind_stream_0, free_and_use, 0)
SCENE_OF(free_behind_stream_1, free_and_use, 1)

/* --- zeros -------------------------------------------------------------------------------------*/

/* Both streams read zeros that both were asked to have. */
static int zeros_for_both(RingRank *r)
{
    const Rooms *ring = rooms(r);
    return zero_in(r, RING_BOTH_STREAMS, ring->K[0]) || copy_in(r, 0, ring->V[0], ring->K[0]) ||
                   copy_in(r, 1, ring->V[1], ring->K[0]) || expect(r, ring->V[0], 0) ||
                   expect(r, ring->V[1], 0)
               ? -1
               : 0;
}

/* So many other zeros that the first ones have to be written, in stream 0; stream 1 reads them. */
static int zeros_pushed_out(RingRank *r)
{
    const Rooms *ring = rooms(r);
    if (zero_in(r, RING_BOTH_STREAMS, ring->K[0]))
        return -1;
    ring_stream(r, 0);
    for (int n = 0; n < CUDA_ZEROS; n++)
        if (ring_zero(r, (char *)ring->K[1] + 4 * n, 4))
            return -1;
    return copy_in(r, 1, ring->V[1], ring->K[0]) || expect(r, ring->V[1], 0) ? -1 : 0;
}

/* They are older than what is put there, and must not come later. */
static int zeros_below(RingRank *r)
{
    static const char ones[PIECE] = {[0 ... PIECE - 1] = 1};
    const Rooms *ring = rooms(r);
    return zero_in(r, RING_BOTH_STREAMS, ring->V[0]) || expect(r, ring->V[0], 0) ||
                   zero_in(r, RING_BOTH_STREAMS, ring->K[0]) ||
                   r->backend->upload(r, ring->K[0], ones, PIECE) ||
                   zero_in(r, RING_BOTH_STREAMS, ring->K[1]) ||
                   copy_in(r, RING_BOTH_STREAMS, ring->K[1], ring->K[0]) ||
                   expect(r, ring->K[0], 1) || expect(r, ring->K[1], 1)
               ? -1
               : 0;
}

/* --- NaN ---------------------------------------------------------------------------------------*/

/* What was to be zeros, or is still written by a stream, is NaN afterwards: all bits are set. */
static int poisoned_at_last(RingRank *r)
{
    const Rooms *ring = rooms(r);
    if (zero_in(r, RING_BOTH_STREAMS, ring->K[0]) || r->backend->poison(r, ring->K[0], PIECE))
        return -1;
    for (int stream = 0; stream < RING_STREAMS; stream++) {
        void *p = stream ? ring->V[1] : ring->V[0];
        if (copy_in(r, stream, p, r->K))
            return -1;
        ring_stream(r, RING_BOTH_STREAMS);
        if (r->backend->poison(r, p, PIECE))
            return -1;
    }
    return expect(r, ring->K[0], 0xFF) || expect(r, ring->V[0], 0xFF) || expect(r, ring->V[1], 0xFF)
               ? -1
               : 0;
}

/* --- gradients ---------------------------------------------------------------------------------*/

/* Of one quarter of the own keys, in a stream: to the rooms number `room`. Q stands for dO. */
static int differentiate(RingRank *r, int stream, int quarter, int room)
{
    const Rooms *ring = rooms(r);
    const RingBlock own = ring_own_keys(r),
                    keys = ring_block_quarter(r, &r->plan->k[r->rank], &own, quarter);
    RingBlock q = ring_own_queries(r);
    q.b = r->Q;
    q.delta = ring->delta;
    ring_stream(r, stream);
    return ring_differentiate(r, &q, &keys, ring->O_state, ring->dK[room], ring->dV[room]);
}

/* Stream 1 reads what dK is to be made of; then both are asked for zeros, which stream 0's kernel
 * spares itself: it writes dK right behind what stream 1 did. The first calls prepare queries and
 * maps, for which the host has to wait. */
static int zeros_never_written(RingRank *r)
{
    const Rooms *ring = rooms(r);
    const size_t bytes = (size_t)ring_kv_count(r, r->nk / 2) * sizeof(float);
    if (differentiate(r, 0, 1, 1) || differentiate(r, 0, 0, 0) ||
        copy_in(r, RING_BOTH_STREAMS, ring->K[0], r->K) || copy_in(r, 1, ring->V[1], ring->dK[0]))
        return -1;
    ring_stream(r, RING_BOTH_STREAMS);
    return ring_zero(r, ring->dK[0], bytes) || ring_zero(r, ring->dV[0], bytes) ||
                   differentiate(r, 0, 0, 0)
               ? -1
               : 0;
}

/* Both streams have added to dQ, which has to leave the workspace before a kernel of stream 0 may
 * have it. */
static int dQ_of_both(RingRank *r)
{
    const Rooms *ring = rooms(r);
    const RingBlock q = ring_own_queries(r), k = ring_own_keys(r);
    if (differentiate(r, 0, 0, 0) || differentiate(r, 1, 1, 1))
        return -1;
    ring_stream(r, 0);
    return ring_attend(r, &q, &k, ring->K[0], ring->V[0]);
}

/* What was added to dQ and is still in the workspace goes, too, where zeros are asked for. */
static int zeros_instead_of_dQ(RingRank *r)
{
    float *dQ = rooms(r)->O_state;
    if (differentiate(r, 0, 0, 0))
        return -1;
    ring_stream(r, RING_BOTH_STREAMS);
    return ring_zero(r, dQ, (size_t)ring_q_count(r, r->nq) * sizeof *dQ) || expect(r, dQ, 0) ? -1
                                                                                             : 0;
}

/* --- on stage ---------------------------------------------------------------------------------*/

enum { TOKENS = 4 };

PLAYS(test_messages, TOKENS, NULL, message_of_stream_1, message_of_zeros)
PLAYS(test_message_for_stream_1, TOKENS, NULL, message_for_stream_1)
PLAYS(test_narrowing_in_both_streams, TOKENS, NULL, narrowing_in_both)
PLAYS(test_free_in_both_streams, TOKENS, NULL, free_behind_stream_0, free_behind_stream_1)
PLAYS(test_zeros_for_both_streams, TOKENS, NULL, zeros_for_both, zeros_pushed_out)
PLAYS(test_zeros_not_written, TOKENS, NULL, zeros_below, zeros_never_written, zeros_instead_of_dQ)
PLAYS(test_poisoned_memory, TOKENS, NULL, poisoned_at_last)
PLAYS(test_dQ_of_both_streams, TOKENS, NULL, dQ_of_both)
