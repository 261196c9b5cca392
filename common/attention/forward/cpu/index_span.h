/* SPDX-License-Identifier: MIT
 *
 * index_span.h: where can anything be visible, without asking every tile?
 *
 * Asking attn_tile_class about a tile is cheap beside a product, but there are Tr * Tc tiles: with
 * a window and a long sequence the questions alone grow with N^2. The rule itself names the answer.
 * Queries at positions min .. max see keys at positions
 *
 *     min - left .. max + right
 *
 * and where positions rise by a stride from a known first one, two divisions turn that into local
 * indexes. Keys ask the same question about queries with the two limits exchanged, because
 * q - left <= k <= q + right is k - right <= q <= k + left.
 *
 * Interface:
 * - IndexSpan, span_of_keys, span_of_queries: the smallest run of indexes worth a look. Not all in
 *   it is visible: whoever walks it still asks about each tile.
 */
#ifndef FLASH_INDEX_SPAN_H
#define FLASH_INDEX_SPAN_H

#include "attn_pairs.h"

/* Local indexes first .. last-1; first == last: none. */
typedef struct IndexSpan {
    int64_t first, last;
} IndexSpan;

/* What of one segment lies at positions range.min - left .. range.max + right. Only differences of
 * positions are compared, so limits near INT64_MAX do no harm. */
static inline IndexSpan span_of_segment(const AttnSegment *g, AttnRule rule, AttnRange range)
{
    int64_t from = 0, to = g->length;
    const int64_t behind = range.min - g->position, ahead = range.max - g->position;
    if (g->stride > 0 && rule.left >= 0 && behind > rule.left)
        from = (behind - rule.left + g->stride - 1) / g->stride;
    if (g->stride > 0 && rule.right >= 0 && rule.right < (g->length - 1) * g->stride - ahead)
        to = ahead + rule.right < 0 ? 0 : (ahead + rule.right) / g->stride + 1;
    return from < to ? (IndexSpan){g->first + from, g->first + to} : (IndexSpan){0, 0};
}

/* Of all segments; N indexes in all. */
static inline IndexSpan span_of_map(AttnPositions map, int64_t N, AttnRule rule, AttnRange range)
{
    IndexSpan span = {0, 0};
    if (range.sequence < 0) /* pieces of several sequences: no bounds to speak of */
        return (IndexSpan){0, N};
    for (int64_t s = 0; s < map.count; s++) {
        IndexSpan more;
        if (map.segments[s].sequence != range.sequence)
            continue;
        more = span_of_segment(&map.segments[s], rule, range);
        if (more.first == more.last)
            continue;
        if (span.first == span.last)
            span = more;
        span.first = more.first < span.first ? more.first : span.first;
        span.last = more.last > span.last ? more.last : span.last;
    }
    return span;
}

/* Keys that queries i .. i+rows-1 may see anything of. */
static inline IndexSpan span_of_keys(const AttnArgs *args, int64_t i, int64_t rows)
{
    return span_of_map(args->positions_k, args->shape.Nk, args->rule,
                       attn_range(args->positions_q, i, rows));
}

/* Queries that may see anything of keys j .. j+cols-1. */
static inline IndexSpan span_of_queries(const AttnArgs *args, int64_t j, int64_t cols)
{
    return span_of_map(args->positions_q, args->shape.Nq,
                       (AttnRule){args->rule.right, args->rule.left},
                       attn_range(args->positions_k, j, cols));
}

#endif
