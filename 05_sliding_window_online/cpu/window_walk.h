/* SPDX-License-Identifier: MIT
 *
 * window_walk.h: which tiles a tile of queries has to look at, without asking all of them.
 *
 * Asking attn_tile_class about every tile is cheap beside a product, but there are Tr * Tc
 * questions: with a window and a long sequence the questions alone grow with N^2. The rule itself
 * names the answer. Queries at positions min .. max see keys at positions
 *
 *     min - left .. max + right
 *
 * and where positions rise by a stride from a known first one, two divisions turn that into local
 * indexes. Keys ask the same question about queries with the two limits exchanged, because
 * q - left <= k <= q + right is k - right <= q <= k + left.
 *
 * Interface:
 * - WindowSpan, window_span_keys, window_span_queries: the run of indexes worth a look.
 * - window_tile: skip, masked or clean, the full mask included.
 */
#ifndef WINDOW_WALK_H
#define WINDOW_WALK_H

#include "attn.h"

/* Local indexes first .. last-1; first == last: none. */
typedef struct WindowSpan {
    int64_t first, last;
} WindowSpan;

/* What of one segment lies at positions range.min - left .. range.max + right. Only differences of
 * positions are compared, so limits near INT64_MAX do no harm. */
static inline WindowSpan window_span_segment(const AttnSegment *g, AttnRule rule, AttnRange range)
{
    int64_t from = 0, to = g->length;
    const int64_t behind = range.min - g->position, ahead = range.max - g->position;
    if (g->stride > 0 && rule.left >= 0 && behind > rule.left)
        from = (behind - rule.left + g->stride - 1) / g->stride;
    if (g->stride > 0 && rule.right >= 0 && rule.right < (g->length - 1) * g->stride - ahead)
        to = ahead + rule.right < 0 ? 0 : (ahead + rule.right) / g->stride + 1;
    return from < to ? (WindowSpan){g->first + from, g->first + to} : (WindowSpan){0, 0};
}

/* The smallest run with everything that can be visible from `range`; N indexes in all. */
static inline WindowSpan window_span(AttnPositions map, int64_t N, AttnRule rule, AttnRange range)
{
    WindowSpan span = {0, 0};
    if (range.sequence < 0) /* pieces of several sequences: no bounds to speak of */
        return (WindowSpan){0, N};
    for (int64_t s = 0; s < map.count; s++) {
        WindowSpan more;
        if (map.segments[s].sequence != range.sequence)
            continue;
        more = window_span_segment(&map.segments[s], rule, range);
        if (more.first == more.last)
            continue;
        if (span.first == span.last)
            span = more;
        span.first = more.first < span.first ? more.first : span.first;
        span.last = more.last > span.last ? more.last : span.last;
    }
    return span;
}

static inline WindowSpan window_span_keys(const AttnArgs *args, int64_t i, int64_t rows)
{
    return window_span(args->positions_k, args->shape.Nk, args->rule,
                       attn_range(args->positions_q, i, rows));
}

static inline WindowSpan window_span_queries(const AttnArgs *args, int64_t j, int64_t cols)
{
    return window_span(args->positions_q, args->shape.Nq,
                       (AttnRule){args->rule.right, args->rule.left},
                       attn_range(args->positions_k, j, cols));
}

/* Queries i .. i+rows-1 with keys j .. j+cols-1. */
static inline AttnTile window_tile(const AttnArgs *args, int64_t i, int64_t rows, int64_t j,
                                   int64_t cols)
{
    const AttnTile kind = attn_tile_class(args->rule, attn_range(args->positions_q, i, rows),
                                          attn_range(args->positions_k, j, cols));
    return args->mask && kind == ATTN_TILE_CLEAN ? ATTN_TILE_MASKED : kind;
}

#endif
