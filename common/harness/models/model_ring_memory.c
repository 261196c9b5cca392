/* SPDX-License-Identifier: MIT
 *
 * model_ring_memory.c: how many bytes a rank's tensors take when most of them are there at once.
 * Sums and states are float32, also where less travels. With u = n H d elements, bf16, as many kv
 * heads as query heads, three ranks or more:
 *
 *     forward        Q K V 6u, two visiting pairs K, V 8u, O in float32 4u, O 2u           20u
 *     ring, back     Q K V O dO 10u, two pairs 8u, dQ 4u, dK dV here and arriving 16u      38u
 *     burst, back    Q K V dO 8u, two pairs Q, dO 8u, dK dV 8u, dQ here and arriving 8u    32u
 *
 * and beside these a few floats for each row (lse, delta; forward also m, l and its rest). A
 * receive buffer holds the largest shard of any rank. Two ranks need one buffer, one rank none.
 * allgather has all keys instead; the double rings have buffers and sums for both levels;
 * ulysses has everything twice, as tokens and as heads.
 *
 * Interface: model_ring_memory (model_ring_bytes.h).
 */
#include "harness/models/model_ring_bytes.h"

#include "tensor.h"

typedef struct Sizes { /* bytes: of the dtype, of float32, of rows; of this rank, and the most */
    int64_t q, kv, q32, kv32, row;
    int64_t most_q, most_kv, most_q32, most_kv32, most_row;
    int64_t base;  /* Q K V O lse */
    int64_t state; /* O in float32, and m, l, l_rest of each row */
} Sizes;

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static Sizes sizes_of(const RingModelCase *c, int rank)
{
    const int64_t size = (int64_t)dtype_size(c->dtype), channels = c->shape.B * c->shape.d;
    const int64_t H = channels * c->shape.H, Hkv = channels * c->shape.Hkv;
    int64_t most_nq = 0, most_nk = 0;
    Sizes s;
    for (int r = 0; r < c->ranks; r++) {
        most_nq = most(most_nq, c->nq[r]);
        most_nk = most(most_nk, c->nk[r]);
    }
    s = (Sizes){.q = c->nq[rank] * H * size,
                .kv = c->nk[rank] * Hkv * size,
                .q32 = c->nq[rank] * H * 4,
                .kv32 = c->nk[rank] * Hkv * 4,
                .row = c->nq[rank] * c->shape.B * c->shape.H * 4,
                .most_q = most_nq * H * size,
                .most_kv = most_nk * Hkv * size,
                .most_q32 = most_nq * H * 4,
                .most_kv32 = most_nk * Hkv * 4,
                .most_row = most_nq * c->shape.B * c->shape.H * 4};
    s.base = 2 * s.q + 2 * s.kv + s.row;
    s.state = s.q32 + 3 * s.row;
    return s;
}

/* Everything alone: dO, delta, dQ, dK, dV. */
static int64_t alone(const Sizes *s)
{
    return s->base + s->q + s->row + s->q32 + 2 * s->kv32;
}

static void forward_ring(const RingModelCase *c, const Sizes *s, int keeps, RingModelMemory *m)
{
    const int64_t pair = 2 * s->most_kv;
    const int64_t up = least(c->hops_up, 2) * pair, down = least(c->hops_down, 2) * pair;
    m->forward = s->base + s->state + most(up, down);
    m->forward_kept = keeps ? s->base + s->state + up + down : m->forward;
}

static void ring(const RingModelCase *c, const Sizes *s, RingModelMemory *m)
{
    const int64_t pair = 2 * s->most_kv, sums = 2 * s->most_kv32;
    const int64_t own = s->base + s->q + s->row + s->q32; /* with dO, delta, dQ */
    int64_t up, down;
    forward_ring(c, s, 1, m);
    up = own + (c->hops_up > 0 ? 2 * pair : 0) + least(c->hops_down, 2) * pair + 2 * sums;
    down = own + 2 * pair + 3 * sums; /* what the up ring summed, and both places of this one */
    m->backward_pass = c->hops_down > 0 ? most(up, down) : up;
    if (c->hops_up + c->hops_down == 0)
        m->backward_pass = alone(s);
}

/* lse and delta are cut in halves while O is still there; then O goes. */
static int64_t burst_pass(const Sizes *s, int64_t rooms, int64_t places)
{
    const int64_t room = 2 * s->most_q + 2 * s->most_row;
    const int64_t cut = s->base + s->q + 3 * s->row;
    return most(cut, s->base + 2 * s->row + rooms * room + 2 * s->kv32 + places * s->most_q32);
}

/* Two buffers for keys, and two for sums of gradients. */
static void ring_minimal(const RingModelCase *c, const Sizes *s, RingModelMemory *m)
{
    const int64_t buffers = least(c->ranks - 1, 2) * 2 * s->most_kv;
    m->forward = m->forward_kept = s->base + s->state + buffers;
    m->backward_pass = s->base + s->q + s->row + s->q32 + buffers + 4 * s->most_kv32;
    if (c->ranks == 1)
        m->backward_pass = alone(s);
}

