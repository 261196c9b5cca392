/* SPDX-License-Identifier: MIT
 *
 * relay.c: sums of gradients that go from rank to rank, and each rank adds its part.
 *
 * K and V only need to be read, so a rank may pass them on before it has looked at them. A sum is
 * different: it can leave only after this rank's part is in it, and the next rank can add its own
 * only after the sum is there. In one piece, the way to the next rank would be a wait for
 * everybody, in every step. So a sum travels in two halves:
 *
 *     rank computes      half 0     | half 1     | half 0     | half 1     |
 *                        of block A | of block A | of block B | of block B |
 *     on its way                    | A half 0 > | A half 1 > | B half 0 > | B half 1 >
 *                                   | < B half 0 | < B half 1 | ...
 *
 * While the kernel adds to one half, the other half leaves, and that half of the next block's sum
 * arrives. It has the time of half a step for it, and nobody waits. (On a GPU ring gives each half
 * a stream, and half 1 also runs where half 0 leaves multiprocessors idle: exchange.c.)
 *
 * That holds only if both halves are about the same work. Of a zigzag shard's keys a causal mask
 * shows a later rank the early ones alone, and of its queries the late ones alone see a later
 * rank's keys. The first n/2 tokens would be all of the work, or none. So a half is two quarters:
 *
 *     quarter of a shard    0 (early) | 1 (early) | 2 (late) | 3 (late)
 *     half                      0           1          0          1
 *
 * There are two places for sums: `here` has those of this step, and in `there` those of the next
 * one arrive; ring_relay_exchange swaps the two. A half may arrive only when the half that was in
 * this memory has left it. ring_relay_arrive waits for that too: both are one exchange.
 *
 * With --partials bf16 a half is rounded before it leaves and is float32 again after its arrival.
 *
 * Interface: RingSums, RingRelay and what works with them (methods.h).
 */
#include "methods/methods.h"

/* --- sums --------------------------------------------------------------------------------------*/

void ring_open_sums(RingRank *r, RingSums *sums, int tensors, int64_t most_tokens)
{
    sums->tensors = tensors;
    sums->owner = r->rank; /* at first */
    sums->row = tensors == 1 ? ring_q_count(r, 1) : ring_kv_count(r, 1);
    sums->second = most_tokens / 2 * sums->row;
    for (int i = 0; i < tensors; i++)
        ring_open_buffer(r, &sums->of[i], (size_t)(most_tokens * sums->row) * sizeof(float),
                         "sums of gradients");
}

void ring_close_sums(RingRank *r, RingSums *sums)
{
    for (int i = 0; i < 2; i++)
        ring_close_buffer(r, &sums->of[i]);
}

float *ring_half(const RingSums *sums, int tensor, int half)
{
    return (float *)sums->of[tensor].data + (half ? sums->second : 0);
}

/* Elements. */
static int64_t half_count(const RingRank *r, const RingSums *sums, int half)
{
    const int64_t *tokens = sums->tensors == 1 ? r->q_tokens : r->k_tokens;
    return ring_half_tokens(tokens[sums->owner], half) * sums->row;
}

/* Quarter by quarter, as a kernel adds to them: the first one may write instead, and then the zeros
 * are never read (backend_memory.cu). */
void ring_clear_half(RingRank *r, const RingSums *sums, int half)
{
    const int keys = sums->tensors == 2;
    const int64_t first = ring_quarter_tokens(r, sums->owner, keys, half) * sums->row;
    const int64_t rest = half_count(r, sums, half) - first;
    for (int i = 0; i < sums->tensors && !r->failed; i++) {
        ring_zero(r, ring_half(sums, i, half), (size_t)first * sizeof(float));
        ring_zero(r, ring_half(sums, i, half) + first, (size_t)rest * sizeof(float));
    }
}

void ring_clear_sums(RingRank *r, RingSums *sums, int owner)
{
    sums->owner = owner;
    ring_clear_half(r, sums, 0);
    ring_clear_half(r, sums, 1);
}

