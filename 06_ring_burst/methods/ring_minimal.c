/* SPDX-License-Identifier: MIT
 *
 * ring_minimal.c: the plain ring, forward and backward. Read this method first.
 *
 * G ranks share one sequence. Each rank has n = N / G tokens: a block of queries, keys and values.
 * Every query has to see every key, so keys and values travel. A rank does two things in a step:
 *
 *     1. compute   attention of its own queries over the keys that are here
 *     2. pass on   these keys and values to the next rank, and receive the next ones
 *
 *     step         0    1    2    3
 *     rank 0       K0   K3   K2   K1        the keys that are here: at step t those of rank r - t.
 *     rank 1       K1   K0   K3   K2        Each row has every block once, so after G steps the
 *     rank 2       K2   K1   K0   K3        queries of each rank have seen all keys.
 *     rank 3       K3   K2   K1   K0
 *
 * How can a softmax be computed in parts? Each part gives O, the attention over its own keys, and
 * lse = log(sum of exp(score)), one number for each row. Two parts a and b join exactly:
 *
 *     lse = log(exp(lse_a) + exp(lse_b))        O = exp(lse_a - lse) O_a + exp(lse_b - lse) O_b
 *
 * ring_see_keys computes a part and joins it to the state (O, lse) of the parts so far, which
 * begins as O = 0, lse = -inf: attention over no keys. (The code keeps O unnormalised, with m and l
 * in place of lse, and divides once at the end: the same, but for a rounding.)
 *
 * Backward, keys travel again. P = exp(score - lse) needs only the finished lse, so each pair of
 * blocks is differentiated alone. That gives a part of dQ, which stays, and parts of dK and dV,
 * which belong to the owner of the keys: they travel with the keys as sums, to which every rank
 * adds its part. K and V make G-1 hops. The sums make one hop more, which brings them home.
 *
 *     bytes sent     2 (G-1) s b forward, 2 (G-1) s b + 2 G s b_g backward
 *                    (s = B n Hkv d; b, b_g: bytes of an element of K, and of a sum)
 *
 * Right, and slow: nobody computes while messages travel. The next method, ring.c, sends keys
 * before it computes with them, sends sums in two halves, and saves the hop home.
 *
 * Interface: the method ring-minimal (its last line).
 */
#include "runtime/rank.h"

/* One receive buffer is read and sent while the other is filled. Two ranks need only one. */
typedef struct Keys {
    RingBlock here;
    RingKeys buffer[2];
} Keys;

static void open_keys(RingRank *r, Keys *keys)
{
    *keys = (Keys){.here = ring_own_keys(r)};
    ring_open_keys(r, keys->buffer, r->world < 3 ? r->world - 1 : 2);
}

/* Adds the messages of step t to x: K and V go to the next rank, and the keys of rank r - t - 1
 * come from the rank before. Returns the block that will be here then. */
static RingBlock pass_on(RingRank *r, RingExchange *x, const Keys *keys, int t)
{
    RingBlock coming;
    ring_send_keys(r, x, ring_at(r, +1), &keys->here);
    ring_receive_keys(r, x, ring_at(r, -1), ring_at(r, -t - 1), &keys->buffer[t % 2], &coming);
    return coming;
}

static int forward(RingRank *r)
{
    const int G = r->world;
    Keys keys;
    RingState state = {0};
    RingExchange x = {0};
    open_keys(r, &keys);
    ring_open_state(r, &state);
    for (int t = 0; t < G && !r->failed; t++) {
        ring_step(r, t);
        ring_see_keys(r, &state, &keys.here); /* 1. compute */
        if (t < G - 1) {                      /* 2. pass on */
            const RingBlock coming = pass_on(r, &x, &keys, t);
            ring_start(r, &x);
            ring_wait(r, &x);
            keys.here = coming;
        }
    }
    ring_close_state(r, &state); /* r->O, rounded to the dtype */
    ring_close_keys(r, keys.buffer, 2);
    return ring_status(r);
}

/* The same for the sums dK and dV: `here` goes to the next rank, `there` comes from the rank
 * before. leaving, coming: elements of each. They are rounded to the type in which they travel
 * (--partials). */
static void pass_on_sums(RingRank *r, RingExchange *x, const RingBuffer here[2],
                         const RingBuffer there[2], int64_t leaving, int64_t coming)
{
    static const RingTensor names[] = {RING_DK, RING_DV};
    const size_t size = ring_size(r->partials);
    for (int i = 0; i < 2; i++) {
        ring_narrow(r, here[i].data, leaving, r->partials);
        ring_send(r, x, ring_at(r, +1), names[i], here[i].data, (size_t)leaving * size);
        ring_receive(r, x, ring_at(r, -1), names[i], there[i].data, (size_t)coming * size);
    }
}

/* All G steps. The keys stay open: ring_status closes what is. */
static void differentiate_steps(RingRank *r, const RingBlock *q, float *dQ, Keys *keys,
                                RingBuffer sums[2][2])
{
    const int G = r->world;
    RingExchange x = {0};
    for (int t = 0; t < G && !r->failed; t++) {
        const RingBuffer *here = sums[t % 2], *there = sums[(t + 1) % 2];
        const int64_t leaving = ring_kv_count(r, r->k_tokens[ring_at(r, -t)]);
        const int64_t coming = ring_kv_count(r, r->k_tokens[ring_at(r, -t - 1)]);
        ring_step(r, t);
        ring_differentiate(r, q, &keys->here, dQ, here[0].data, here[1].data);   /* 1. compute */
        const RingBlock next = t < G - 1 ? pass_on(r, &x, keys, t) : keys->here; /* 2. pass on */
        pass_on_sums(r, &x, here, there, leaving, coming);
        ring_start(r, &x);
        ring_wait(r, &x);
        for (int i = 0; i < 2; i++) /* float32 again */
            ring_widen(r, there[i].data, coming, r->partials);
        keys->here = next;
    }
}

static int backward(RingRank *r)
{
    const size_t q_bytes = (size_t)ring_q_count(r, r->nq) * sizeof(float);
    const size_t kv_bytes = (size_t)ring_kv_count(r, ring_max_nk(r)) * sizeof(float);
    RingBuffer delta = {0}, dQ = {0};
    RingBuffer sums[2][2] = {{{0}}}; /* dK, dV of the keys that are here, and of those that come */
    RingBlock q;
    Keys keys;
    if (r->world == 1) { /* nothing travels: this is stage 04 */
        ring_backward_local(r);
        return ring_status(r);
    }
    ring_open_delta(r, &q, &delta); /* delta = rowsum(dO * O), of the finished O */
    open_keys(r, &keys);
    ring_open_buffer(r, &dQ, q_bytes, "dQ");
    ring_zero(r, dQ.data, q_bytes);
    for (int n = 0; n < 4; n++)
        ring_open_buffer(r, &sums[n / 2][n % 2], kv_bytes, n % 2 ? "dV" : "dK");
    ring_zero(r, sums[0][0].data, kv_bytes);
    ring_zero(r, sums[0][1].data, kv_bytes);
    differentiate_steps(r, &q, dQ.data, &keys, sums);
    ring_give_dQ(r, &dQ);
    ring_give_dKV(r, &sums[r->world % 2][0], &sums[r->world % 2][1]); /* after G hops: home */
    return ring_status(r); /* buffers that are still open are closed for it */
}

RING_METHOD(minimal, "the plain ring, to be read first: compute, then pass keys and values on",
            RING_CPU_ONLY);