static void burst(const RingModelCase *c, const Sizes *s, RingModelMemory *m)
{
    const int64_t hops = most(c->hops_up, c->hops_down);
    forward_ring(c, s, 0, m);
    m->backward_pass = hops ? burst_pass(s, least(hops, 2), 2) : alone(s);
}

static void allgather(const RingModelCase *c, const Sizes *s, int rank, RingModelMemory *m)
{
    const int64_t token = c->shape.B * c->shape.Hkv * c->shape.d * (int64_t)dtype_size(c->dtype);
    int64_t others = 0;
    for (int r = 0; r < c->ranks; r++)
        others += r == rank ? 0 : 2 * c->nk[r] * token;
    m->forward = m->forward_kept = s->base + s->state + others;
    m->backward_pass = s->base + s->q + s->row + s->q32 + others + 2 * s->kv32 + 4 * s->most_kv32;
    if (c->ranks == 1)
        m->backward_pass = alone(s);
}

static void tree_forward(const RingModelCase *c, const Sizes *s, int keeps, RingModelMemory *m)
{
    const int64_t pair = 2 * s->most_kv, inner = c->ranks / c->nodes == 2 ? 1 : 2;
    m->forward = s->base + s->state + (inner + (c->nodes == 2 ? 1 : 2)) * pair;
    m->forward_kept = keeps ? s->base + s->state + (inner + 2) * pair : m->forward;
}

static void ring_double(const RingModelCase *c, const Sizes *s, RingModelMemory *m)
{
    tree_forward(c, s, 1, m);
    m->backward_pass = s->base + s->q + s->row + s->q32 + 4 * 2 * s->most_kv + 4 * 2 * s->most_kv32;
}

static void burst_double(const RingModelCase *c, const Sizes *s, RingModelMemory *m)
{
    const int64_t inner = c->ranks / c->nodes == 2 ? 1 : 2, outer = c->nodes == 2 ? 1 : 2;
    tree_forward(c, s, 0, m);
    m->backward_pass = burst_pass(s, inner + outer, 4);
}

/* mine: as tokens. whole: all tokens of a share of the heads. packed: parts for all other ranks;
 * where kv heads have copies, gradients come back as parts to be added in float32, the own one
 * too. */
static void ulysses(const RingModelCase *c, const Sizes *s, int rank, RingModelMemory *m)
{
    const int64_t G = c->ranks, size = (int64_t)dtype_size(c->dtype), B = c->shape.B;
    const int64_t H = c->shape.H / G, Hkv = c->shape.Hkv > G ? c->shape.Hkv / G : 1;
    const int64_t copies = c->shape.Hkv < G, d = c->shape.d;
    const int64_t packed_q = (G - 1) * B * c->nq[rank] * H * d * size;
    const int64_t packed_kv = B * c->nk[rank] * Hkv * d * (copies ? G * 4 : (G - 1) * size);
    int64_t Nq = 0, Nk = 0, q, kv, row, held;
    for (int r = 0; r < c->ranks; r++) {
        Nq += c->nq[r];
        Nk += c->nk[r];
    }
    q = B * Nq * H * d * size;
    kv = B * Nk * Hkv * d * size;
    row = B * Nq * H * 4;
    held = s->base + q + 2 * kv; /* Q K V as heads */
    m->forward = most(held + packed_q + 2 * packed_kv, held + q + row + B * Nq * H * d * 4);
    m->forward = most(m->forward, held + q + row + packed_q + row); /* O and lse go back */
    m->forward_kept = m->forward;
    held = s->base + s->q + 2 * row; /* with dO, and as heads lse and delta */
    m->backward_pass = most(held - row + 3 * q + 2 * kv + packed_q, held + 3 * q + 2 * kv);
    held += B * d * (Nq * H + 2 * Nk * Hkv) * 4;
    m->backward_pass = most(m->backward_pass, held + 2 * q + 2 * kv);
    held += packed_q + 2 * packed_kv;
    m->backward_pass = most(m->backward_pass, held + s->q + 2 * s->kv);
}

RingModelMemory model_ring_memory(const RingModelCase *c, int rank)
{
    const Sizes s = sizes_of(c, rank);
    RingModelMemory m = {0, 0, 0, 0};
    switch (ring_method_on(c->method, c->ranks, c->nodes)) {
    case RING_METHOD_RING:
        ring(c, &s, &m);
        break;
    case RING_METHOD_BURST:
        burst(c, &s, &m);
        break;
    case RING_METHOD_ALLGATHER:
        allgather(c, &s, rank, &m);
        break;
    case RING_METHOD_ULYSSES:
        ulysses(c, &s, rank, &m);
        break;
    case RING_METHOD_RING_DOUBLE:
        ring_double(c, &s, &m);
        break;
    case RING_METHOD_BURST_DOUBLE:
        burst_double(c, &s, &m);
        break;
    case RING_METHOD_RING_MINIMAL:
        ring_minimal(c, &s, &m);
        break;
    default:
        break;
    }
    m.backward = most(m.forward_kept, m.backward_pass);
    return m;
}
