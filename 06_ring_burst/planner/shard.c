/* SPDX-License-Identifier: MIT
 *
 * shard.c: dealing out tokens. Which rank gets which ones decides who waits for whom.
 *
 * A causal mask gives late queries more work than early ones. 16 tokens on 4 ranks, the rank of
 * each token:
 *
 *     contiguous   0000 1111 2222 3333     rank 3 has 58 pairs, rank 0 has 10
 *     zigzag       00 11 22 33 33 22 11 00 an early and a late chunk each: equal work
 *     striped      0123 0123 0123 0123     nearly equal work
 *
 * After this file nobody knows about layouts. A shard is a list of runs: each says where its tokens
 * come from (RingPiece) and at which positions of which sequence they stand (AttnSegment). The
 * block kernels find the mask of any two shards from the positions alone, so a sequence whose
 * length no rank count divides, or one shorter than the number of ranks, is no special case: its
 * chunks are a token longer or shorter, or empty, and nothing is padded or dropped.
 *
 * Gradients travel in halves of a shard, one half on its way while the other is computed, which
 * hides the journey only if both are about the same work. Under a causal mask the early chunk a of
 * a zigzag shard and its late chunk b are not. So each is cut in two: quarters a0, a1, b0, b1, of
 * which half 0 has a0 and b0. Of other layouts quarters 0 and 1 are the first and the last n/2
 * tokens, and 2 and 3 are empty.
 *
 * Why in the order a0 a1 b0 b1? It is that of the sequence. Positions grow, so a query sees one
 * stretch of keys, which a GPU's fastest kernels need (stage 03's key_rule.h). Of several sequences
 * each quarter has its part of all, and the portable kernels run.
 *
 * Interface: ring_shard_make, ring_shard_free, ring_run_cut, ring_shard_cut, ring_shards_class,
 * ring_pair_class (shard.h).
 */
#include "planner/shard.h"
#include "attn_pairs.h"

#include <stdlib.h>

/* --- dealing -----------------------------------------------------------------------------------*/

/* Chunk c of C: its first token, with equal chunks or such that differ by one. */
static int64_t chunk_start(int64_t tokens, int64_t c, int64_t C)
{
    return c * tokens / C;
}

/* A run that goes on where the last one ended makes that one longer: quarters of a chunk do, the
 * last rank's chunks, and chunks of neighbours in one block. */
static void append(RingShard *shard, RingPiece piece, AttnSegment run)
{
    AttnSegment *last = shard->count ? &shard->segments[shard->count - 1] : NULL;
    if (last && last->sequence == run.sequence && last->stride == run.stride &&
        last->position + last->length * last->stride == run.position &&
        shard->pieces[shard->count - 1].global + last->length * piece.stride == piece.global) {
        last->length += run.length;
        shard->pieces[shard->count - 1].length += run.length;
        return;
    }
    shard->pieces[shard->count] = piece;
    shard->segments[shard->count] = run;
    shard->count++;
}

/* The shard gets tokens from, from + stride, ... of a segment, `length` of them. */
static void take(RingShard *shard, const AttnSegment *s, int64_t from, int64_t stride,
                 int64_t length)
{
    if (length <= 0)
        return;
    append(shard, (RingPiece){shard->tokens, length, s->first + from, stride},
           (AttnSegment){shard->tokens, length, s->sequence, s->position + from * s->stride,
                         stride * s->stride});
    shard->tokens += length;
}

static void take_chunk(RingShard *shard, const AttnSegment *s, int rank, int ranks)
{
    const int64_t from = chunk_start(s->length, rank, ranks);
    take(shard, s, from, 1, chunk_start(s->length, rank + 1, ranks) - from);
}

/* Tokens rank, rank + ranks, ... */
static void take_stripe(RingShard *shard, const AttnSegment *s, int rank, int ranks)
{
    take(shard, s, rank, ranks, (s->length - rank + ranks - 1) / ranks);
}

/* Quarters of an early and a late chunk of 2 * ranks, of each segment. `dealt` counts the tokens of
 * all chunks before this one: cutting at half of this running sum makes quarters 0 and 2 together
 * exactly half of the shard. */
static void take_zigzag(RingShard *shard, AttnPositions map, int rank, int ranks)
{
    for (int quarter = 0; quarter < 4; quarter++) {
        const int late = quarter / 2, chunk = late ? 2 * ranks - 1 - rank : rank;
        int64_t dealt = late ? shard->cut[2] : 0;
        for (int64_t n = 0; n < map.count; n++) {
            const AttnSegment *s = &map.segments[n];
            const int64_t from = chunk_start(s->length, chunk, 2 * ranks);
            const int64_t length = chunk_start(s->length, chunk + 1, 2 * ranks) - from;
            const int64_t cut = (dealt + length) / 2 - dealt / 2;
            dealt += length;
            if (quarter % 2 == 0)
                take(shard, s, from, 1, cut);
            else
                take(shard, s, from + cut, 1, length - cut);
        }
        shard->cut[quarter + 1] = shard->tokens;
    }
}

