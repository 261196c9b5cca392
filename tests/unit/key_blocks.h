/* SPDX-License-Identifier: MIT
 *
 * key_blocks.h: a case with its keys cut into blocks, for the tests of kernels that resume.
 *
 * A block kernel adds some keys to a state (O, lse). Here the keys of an ordinary case become such
 * blocks: tensors, mask and position segments are cut, every cut anywhere, also inside a tile, a
 * segment or a sequence. Ring attention cuts its keys like that, so the cases are its shards.
 *
 * Interface:
 * - positions_cut: a map of some of the tokens.
 * - KeyBlock, key_block_cut, key_block_free: keys first .. first+count-1 of a case.
 * - KeySplit, split_random, split_evenly: which blocks, in which order.
 * - Shard, shards, shard_new: cases with several segments of queries and keys. shard_wanted: the
 *   long ones show an emulated processor nothing more.
 * - unseen_case: one whose last block nobody sees.
 * - state_new: room for a state.
 * - state_from_oracle: the state after some keys by the definition, not by any kernel.
 * - largest_lse_error: how far the lse of a case is from the definition.
 */
#ifndef KEY_BLOCKS_H
#define KEY_BLOCKS_H

#include <math.h>

#include "attn_pairs.h"
#include "oracle_case.h"

typedef struct KeyBlock {
    AttnArgs args; /* O.data NULL: block kernels have no business there */
    AttnSegment segments[16];
    uint8_t *mask; /* [Nq][count] or NULL */
} KeyBlock;

/* Tokens first .. first+count-1 of a map. */
static inline AttnPositions positions_cut(AttnPositions map, int64_t first, int64_t count,
                                          AttnSegment *room)
{
    int64_t kept = 0;
    for (int64_t s = 0; s < map.count; s++) {
        const AttnSegment g = map.host[s];
        const int64_t from = g.first > first ? g.first : first;
        const int64_t to = g.first + g.length < first + count ? g.first + g.length : first + count;
        if (from < to)
            room[kept++] = (AttnSegment){from - first, to - from, g.sequence,
                                         g.position + (from - g.first) * g.stride, g.stride};
    }
    return attn_positions(room, kept);
}

/* The block must not move afterwards: args points into it. */
static inline void key_block_cut(KeyBlock *block, const Case *c, int64_t first, int64_t count)
{
    AttnArgs *part = &block->args;
    *part = c->args;
    block->mask = NULL;
    part->shape.Nk = part->K.shape[1] = part->V.shape[1] = count;
    part->K.data = (char *)part->K.data + dtype_size(part->K.dtype) * first * part->K.stride[1];
    part->V.data = (char *)part->V.data + dtype_size(part->V.dtype) * first * part->V.stride[1];
    part->positions_k = positions_cut(c->args.positions_k, first, count, block->segments);
    if (part->mask) {
        part->mask = block->mask = malloc((size_t)(part->shape.Nq * count));
        assert_non_null(block->mask);
        for (int64_t i = 0; i < part->shape.Nq; i++)
            memcpy(block->mask + i * count, c->args.mask + i * c->args.shape.Nk + first,
                   (size_t)count);
    }
    part->O.data = NULL;
}

static inline void key_block_free(KeyBlock *block)
{
    free(block->mask);
    block->mask = NULL;
}

/* --- which blocks, in which order --------------------------------------------------------------*/

#define MOST_BLOCKS 16

typedef struct KeySplit {
    int count;
    int64_t first[MOST_BLOCKS], length[MOST_BLOCKS];
} KeySplit;

/* Cuts at random places, blocks of one key at least, in random order. */
static inline KeySplit split_random(int64_t Nk, int blocks)
{
    KeySplit split = {0};
    int64_t at = 0;
    split.count = blocks < Nk ? blocks : (int)Nk;
    for (int n = 0; n < split.count; n++) {
        const int64_t spare = Nk - at - (split.count - n); /* keys that need not be left over */
        const int64_t length = 1 + (int64_t)(case_random() % (uint32_t)(spare + 1));
        split.first[n] = at;
        split.length[n] = n == split.count - 1 ? Nk - at : length;
        at += split.length[n];
    }
    for (int n = split.count - 1; n > 0; n--) {
        const int other = (int)(case_random() % (uint32_t)(n + 1));
        const int64_t first = split.first[n], length = split.length[n];
        split.first[n] = split.first[other], split.length[n] = split.length[other];
        split.first[other] = first, split.length[other] = length;
    }
    return split;
}