void ring_add_sums(RingRank *r, RingSums *to, const RingSums *from, int half)
{
    for (int i = 0; i < to->tensors && !r->failed; i++)
        ring_add(r, ring_half(to, i, half), ring_half(from, i, half), half_count(r, to, half));
}

/* --- the way from rank to rank -----------------------------------------------------------------*/

void ring_open_relay(RingRank *r, RingRelay *relay, int tensors)
{
    const int64_t most = tensors == 1 ? ring_max_nq(r) : ring_max_nk(r);
    ring_open_sums(r, &relay->place[0], tensors, most);
    ring_open_sums(r, &relay->place[1], tensors, most);
}

void ring_close_relay(RingRank *r, RingRelay *relay)
{
    ring_close_sums(r, &relay->place[0]);
    ring_close_sums(r, &relay->place[1]);
    relay->at = 0;
}

/* The tag of the messages of tensor i. */
static RingTensor channel(const RingSums *sums, int i)
{
    if (sums->tensors == 1)
        return RING_DQ;
    return i == 0 ? RING_DK : RING_DV;
}

void ring_relay_send(RingRank *r, RingRelay *relay, int half, int to, int from, int owner)
{
    const RingSums *leaving = ring_here(relay);
    RingSums *coming = ring_there(relay);
    RingExchange *mail = &relay->mail[half];
    const size_t size = ring_size(r->partials);
    coming->owner = owner;
    for (int i = 0; i < leaving->tensors && !r->failed; i++) {
        const RingTensor tensor = channel(leaving, i);
        const int64_t out = half_count(r, leaving, half), in = half_count(r, coming, half);
        float *sum = ring_half(leaving, i, half), *next = ring_half(coming, i, half);
        ring_narrow(r, sum, out, r->partials);
        ring_send(r, mail, to, tensor, sum, (size_t)out * size);
        ring_receive(r, mail, from, tensor, next, (size_t)in * size);
    }
    relay->coming[half] = coming;
    ring_start(r, mail);
}

void ring_relay_arrive(RingRank *r, RingRelay *relay, int half)
{
    const RingSums *sums = relay->coming[half];
    ring_wait(r, &relay->mail[half]);
    for (int i = 0; sums && i < sums->tensors && !r->failed; i++)
        ring_widen(r, ring_half(sums, i, half), half_count(r, sums, half), r->partials);
    relay->coming[half] = NULL;
}

void ring_relay_exchange(RingRelay *relay)
{
    relay->at = 1 - relay->at;
}

/* --- home --------------------------------------------------------------------------------------*/

/* Into another place in one pass over memory; a half in its stream, behind the kernel that has
 * finished it and beside the other half's. */
static void round_halves(RingRank *r, const RingSums *sums, const RingSums *to)
{
    for (int half = 0; half < RING_HALVES; half++) {
        const int64_t count = half_count(r, sums, half);
        ring_stream(r, half);
        for (int i = 0; i < sums->tensors && !r->failed; i++)
            ring_narrow_to(r, ring_half(to, i, half), ring_half(sums, i, half), count, r->dtype);
    }
    ring_stream(r, RING_BOTH_STREAMS);
}

/* Gradients that travelled stay in halves: to bring them together would cost a copy and its memory,
 * and who collects the results places four quarters as well as one tensor. */
void ring_give_halves(RingRank *r, RingSums *of, RingSums *place)
{
    RingSums *sums = ring_size(r->dtype) != sizeof(float) && place->of[0].data ? place : of;
    round_halves(r, of, sums);
    if (sums->tensors == 1) {
        ring_hand_over_dQ(r, &sums->of[0]);
        r->dQ_second = (size_t)sums->second * sizeof(float);
        r->dQ_whole = 0;
    } else {
        ring_hand_over_dKV(r, &sums->of[0], &sums->of[1]);
        r->dKV_second = (size_t)sums->second * sizeof(float);
        r->dKV_whole = 0;
    }
}
