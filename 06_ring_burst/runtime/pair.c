/* SPDX-License-Identifier: MIT
 *
 * pair.c: attention between some queries and some keys, wherever they come from.
 *
 * A method says "my queries, that remote block's keys"; a block kernel wants an AttnArgs. Between
 * the two lies only book-keeping, and it is all here: which positions the tokens of a block have
 * (from which every mask follows: causal, window, varlen), which part of a full mask belongs to
 * them, and whether they can see each other at all. Methods know no positions, kernels no ranks.
 *
 *     tokens of a block -> runs of its shard -> positions        for attn_visible
 *                                            -> rows, columns    of the full mask
 *
 * Interface (rank.h): ring_attend, ring_start_state, ring_finish_O, ring_differentiate,
 * ring_delta.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "attn_pairs.h"
#include "planner/shard.h"
#include "runtime/ring_world.h"
#include "tensor.h"

/* --- the tokens of a block ---------------------------------------------------------------------*/

/* The block as a shard of its own: token 0 is its first. shards: of all ranks, plan->q or k. */
static int block_shard(RingShard *cut, RingRank *r, const RingShard *shards, const RingBlock *block)
{
    const int all = block->owner == RING_EVERYBODY;
    if (ring_shard_cut(cut, all ? shards : &shards[block->owner], all ? r->world : 1, block->first,
                       block->tokens) != 0)
        return ring_fail(r, "out of memory for positions");
    return 0;
}

/* mask [q tokens][k tokens] of the two blocks out of the whole [Nq][Nk]. Each process has all of it
 * in host memory, so a mask never travels. */
static int gather_mask(RingRank *r, const RingShard *q, const RingShard *k)
{
    const size_t bytes = (size_t)(q->tokens * k->tokens);
    if (bytes > r->mask_bytes) {
        workspace_free(r->mask);
        r->mask = workspace_alloc(bytes);
        r->mask_bytes = r->mask ? bytes : 0;
    }
    if (!r->mask)
        return ring_fail(r, "no %zu bytes for two blocks' part of the mask", bytes);
    for (int64_t a = 0; a < q->count; a++)
        for (int64_t t = 0; t < q->pieces[a].length; t++) {
            const int64_t row = q->pieces[a].global + t * q->pieces[a].stride;
            const uint8_t *from = r->plan->mask + row * r->plan->shape.Nk;
            uint8_t *to = r->mask + (q->pieces[a].first + t) * k->tokens;
            for (int64_t c = 0; c < k->count; c++) {
                const RingPiece *piece = &k->pieces[c];
                for (int64_t j = 0; j < piece->length; j++)
                    to[piece->first + j] = from[piece->global + j * piece->stride];
            }
        }
    return 0;
}

/* --- from two blocks to the arguments of a kernel ----------------------------------------------*/

/* [B][tokens][heads][d] inside a shard of batch_stride tokens */
static Tensor view(const RingRank *r, const RingBlock *block, void *data)
{
    const AttnShape *n = &r->plan->shape;
    const int64_t row = block->heads * n->d;
    return (Tensor){data,
                    r->plan->dtype,
                    {n->B, block->tokens, block->heads, n->d},
                    {block->batch_stride * row, row, n->d, 1}};
}

typedef struct Pair {
    AttnArgs args;
    RingShard q, k;
    AttnTile kind;
} Pair;

/* Shards are cut for one call; tensors are only pointed to. */
static void pair_close(Pair *pair)
{
    ring_shard_free(&pair->q);
    ring_shard_free(&pair->k);
}

/* From here on the kernel has all that it needs, and no idea of ranks: shapes, views, positions. */
static void describe(Pair *pair, RingRank *r, const RingBlock *q, const RingBlock *k)
{
    const RingPlan *plan = r->plan;
    pair->args = (AttnArgs){
        .shape = {plan->shape.B, q->heads, k->heads, q->tokens, k->tokens, plan->shape.d},
        .scale = plan->scale,
        .softcap = plan->softcap,
        .rule = plan->rule,
        .positions_q = attn_positions(pair->q.segments, pair->q.count),
        .positions_k = attn_positions(pair->k.segments, pair->k.count),
        .Q = view(r, q, q->a),
        .dO = view(r, q, q->b),
        .K = view(r, k, k->a),
        .V = view(r, k, k->b),
        .O = view(r, q, q->O),
        .lse = q->lse,
        .threads = r->threads,
    };
}

/* kind = ATTN_TILE_SKIP: no query sees a key, or nobody computes; there is nothing to close. */
static int pair_open(Pair *pair, RingRank *r, const RingBlock *q, const RingBlock *k)
{
    memset(pair, 0, sizeof *pair);
    if (r->log->meet)
        return r->log->meet(r, q, k);
    if (q->tokens == 0 || k->tokens == 0)
        return 0;
    if (block_shard(&pair->q, r, r->plan->q, q) == 0 &&
        block_shard(&pair->k, r, r->plan->k, k) == 0) {
        describe(pair, r, q, k);
        pair->kind = ring_shards_class(r->plan->rule, &pair->q, &pair->k);
        if (pair->kind != ATTN_TILE_SKIP && r->plan->mask &&
            gather_mask(r, &pair->q, &pair->k) == 0)
            pair->args.mask = r->mask;
    }
    if (r->failed || pair->kind == ATTN_TILE_SKIP)
        pair_close(pair);
    return r->failed ? -1 : 0;
}

