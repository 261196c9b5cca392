/* SPDX-License-Identifier: MIT
 *
 * model_ring.c: how many bytes each rank sends, by tensor.
 *
 * A ring hop passes on a block that somebody else owns. After t hops up, rank r holds what rank
 * r - t began with, so what it sends in a pass is a sum over owners. Equal blocks of n tokens, no
 * window, bytes that one rank sends (b_g: bytes of a travelling gradient):
 *
 *     method       forward                     backward
 *     ring         2 (G-1) n Hkv d b           2 (G-1) n Hkv d (b + b_g)
 *     ring-minimal as ring                     2 (G-1) n Hkv d b + 2 G n Hkv d b_g
 *     burst        as ring                     (G-1) n H (2 d b + 8) + G n H d b_g
 *     allgather    as ring                     as ring
 *     ulysses      (G-1)/G n (2 H d b + 4 H)   (G-1)/G n (2 H d b)
 *                  + (G-1) n 2 h d b           + (G-1) n 2 h d b         h = max(Hkv/G, 1)
 *     ring-double  as ring: M (g-1) hops inside a node, M-1 between nodes
 *     burst-double as burst: of the G hops of dQ, M (g-1) inside, M-1 between nodes, and one home
 *
 * ring's keys travel home with their gradients, starting from the block that the forward pass left.
 * burst's dQ leaves home too, so it makes one hop more than Q: from the last visited rank home.
 * With G = 1 nobody sends anything. The kv heads of ulysses are copied when there are fewer than
 * ranks.
 *
 * Interface: ring_method_on, model_ring_sent, model_ring_total (model_ring_bytes.h).
 */
#include "harness/models/model_ring_bytes.h"

#include "tensor.h"

typedef struct Sender {
    const RingModelCase *c;
    int rank;
    RingModelBytes bytes;
} Sender;

static int wrap(int rank, int ranks)
{
    return (rank % ranks + ranks) % ranks;
}

/* A message to `peer`. None goes to the rank itself. */
static void send(Sender *s, int peer, RingTensor tensor, int64_t bytes)
{
    const int node_size = s->c->ranks / s->c->nodes;
    if (peer == s->rank)
        return;
    s->bytes.sent[tensor] += bytes;
    if (peer / node_size == s->rank / node_size)
        s->bytes.inner += bytes;
    else
        s->bytes.outer += bytes;
}

/* Bytes of tokens with `heads` heads in all batches, `size` bytes a channel. */
static int64_t block_bytes(const RingModelCase *c, int64_t tokens, int64_t heads, size_t size)
{
    return c->shape.B * tokens * heads * c->shape.d * (int64_t)size;
}

static void send_kv(Sender *s, int peer, int owner)
{
    const RingModelCase *c = s->c;
    const int64_t kv = block_bytes(c, c->nk[owner], c->shape.Hkv, dtype_size(c->dtype));
    send(s, peer, RING_K, kv);
    send(s, peer, RING_V, kv);
}

static void send_kv_sums(Sender *s, int peer, int owner)
{
    const RingModelCase *c = s->c;
    const int64_t kv = block_bytes(c, c->nk[owner], c->shape.Hkv, dtype_size(c->partials));
    send(s, peer, RING_DK, kv);
    send(s, peer, RING_DV, kv);
}

/* What a visiting block of queries needs to compute gradients anywhere. */
static void send_queries(Sender *s, int peer, int owner)
{
    const RingModelCase *c = s->c;
    const int64_t q = block_bytes(c, c->nq[owner], c->shape.H, dtype_size(c->dtype));
    const int64_t row = c->shape.B * c->nq[owner] * c->shape.H * (int64_t)sizeof(float);
    send(s, peer, RING_Q, q);
    send(s, peer, RING_DO, q);
    send(s, peer, RING_LSE, row);
    send(s, peer, RING_DELTA, row);
}

static void send_dQ(Sender *s, int peer, int owner)
{
    const RingModelCase *c = s->c;
    send(s, peer, RING_DQ, block_bytes(c, c->nq[owner], c->shape.H, dtype_size(c->partials)));
}

