/* SPDX-License-Identifier: MIT
 *
 * v1_online_block: a whole attention call as a walk over all blocks, through the online module.
 *
 *     global_o = 0, global_lse = -inf
 *     for each visit t, in --order:
 *         step(q_block[i], k_block[j], v_block[j], global_o, global_lse, i, j)
 *
 * The variant itself computes nothing: it cuts tensors into padded blocks, as the module wants
 * them, and carries the result away. Every step reads the state of its rows, adds what the block
 * knows and rounds it to the dtype: with 16-bit tensors a row is rounded as often as it meets a
 * block with something to see.
 *
 * A sequence is one traversal. If its keys lie in several segments (a rolling cache whose end has
 * come round to its start), each segment is a traversal that starts from the state that the last
 * one left: a state does not know where its keys came from.
 *
 * Interface: sliding_window_v1_online_block (sliding_window.h).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attention/window/cpu/online_internal.h"
#include "attn_options.h"
#include "sliding_window.h"
#include "tensor.h"

/* Blocks of one tensor: [T][B][block][heads][d] in its dtype. */
typedef struct Blocks {
    char *data;
    size_t bytes; /* of one block of all batches */
} Blocks;

/* Tokens first .. first+count-1 of t; the last block is filled up with zeros. */
static int cut_blocks(Blocks *blocks, const Tensor *t, int64_t first, int64_t count, int64_t block)
{
    const int64_t B = t->shape[0], heads = t->shape[2], T = (count + block - 1) / block;
    const size_t element = dtype_size(t->dtype), row = (size_t)t->shape[3] * element;
    blocks->bytes = (size_t)(B * block * heads) * row;
    blocks->data = workspace_alloc((size_t)T * blocks->bytes);
    if (!blocks->data)
        return -1;
    char *to = blocks->data;
    for (int64_t n = 0; n < T; n++)
        for (int64_t b = 0; b < B; b++)
            for (int64_t r = n * block; r < (n + 1) * block; r++)
                for (int64_t h = 0; h < heads; h++, to += row)
                    if (r < count)
                        memcpy(to,
                               (const char *)t->data +
                                   tensor_offset(t, b, first + r, h) * (int64_t)element,
                               row);
                    else
                        memset(to, 0, row);
    return 0;
}

/* The state of the queries of one segment. */
typedef struct State {
    char *O;    /* [B][length][H][d] in the dtype */
    float *lse; /* [B][H][length] */
} State;

/* All blocks of a segment of queries and a segment of keys. */
static WindowStatus traverse(SlidingWindowOnline *w, const Blocks *Q, const Blocks *K,
                             const Blocks *V, State state, int64_t Tr, int64_t Tc,
                             char error[WINDOW_ERROR])
{
    WindowStatus status = WINDOW_OK;
    int64_t *visits = workspace_alloc((size_t)(Tr * Tc) * sizeof *visits);
    if (!visits)
        return WINDOW_NO_MEMORY;
    window_order_blocks(Tr, Tc, visits);
    for (int64_t t = 0; t < Tr * Tc && status == WINDOW_OK; t++) {
        const int64_t i = visits[t] / Tc, j = visits[t] % Tc;
        status = sliding_window_online_step(
            w, Q->data + (size_t)i * Q->bytes, K->data + (size_t)j * K->bytes,
            V->data + (size_t)j * V->bytes, state.O, state.lse, i, j, error);
    }
    workspace_free(visits);
    return status;
}

static WindowOnlineConfig make_config(const AttnArgs *args, int64_t Nq, int64_t Nk)
{
    const AttnShape *n = &args->shape;
    WindowOnlineConfig c = {.base = WINDOW_CONFIG_DEFAULT, .batch = n->B};
    c.base.dtype = args->Q.dtype;
    c.base.heads_q = n->H;
    c.base.heads_kv = n->Hkv;
    c.base.head_dim = n->d;
    c.base.cap = args->softcap;
    c.base.threads = args->threads;
    if (args->options)
        c.base.options = *args->options;
    c.seqlen_q = Nq;
    c.seqlen_kv = Nk;
    c.block_size_q = window_block_q() < Nq ? window_block_q() : Nq;
    c.block_size_kv = window_block_kv() < Nk ? window_block_kv() : Nk;
    return c;
}