/* Equal blocks as in a ring, from block `start` on, around. */
static inline KeySplit split_evenly(int64_t Nk, int blocks, int start)
{
    KeySplit split = {.count = blocks};
    for (int n = 0; n < blocks; n++) {
        const int64_t owner = (start + n) % blocks;
        split.first[n] = owner * Nk / blocks;
        split.length[n] = (owner + 1) * Nk / blocks - split.first[n];
    }
    return split;
}

/* --- shards of a ring --------------------------------------------------------------------------*/

typedef enum ShardLayout {
    SHARD_CONTIGUOUS,
    SHARD_ZIGZAG,
    SHARD_STRIPED,
    SHARD_VARLEN,
    SHARD_FALLING /* contiguous, the last token first */
} ShardLayout;

/* Queries of one of `world` ranks; keys of all ranks, one rank behind the other. */
typedef struct Shard {
    const char *name;
    ShardLayout layout;
    int world, rank;
    int64_t left, right;
    AttnShape shape; /* Nk = world * Nq */
} Shard;

static const Shard shards[] = {
    {"contiguous, causal", SHARD_CONTIGUOUS, 4, 1, -1, 0, {1, 2, 1, 75, 300, 32}},
    {"contiguous, window", SHARD_CONTIGUOUS, 3, 1, 70, 31, {1, 2, 2, 130, 390, 64}},
    {"zigzag, causal", SHARD_ZIGZAG, 4, 2, -1, 0, {1, 4, 2, 96, 384, 59}},
    {"zigzag, causal, last rank", SHARD_ZIGZAG, 3, 2, -1, 0, {2, 2, 1, 150, 450, 128}},
    {"zigzag, causal window", SHARD_ZIGZAG, 4, 1, 100, 0, {1, 2, 1, 70, 280, 96}},
    {"zigzag, window both ways", SHARD_ZIGZAG, 2, 0, 33, 17, {1, 1, 1, 190, 380, 17}},
    {"striped, causal", SHARD_STRIPED, 3, 1, -1, 0, {1, 2, 1, 100, 300, 40}},
    {"zigzag varlen, causal", SHARD_VARLEN, 2, 1, -1, 0, {1, 3, 1, 130, 260, 64}},
    {"zigzag varlen, causal window", SHARD_VARLEN, 3, 0, 40, 0, {1, 2, 2, 90, 270, 256}},
    {"long zigzag, causal", SHARD_ZIGZAG, 2, 1, -1, 0, {1, 1, 1, 500, 1000, 72}},
    {"long zigzag, window both ways", SHARD_ZIGZAG, 2, 0, 330, 190, {1, 1, 1, 512, 1024, 32}},
    {"long stripes, window both ways", SHARD_STRIPED, 3, 1, 790, 205, {1, 1, 1, 333, 999, 40}},
    {"long zigzag varlen, causal", SHARD_VARLEN, 2, 1, -1, 0, {1, 1, 1, 420, 840, 16}},
    {"falling positions, window", SHARD_FALLING, 2, 0, 300, 50, {1, 1, 1, 200, 400, 24}},
    {"few rows, striped, causal", SHARD_STRIPED, 4, 2, -1, 0, {1, 4, 2, 9, 36, 64}},
    {"few rows, falling positions", SHARD_FALLING, 2, 1, 9, 2, {2, 2, 1, 14, 28, 64}},
};

#define SHARD_COUNT ((int)(sizeof shards / sizeof *shards))

static inline int shard_wanted(int n)
{
    return quick() != 2 || shards[n].shape.Nq <= 200;
}

/* The tokens of one rank, from local index `first` on; segments are appended. chunk: half of what
 * the rank has of a sequence that starts at position 0. */
static inline void append_zigzag(AttnSegment *segments, int64_t *count, int64_t first,
                                 int64_t sequence, int64_t chunk, int world, int rank)
{
    segments[(*count)++] = (AttnSegment){first, chunk, sequence, rank * chunk, 1};
    segments[(*count)++] =
        (AttnSegment){first + chunk, chunk, sequence, (2 * world - 1 - rank) * chunk, 1};
}