typedef void (*SendBlock)(Sender *s, int peer, int owner);
typedef enum Journey { OUT, HOME } Journey;

/* One ring, in direction `way` (+1: to rank + 1). Out go the rank's own block and those of ranks
 * further behind, `hops` in all; home, the other way round, those that are 1 ... hops ranks from
 * home. */
static void send_ring(Sender *s, SendBlock block, Journey journey, int way, int hops)
{
    const int G = s->c->ranks, to = journey == HOME ? -way : way;
    for (int t = journey; t < hops + (int)journey; t++)
        block(s, wrap(s->rank + to, G), wrap(s->rank - way * t, G));
}

/* Two levels. Rank (a, i) of node a, place i holds owner (a - m, i - s) at outer step m, inner step
 * s. Out, the block of s = 0 is also the next node's. Home, from s = g-1 to 0 and from m = M-1 to
 * 0, K and V leave for the next node where they arrived first (s = g-1), sums where they are
 * complete (0). */
static void send_tree(Sender *s, SendBlock block, Journey journey, int leaving_s)
{
    const int M = s->c->nodes, g = s->c->ranks / M, a = s->rank / g, i = s->rank % g;
    const int to = journey == HOME ? -1 : +1;
    for (int m = 0; m < M; m++) {
        const int node = wrap(a - m, M) * g;
        for (int t = journey; t < g - 1 + (int)journey; t++)
            block(s, a * g + wrap(i + to, g), node + wrap(i - t, g));
        if (m != (journey == HOME ? 0 : M - 1))
            block(s, wrap(a + to, M) * g + i, node + wrap(i - leaving_s, g));
    }
}

/* dQ follows the queries through the tree; a node's sum leaves it where the inner ring ends, and
 * from the last node goes home, to the next place of the next node. */
static void send_tree_dQ(Sender *s)
{
    const int M = s->c->nodes, g = s->c->ranks / M, a = s->rank / g, i = s->rank % g;
    for (int m = 0; m < M; m++) {
        const int node = wrap(a - m, M) * g;
        const int last = node + wrap(i - (g - 1), g);
        for (int t = 0; t < g - 1; t++)
            send_dQ(s, a * g + wrap(i + 1, g), node + wrap(i - t, g));
        send_dQ(s, m < M - 1 ? wrap(a + 1, M) * g + i : last, last);
    }
}

/* All-to-all between shares of tokens and shares of heads: `out` from tokens to heads, of this
 * rank's tokens; else back, of the peer's. */
static void send_heads(Sender *s, RingTensor tensor, const int64_t *tokens, int64_t heads,
                       size_t row, int out)
{
    const RingModelCase *c = s->c;
    const int G = c->ranks;
    const int64_t share = heads > G ? heads / G : 1;
    for (int peer = 0; peer < G; peer++)
        send(s, peer, tensor, c->shape.B * tokens[out ? s->rank : peer] * share * (int64_t)row);
}

static void send_ulysses(Sender *s, RingPass pass)
{
    const RingModelCase *c = s->c;
    const size_t row = (size_t)c->shape.d * dtype_size(c->dtype);
    if (pass == RING_FORWARD) {
        send_heads(s, RING_Q, c->nq, c->shape.H, row, 1);
        send_heads(s, RING_K, c->nk, c->shape.Hkv, row, 1);
        send_heads(s, RING_V, c->nk, c->shape.Hkv, row, 1);
        send_heads(s, RING_O, c->nq, c->shape.H, row, 0);
        send_heads(s, RING_LSE, c->nq, c->shape.H, sizeof(float), 0);
    } else {
        send_heads(s, RING_DO, c->nq, c->shape.H, row, 1);
        send_heads(s, RING_DQ, c->nq, c->shape.H, row, 0);
        send_heads(s, RING_DK, c->nk, c->shape.Hkv, row, 0);
        send_heads(s, RING_DV, c->nk, c->shape.Hkv, row, 0);
    }
}