/* --- what must not be in flight ----------------------------------------------------------------*/

/* From the first to behind the last element of a block's tensor. A quarter of a block of two
 * batches is two pieces with a gap between them. The gap is counted too: too much asked is safe. */
static size_t span(const RingRank *r, const RingBlock *block)
{
    const AttnShape *n = &r->plan->shape;
    const int64_t tokens = (n->B - 1) * block->batch_stride + block->tokens;
    return (size_t)(tokens * block->heads * n->d) * dtype_size(r->plan->dtype);
}

/* Sums are float32 and contiguous, whatever the block is a part of. */
static size_t sum_bytes(const RingRank *r, const RingBlock *block)
{
    const AttnShape *n = &r->plan->shape;
    return (size_t)(n->B * block->tokens * block->heads * n->d) * sizeof(float);
}

/* lse and delta: one float32 for each query and head. */
static size_t row_bytes(const RingRank *r, const RingBlock *block)
{
    return (size_t)(r->plan->shape.B * block->tokens * block->heads) * sizeof(float);
}

/* A block that is being sent may be read, one that is being received may not. */
static int touch_block(RingRank *r, const RingBlock *block, const char *who)
{
    return ring_touch(r, block->a, span(r, block), RING_READS, who) != 0 ||
           (block->b && ring_touch(r, block->b, span(r, block), RING_READS, who) != 0);
}

/* --- work in a kernel --------------------------------------------------------------------------*/

/* Work is timed by marks: on a GPU the host only asks for it. Without a trace none are made: there
 * each would be an event in the queue. */
static int mark(RingRank *r)
{
    return r->log->trace ? r->backend->mark(r, 0) : 0;
}

/* `peer`: whose keys, or whose queries where the keys are our own. */
static void log_compute(RingRank *r, int start_mark, int peer, AttnTile kind)
{
    ring_log_event(r, &(RingEvent){.kind = RING_EVENT_COMPUTE,
                                   .peer = peer,
                                   .start_mark = start_mark,
                                   .end_mark = mark(r),
                                   .masked = kind});
}

/* One array behind the other; or none. */
static FlashRows rows_of(const RingRank *r, const RingBlock *q)
{
    const int64_t count = (int64_t)(row_bytes(r, q) / sizeof(float));
    return q->rows ? (FlashRows){q->rows, q->rows + count, q->rows + 2 * count}
                   : (FlashRows){NULL, NULL, NULL};
}

static int touch_rows(RingRank *r, const RingBlock *q, RingUse how, const char *who)
{
    return (q->rows && ring_touch(r, q->rows, 3 * row_bytes(r, q), how, who) != 0) ||
           (q->O && ring_touch(r, q->O, span(r, q), RING_WRITES, who) != 0);
}

/* The state is (O, lse) of all keys seen so far. With the new ones, whose own result would be O'
 * and lse', it becomes
 *
 *     lse_new = ln(e^lse + e^lse')        O_new = e^(lse - lse_new) O + e^(lse' - lse_new) O'
 *
 * which the kernel does on its way: it starts from m = lse, l = 1 and O. With rows it starts from
 * the unnormalised sums and their m and l instead, as if it had never stopped. */
int ring_attend(RingRank *r, const RingBlock *q, const RingBlock *k, float *O_state, float *lse)
{
    const char *who = "ring_attend";
    Pair pair;
    if (r->failed || touch_block(r, k, who) ||
        ring_touch(r, q->a, span(r, q), RING_READS, who) != 0 ||
        ring_touch(r, O_state, sum_bytes(r, q), RING_WRITES, who) != 0 ||
        ring_touch(r, lse, row_bytes(r, q), RING_WRITES, who) != 0 ||
        touch_rows(r, q, RING_WRITES, who) || pair_open(&pair, r, q, k) != 0)
        return -1;
    if (pair.kind == ATTN_TILE_SKIP)
        return 0;
    pair.args.lse = lse;
    const int begin = mark(r);
    const int status = r->backend->attend(r, &pair.args, O_state, rows_of(r, q));
    log_compute(r, begin, k->owner, pair.kind);
    pair_close(&pair);
    return status == 0 ? ring_post(r) : status;
}

/* lse and delta are those of the whole rows, over the keys of all ranks: with them pairs of blocks
 * are independent, P = exp(S - lse), dS = P (dP - delta), and their sums may be added in any order.
 * An lse of these keys alone would give another softmax's gradient. */