static inline void append_rank(const Shard *s, AttnSegment *segments, int64_t *count, int64_t first,
                               int rank)
{
    const int64_t n = s->shape.Nq, part = n / 5 / 2 * 2; /* two sequences: a fifth and the rest */
    switch (s->layout) {
    case SHARD_CONTIGUOUS:
        segments[(*count)++] = (AttnSegment){first, n, 0, rank * n, 1};
        break;
    case SHARD_FALLING:
        segments[(*count)++] = (AttnSegment){first, n, 0, (rank + 1) * n - 1, -1};
        break;
    case SHARD_STRIPED:
        segments[(*count)++] = (AttnSegment){first, n, 0, rank, s->world};
        break;
    case SHARD_ZIGZAG:
        append_zigzag(segments, count, first, 0, n / 2, s->world, rank);
        break;
    case SHARD_VARLEN:
        append_zigzag(segments, count, first, 0, part / 2, s->world, rank);
        append_zigzag(segments, count, first + part, 1, (n - part) / 2, s->world, rank);
        break;
    }
}

static inline Case *shard_new(const Shard *s, AttnDtype dtype, TensorLayout layout)
{
    Case *c = case_new(s->shape, dtype, layout, 1);
    c->args.rule = (AttnRule){s->left, s->right};
    c->args.positions_q.count = c->args.positions_k.count = 0;
    append_rank(s, c->segments_q, &c->args.positions_q.count, 0, s->rank);
    for (int rank = 0; rank < s->world; rank++)
        append_rank(s, c->segments_k, &c->args.positions_k.count, rank * s->shape.Nq, rank);
    return c;
}

/* Three blocks of 70 keys, of which nobody sees the last: keys of the future (0), of another
 * sequence (1), behind the mask (2). */
static inline Case *unseen_case(int kind, AttnDtype dtype, int64_t d)
{
    const Shard future = {"future keys", SHARD_CONTIGUOUS, 3, 1, -1, 0, {1, 2, 1, 70, 210, d}};
    Case *c = shard_new(&future, dtype, LAYOUT_BSHD);
    if (kind > 0) /* causal would hide the block already */
        c->args.rule = (AttnRule){-1, -1};
    if (kind == 1)
        c->segments_k[2].sequence = 7;
    if (kind == 2) {
        case_mask(c);
        for (int64_t i = 0; i < 70; i++)
            memset(c->mask + i * 210 + 140, 1, 70);
    }
    return c;
}

/* --- states ------------------------------------------------------------------------------------*/

/* Room for O_state [B][Nq][H][d]. */
static inline float *state_new(const Case *c)
{
    const AttnShape *s = &c->args.shape;
    float *O_state = malloc(sizeof *O_state * (size_t)(s->B * s->Nq * s->H * s->d));
    assert_non_null(O_state);
    return O_state;
}

/* O_state [B][Nq][H][d] and c->args.lse after the first `count` keys: the oracle's, rounded. */
static inline void state_from_oracle(const Case *c, int64_t count, float *O_state)
{
    const AttnShape *n = &c->args.shape;
    KeyBlock block;
    Oracle oracle;
    key_block_cut(&block, c, 0, count);
    block.args.O = c->args.O; /* its dtype; the oracle does not write */
    assert_int_equal(0, oracle_run(&oracle, &block.args, 0, 1));
    assert_int_equal(n->Nq, oracle.rows.count); /* all of them, no sample */
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t i = 0; i < n->Nq; i++) {
                const int64_t row = (b * n->H + h) * n->Nq + i;
                c->args.lse[row] = (float)oracle.lse.value[row];
                for (int64_t x = 0; x < n->d; x++)
                    O_state[((b * n->Nq + i) * n->H + h) * n->d + x] =
                        (float)oracle.O.value[row * n->d + x];
            }
    oracle_free(&oracle);
    key_block_free(&block);
}

static inline double largest_lse_error(const Case *c, const Oracle *oracle)
{
    double error = 0.0;
    for (int64_t row = 0; row < oracle->lse.count; row++) {
        const double e = fabs((double)c->lse[row] - oracle->lse.value[row]);
        if (isnan(e)) /* fmax() would pass over it */
            return NAN;
        error = e > error ? e : error;
    }
    return error;
}

#endif