/* Gather: the own block to everybody. Reduce-scatter: everybody's part to its owner. */
static void send_allgather(Sender *s, RingPass pass)
{
    for (int peer = 0; peer < s->c->ranks; peer++) {
        send_kv(s, peer, s->rank);
        if (pass == RING_BACKWARD)
            send_kv_sums(s, peer, peer);
    }
}

/* burst: keys that go `hops` ranks up are asked for by queries that go as far down, except in a
 * full turn, where both go up. dQ makes the same way one step behind, starting with what the first
 * rank (the owner) found, and goes home from the last rank in one message. */
static void send_burst(Sender *s, int way, int hops)
{
    const int G = s->c->ranks, owner = wrap(s->rank - way * hops, G);
    send_ring(s, send_queries, OUT, way, hops);
    send_ring(s, send_dQ, OUT, way, hops);
    if (hops > 0)
        send_dQ(s, owner, owner);
}

/* The keys of both rings of a window. */
static void send_rings(Sender *s, SendBlock block, Journey journey)
{
    send_ring(s, block, journey, +1, s->c->hops_up);
    send_ring(s, block, journey, -1, s->c->hops_down);
}

static void send_flat(Sender *s, RingMethod method, RingPass pass)
{
    const int full_turn = s->c->hops_up == s->c->ranks - 1;
    if (pass == RING_FORWARD) {
        send_rings(s, send_kv, OUT);
    } else if (method == RING_METHOD_RING) {
        send_rings(s, send_kv, HOME);
        send_rings(s, send_kv_sums, HOME);
    } else {
        send_burst(s, full_turn ? +1 : -1, s->c->hops_up);
        send_burst(s, +1, s->c->hops_down);
    }
}

/* The sums start at home, at step 0, and need the last hop to come home again. */
static void send_minimal(Sender *s, RingPass pass)
{
    send_ring(s, send_kv, OUT, +1, s->c->ranks - 1);
    if (pass == RING_BACKWARD)
        send_ring(s, send_kv_sums, OUT, +1, s->c->ranks);
}

static void send_double(Sender *s, RingMethod method, RingPass pass)
{
    if (pass == RING_FORWARD) {
        send_tree(s, send_kv, OUT, 0);
    } else if (method == RING_METHOD_RING_DOUBLE) {
        send_tree(s, send_kv, HOME, s->c->ranks / s->c->nodes - 1);
        send_tree(s, send_kv_sums, HOME, 0);
    } else {
        send_tree(s, send_queries, OUT, 0);
        send_tree_dQ(s);
    }
}

RingMethod ring_method_on(RingMethod method, int ranks, int nodes)
{
    const int flat = nodes == 1 || nodes == ranks;
    if (flat && method == RING_METHOD_RING_DOUBLE)
        return RING_METHOD_RING;
    return flat && method == RING_METHOD_BURST_DOUBLE ? RING_METHOD_BURST : method;
}

RingModelBytes model_ring_sent(const RingModelCase *c, RingPass pass, int rank)
{
    const RingMethod method = ring_method_on(c->method, c->ranks, c->nodes);
    Sender s = {.c = c, .rank = rank};
    if (pass == RING_SETUP)
        return s.bytes;
    switch (method) {
    case RING_METHOD_RING:
    case RING_METHOD_BURST:
        send_flat(&s, method, pass);
        break;
    case RING_METHOD_ALLGATHER:
        send_allgather(&s, pass);
        break;
    case RING_METHOD_ULYSSES:
        send_ulysses(&s, pass);
        break;
    case RING_METHOD_RING_DOUBLE:
    case RING_METHOD_BURST_DOUBLE:
        send_double(&s, method, pass);
        break;
    case RING_METHOD_RING_MINIMAL:
        send_minimal(&s, pass);
        break;
    default:
        break;
    }
    return s.bytes;
}

int64_t model_ring_total(const RingModelBytes *bytes)
{
    return bytes->inner + bytes->outer;
}