static int differentiate(RingRank *r, const RingBlock *q, const RingBlock *k, float *dQ, float *dK,
                         float *dV)
{
    const char *who = "ring_differentiate";
    Pair pair;
    if (r->failed || touch_block(r, q, who) || touch_block(r, k, who) ||
        ring_touch(r, q->lse, row_bytes(r, q), RING_READS, who) != 0 ||
        ring_touch(r, q->delta, row_bytes(r, q), RING_READS, who) != 0 ||
        ring_touch(r, dQ, sum_bytes(r, q), RING_ADDS, who) != 0 ||
        ring_touch(r, dK, sum_bytes(r, k), RING_WRITES, who) != 0 ||
        ring_touch(r, dV, sum_bytes(r, k), RING_WRITES, who) != 0 || pair_open(&pair, r, q, k) != 0)
        return -1;
    if (pair.kind == ATTN_TILE_SKIP)
        return 0;
    const int begin = mark(r);
    const int status = r->backend->differentiate(r, &pair.args, q->delta, (FlashSums){dQ, dK, dV});
    log_compute(r, begin, k->owner == r->rank ? q->owner : k->owner, pair.kind);
    pair_close(&pair);
    return status == 0 ? ring_post(r) : status;
}

/* A half is one call, or two: a zigzag shard's has a quarter of early and one of late tokens. */
int ring_differentiate(RingRank *r, const RingBlock *q, const RingBlock *k, float *dQ, float *dK,
                       float *dV)
{
    const RingBlock *split = q->half ? q : k;
    if (!split->half)
        return differentiate(r, q, k, dQ, dK, dV);
    const RingShard *shard = split == q ? &r->plan->q[q->owner] : &r->plan->k[k->owner];
    for (int quarter = split->half - 1; quarter < RING_QUARTERS; quarter += 2) {
        const RingBlock block = ring_block_quarter(r, shard, split, quarter);
        const int64_t place = ring_quarter_place(shard, quarter);
        if (block.tokens > 0 &&
            (split == q ? differentiate(r, &block, k, dQ + ring_q_count(r, place), dK, dV)
                        : differentiate(r, q, &block, dQ, dK + ring_kv_count(r, place),
                                        dV + ring_kv_count(r, place))) != 0)
            return -1;
    }
    return 0;
}

/* --- queries alone -----------------------------------------------------------------------------*/

/* The state of rows that have seen nothing, from which every forward pass begins. */
int ring_start_state(RingRank *r, const RingBlock *q, float *O_state, float *lse)
{
    const size_t sums = sum_bytes(r, q), bytes = row_bytes(r, q);
    const int64_t count = (int64_t)(sums / sizeof(float)), rows = (int64_t)(bytes / sizeof(float));
    const char *who = "ring_start_state";
    if (r->failed || ring_touch(r, O_state, sums, RING_WRITES, who) != 0 ||
        ring_touch(r, lse, bytes, RING_WRITES, who) != 0 || touch_rows(r, q, RING_WRITES, who))
        return -1;
    if (!r->backend->start_state)
        return 0;
    if (r->backend->start_state(r, O_state, count, lse, rows) != 0)
        return -1;
    return q->rows ? r->backend->start_state(r, q->rows + rows, 2 * rows, q->rows, rows) : 0;
}

/* The queries as arguments without keys. O [B][q tokens][H][d], contiguous. */
static AttnArgs query_args(RingRank *r, const RingBlock *q, void *O)
{
    RingBlock contiguous = *q;
    AttnArgs args = {.shape = r->plan->shape, .threads = r->threads};
    contiguous.batch_stride = q->tokens;
    args.shape.H = q->heads;
    args.shape.Nq = q->tokens;
    args.O = view(r, &contiguous, O);
    args.dO = view(r, q, q->b);
    return args;
}

/* The division by l, if the state is unnormalised, and the one rounding to the dtype. */
int ring_finish_O(RingRank *r, const RingBlock *q, void *O, float *O_state)
{
    const AttnArgs args = query_args(r, q, O);
    const size_t sums = sum_bytes(r, q), bytes = sums / sizeof(float) * dtype_size(r->plan->dtype);
    if (r->failed || ring_touch(r, O, bytes, RING_WRITES, "ring_finish_O") != 0 ||
        ring_touch(r, O_state, sums, RING_WRITES, "ring_finish_O") != 0 ||
        touch_rows(r, q, RING_READS, "ring_finish_O"))
        return -1;
    return q->tokens && r->backend->finish_O
               ? r->backend->finish_O(r, &args, O_state, rows_of(r, q))
               : 0;
}

/* Once for each row, by its owner: who needs it elsewhere gets it by message. */
int ring_delta(RingRank *r, const RingBlock *q, const void *O, float *delta)
{
    const AttnArgs args = query_args(r, q, (void *)O);
    const size_t bytes = sum_bytes(r, q) / sizeof(float) * dtype_size(r->plan->dtype);
    if (r->failed || touch_block(r, q, "ring_delta") ||
        ring_touch(r, O, bytes, RING_READS, "ring_delta") != 0 ||
        ring_touch(r, delta, row_bytes(r, q), RING_WRITES, "ring_delta") != 0)
        return -1;
    return q->tokens && r->backend->delta ? r->backend->delta(r, &args, delta) : 0;
}