static AttnStatus add_segment(const AttnArgs *args, const AttnSegment *q, const AttnSegment *k,
                              State state)
{
    const WindowOnlineConfig config = make_config(args, q->length, k->length);
    const WindowPlace place = {
        args->rule, q->position - k->position, args->scale,
        args->mask ? args->mask + q->first * args->shape.Nk + k->first : NULL, args->shape.Nk};
    const int64_t Tr = (q->length + config.block_size_q - 1) / config.block_size_q;
    const int64_t Tc = (k->length + config.block_size_kv - 1) / config.block_size_kv;
    char error[WINDOW_ERROR] = "";
    Blocks Q = {0}, K = {0}, V = {0};
    SlidingWindowOnline *w = NULL;
    WindowStatus status = WINDOW_NO_MEMORY;
    if (cut_blocks(&Q, &args->Q, q->first, q->length, config.block_size_q) == 0 &&
        cut_blocks(&K, &args->K, k->first, k->length, config.block_size_kv) == 0 &&
        cut_blocks(&V, &args->V, k->first, k->length, config.block_size_kv) == 0)
        status = window_online_create_at(&w, &config, &place, error);
    if (status == WINDOW_OK)
        status = traverse(w, &Q, &K, &V, state, Tr, Tc, error);
    sliding_window_online_destroy(w);
    workspace_free(Q.data);
    workspace_free(K.data);
    workspace_free(V.data);
    if (status == WINDOW_OK || status == WINDOW_NO_MEMORY)
        return status == WINDOW_OK ? ATTN_OK : ATTN_NO_MEMORY;
    window_set_skip_reason(error); /* options that the module refuses */
    return ATTN_SKIP;
}

static void carry_away(const AttnArgs *args, const AttnSegment *q, State state)
{
    const AttnShape *n = &args->shape;
    const Tensor O = {state.O,
                      args->O.dtype,
                      {n->B, q->length, n->H, n->d},
                      {q->length * n->H * n->d, n->H * n->d, n->d, 1}};
    const size_t element = dtype_size(O.dtype);
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++) {
            memcpy(args->lse + (b * n->H + h) * n->Nq + q->first,
                   state.lse + (b * n->H + h) * q->length, (size_t)q->length * sizeof(float));
            for (int64_t r = 0; r < q->length; r++)
                memcpy((char *)args->O.data +
                           tensor_offset(&args->O, b, q->first + r, h) * (int64_t)element,
                       state.O + tensor_offset(&O, b, r, h) * (int64_t)element,
                       (size_t)n->d * element);
        }
}

static AttnStatus attend_segment(const AttnArgs *args, const AttnSegment *q)
{
    const AttnShape *n = &args->shape;
    const size_t rows = (size_t)(n->B * n->H * q->length);
    const size_t O_bytes = rows * (size_t)n->d * dtype_size(args->O.dtype);
    State state = {workspace_alloc(O_bytes), workspace_alloc(rows * sizeof(float))};
    AttnStatus status = state.O && state.lse ? ATTN_OK : ATTN_NO_MEMORY;
    if (status == ATTN_OK) {
        memset(state.O, 0, O_bytes);
        for (size_t row = 0; row < rows; row++)
            state.lse[row] = -INFINITY;
    }
    for (int64_t s = 0; s < args->positions_k.count && status == ATTN_OK; s++) {
        const AttnSegment *k = &args->positions_k.segments[s];
        if (k->sequence == q->sequence && k->length > 0)
            status = add_segment(args, q, k, state);
    }
    if (status == ATTN_OK)
        carry_away(args, q, state);
    workspace_free(state.O);
    workspace_free(state.lse);
    return status;
}

/* Consecutive positions, no weights of whole rows. */
static const char *why_not(const AttnArgs *args)
{
    const AttnPositions maps[2] = {args->positions_q, args->positions_k};
    for (int m = 0; m < 2; m++)
        for (int64_t s = 0; s < maps[m].count; s++)
            if (maps[m].segments[s].stride != 1 && maps[m].segments[s].length > 1)
                return "the online module's blocks have consecutive positions";
    if (attn_clips(args))
        return "clipping changes finished weights; a block of a row never has them";
    if (attn_drops(args))
        return "dropout changes finished weights; the online module refuses it by contract";
    return NULL;
}

AttnStatus sliding_window_v1_online_block(const AttnArgs *args)
{
    const char *reason = why_not(args);
    AttnStatus status = ATTN_OK;
    if (reason) {
        window_set_skip_reason(reason);
        return ATTN_SKIP;
    }
    for (int64_t s = 0; s < args->positions_q.count && status == ATTN_OK; s++)
        if (args->positions_q.segments[s].length > 0)
            status = attend_segment(args, &args->positions_q.segments[s]);
    return status;
}