static int open_shard(RingShard *shard, int64_t most)
{
    *shard = (RingShard){.pieces = malloc((size_t)most * sizeof *shard->pieces),
                         .segments = malloc((size_t)most * sizeof *shard->segments)};
    return shard->pieces && shard->segments ? 0 : -1;
}

int ring_shard_make(RingShard *shard, AttnPositions map, RingLayout layout, int rank, int ranks)
{
    if (open_shard(shard, 4 * map.count + 1) != 0) /* runs: quarters of each, and no zero */
        return -1;
    if (layout == RING_ZIGZAG && ranks > 1) { /* alone, a rank keeps the tokens in their order */
        take_zigzag(shard, map, rank, ranks);
        return 0;
    }
    for (int64_t s = 0; s < map.count; s++)
        (layout == RING_STRIPED ? take_stripe : take_chunk)(shard, &map.segments[s], rank, ranks);
    shard->cut[1] = shard->tokens / 2;
    shard->cut[2] = shard->cut[3] = shard->cut[4] = shard->tokens;
    return 0;
}

void ring_shard_free(RingShard *shard)
{
    free(shard->pieces);
    free(shard->segments);
    *shard = (RingShard){0};
}

/* --- asking ------------------------------------------------------------------------------------*/

int ring_run_cut(const RingShard *shard, int64_t run, int64_t first, int64_t tokens,
                 RingPiece *piece, AttnSegment *segment)
{
    const RingPiece *p = &shard->pieces[run];
    const AttnSegment *s = &shard->segments[run];
    const int64_t end = p->first + p->length, skip = first > p->first ? first - p->first : 0;
    const int64_t to = end < first + tokens ? end : first + tokens, from = p->first + skip;
    if (from >= to)
        return 0;
    *piece = (RingPiece){from - first, to - from, p->global + skip * p->stride, p->stride};
    *segment = (AttnSegment){from - first, to - from, s->sequence, s->position + skip * s->stride,
                             s->stride};
    return 1;
}

int ring_shard_cut(RingShard *cut, const RingShard *shards, int count, int64_t first,
                   int64_t tokens)
{
    int64_t most = 1, before = 0;
    for (int n = 0; n < count; n++)
        most += shards[n].count;
    if (open_shard(cut, most) != 0)
        return -1;
    cut->tokens = tokens;
    for (int n = 0; n < count; before += shards[n++].tokens)
        for (int64_t run = 0; run < shards[n].count; run++) {
            RingPiece piece;
            AttnSegment segment;
            if (ring_run_cut(&shards[n], run, first - before, tokens, &piece, &segment))
                append(cut, piece, segment);
        }
    return 0;
}

/* The ranges of two runs may reach into each other's window although no token of one stands in it:
 * with stripes only every G-th position is there. The differences position_k - position_q of two
 * runs with the same stride are `least`, least + stride, ...: is one of them in the window? */
static AttnTile runs_class(AttnRule rule, const AttnSegment *q, const AttnSegment *k)
{
    const AttnPositions map_q = attn_positions(q, 1), map_k = attn_positions(k, 1);
    const AttnRange range_q = attn_range(map_q, q->first, q->length);
    const AttnRange range_k = attn_range(map_k, k->first, k->length);
    const AttnTile class = attn_tile_class(rule, range_q, range_k);
    const int64_t stride = llabs(q->stride), least = range_k.min - range_q.max;
    int64_t steps;
    if (class != ATTN_TILE_MASKED || stride != llabs(k->stride) || stride == 0 || rule.left < 0 ||
        rule.right < 0 || least >= -rule.left)
        return class;
    steps = (-rule.left - least + stride - 1) / stride; /* to the first that is not too far left */
    return least + steps * stride <= rule.right ? class : ATTN_TILE_SKIP;
}

AttnTile ring_shards_class(AttnRule rule, const RingShard *q, const RingShard *k)
{
    int seen = 0, hidden = 0; /* pairs of runs that do see each other, that do not or in part */
    for (int64_t i = 0; i < q->count; i++)
        for (int64_t j = 0; j < k->count; j++) {
            AttnTile class = ATTN_TILE_SKIP;
            if (q->segments[i].sequence == k->segments[j].sequence)
                class = runs_class(rule, &q->segments[i], &k->segments[j]);
            seen |= class != ATTN_TILE_SKIP;
            hidden |= class != ATTN_TILE_CLEAN;
            if (seen && hidden)
                return ATTN_TILE_MASKED;
        }
    return seen ? ATTN_TILE_CLEAN : ATTN_TILE_SKIP;
}

AttnTile ring_pair_class(const RingPlan *plan, int q_rank, int k_rank)
{
    return ring_shards_class(plan->rule, &plan->q[q_rank], &plan->k[k_rank]);
}
