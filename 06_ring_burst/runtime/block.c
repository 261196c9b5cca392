/* SPDX-License-Identifier: MIT
 *
 * block.c: blocks of tokens: whose they are, where they lie, how large they are.
 *
 * A block is a view: some local tokens of some rank, wherever they happen to be in memory now, at
 * home or in a buffer for remote blocks. It keeps its owner's rank, since from that follow its
 * positions and with them every mask.
 *
 * Interface (rank.h): ring_own_queries ... ring_block_half, ring_half_tokens,
 * ring_quarter_place; sizes:
 * ring_q_bytes, ring_kv_bytes, ring_row_bytes, ring_q_count, ring_kv_count, ring_max_nq,
 * ring_max_nk. ring_block_quarter (ring_world.h).
 */
#include "runtime/ring_world.h"
#include "tensor.h"

/* --- sizes -------------------------------------------------------------------------------------*/

/* Elements of a tensor [B][tokens][heads][d]. Sums are counted in elements, since they are float32
 * whatever the dtype; what is only read is counted in bytes. */
int64_t ring_q_count(const RingRank *r, int64_t tokens)
{
    const AttnShape *n = &r->plan->shape;
    return n->B * tokens * n->H * n->d;
}

int64_t ring_kv_count(const RingRank *r, int64_t tokens)
{
    const AttnShape *n = &r->plan->shape;
    return n->B * tokens * n->Hkv * n->d;
}

/* Of any owner, not only of this rank: who receives a message has to know its size before it comes.
 * Both ends compute it from the plan, so sizes never travel. */
size_t ring_q_bytes(const RingRank *r, int owner)
{
    return (size_t)ring_q_count(r, r->plan->q[owner].tokens) * dtype_size(r->plan->dtype);
}

size_t ring_kv_bytes(const RingRank *r, int owner)
{
    return (size_t)ring_kv_count(r, r->plan->k[owner].tokens) * dtype_size(r->plan->dtype);
}

/* One float a row and head. lse and delta are float32 in every dtype: 8 bytes a row beside 4 d
 * bytes of Q and dO in 16 bits, 8 d in float32. */
size_t ring_row_bytes(const RingRank *r, int owner)
{
    const AttnShape *n = &r->plan->shape;
    return (size_t)(n->B * n->H * r->plan->q[owner].tokens) * sizeof(float);
}

/* With 31 tokens on 4 ranks shards have 7 or 8. A buffer is made once, for the largest shard; a
 * smaller remote block leaves some of it unused. */
static int64_t most_tokens(const RingRank *r, const RingShard *shards)
{
    int64_t most = 0;
    for (int rank = 0; rank < r->world; rank++)
        most = shards[rank].tokens > most ? shards[rank].tokens : most;
    return most;
}

int64_t ring_max_nq(const RingRank *r)
{
    return most_tokens(r, r->plan->q);
}

int64_t ring_max_nk(const RingRank *r)
{
    return most_tokens(r, r->plan->k);
}

/* The halves of an odd number differ by one. Sender and receiver must cut in the same way, so there
 * is one function for it. */
int64_t ring_half_tokens(int64_t tokens, int half)
{
    return half == 0 ? tokens / 2 : tokens - tokens / 2;
}

int64_t ring_quarter_place(const RingShard *shard, int quarter)
{
    return quarter < 2 ? 0 : shard->cut[quarter - 1] - shard->cut[quarter - 2];
}

int64_t ring_quarter_tokens(const RingRank *r, int owner, int keys, int quarter)
{
    const RingShard *shard = keys ? &r->plan->k[owner] : &r->plan->q[owner];
    return shard->cut[quarter + 1] - shard->cut[quarter];
}

size_t ring_size(int dtype)
{
    return dtype_size((AttnDtype)dtype);
}

/* --- blocks ------------------------------------------------------------------------------------*/

/* A remote block has been packed by its owner: its batch stride is its own number of tokens. */
RingBlock ring_remote_queries(RingRank *r, int owner, void *Q, void *dO, float *lse, float *delta)
{
    const int64_t tokens = r->plan->q[owner].tokens;
    return (RingBlock){.owner = owner,
                       .tokens = tokens,
                       .batch_stride = tokens,
                       .heads = r->plan->shape.H,
                       .a = Q,
                       .b = dO,
                       .lse = lse,
                       .delta = delta};
}

RingBlock ring_remote_keys(RingRank *r, int owner, void *K, void *V)
{
    const int64_t tokens = r->plan->k[owner].tokens;
    return (RingBlock){.owner = owner,
                       .tokens = tokens,
                       .batch_stride = tokens,
                       .heads = r->plan->shape.Hkv,
                       .a = K,
                       .b = V};
}

RingBlock ring_own_queries(RingRank *r)
{
    return ring_remote_queries(r, r->rank, r->Q, r->dO, r->lse, NULL);
}

RingBlock ring_own_keys(RingRank *r)
{
    return ring_remote_keys(r, r->rank, r->K, r->V);
}

RingBlock ring_block_half(const RingBlock *whole, int half)
{
    RingBlock block = *whole;
    block.half = half + 1;
    return block;
}

/* Q, dO, K, V are walked with the batch stride of the whole; lse and delta have no stride, so their
 * quarters have to be contiguous. */
RingBlock ring_block_quarter(const RingRank *r, const RingShard *shard, const RingBlock *whole,
                             int quarter)
{
    const AttnShape *n = &r->plan->shape;
    const int64_t first = shard->cut[quarter], place = ring_quarter_place(shard, quarter);
    const int64_t before = quarter % 2 ? ring_half_tokens(whole->tokens, 0) : 0;
    const int64_t rows = n->B * whole->heads * (before + place);
    const size_t skip = (size_t)(first * whole->heads * n->d) * dtype_size(r->plan->dtype);
    RingBlock block = *whole;
    block.half = 0;
    block.first += first;
    block.tokens = shard->cut[quarter + 1] - first;
    block.a = (char *)whole->a + skip;
    block.b = whole->b ? (char *)whole->b + skip : NULL;
    block.lse = whole->lse ? whole->lse + rows : NULL;
    block.delta = whole->delta ? whole->delta + rows : NULL;
    return block;
}
