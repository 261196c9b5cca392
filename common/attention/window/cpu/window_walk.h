/* SPDX-License-Identifier: MIT
 *
 * window_walk.h: the walk over tiles that weight_tiles.c and the count of tiles share.
 *
 *     span = span_of_keys(args, i, rows)           first and last key: two divisions
 *     for each tile j that the span touches:
 *         window_tile(args, i, rows, j, cols)      skip, masked or clean
 *
 * The span is what makes the cost N times the window: outside of it no tile is even asked. Stage
 * 03 has it (index_span.h), for its own kernel.
 *
 * Interface:
 * - window_tile: skip, masked or clean, the full mask included. span_of_keys, span_of_queries.
 */
#ifndef WINDOW_WALK_H
#define WINDOW_WALK_H

#include "attention/forward/cpu/index_span.h"
#include "attn_pairs.h"

/* Queries i .. i+rows-1 with keys j .. j+cols-1. */
static inline AttnTile window_tile(const AttnArgs *args, int64_t i, int64_t rows, int64_t j,
                                   int64_t cols)
{
    const AttnTile kind = attn_tile_class(args->rule, attn_range(args->positions_q, i, rows),
                                          attn_range(args->positions_k, j, cols));
    return args->mask && kind == ATTN_TILE_CLEAN ? ATTN_TILE_MASKED : kind;
}

#endif
