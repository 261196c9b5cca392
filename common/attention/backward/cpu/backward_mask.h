/* SPDX-License-Identifier: MIT
 *
 * backward_mask.h: which queries see which keys, for the transposed tiles of the library.
 *
 * A rule is a band along the diagonal of the score matrix. A strip of keys therefore meets one run
 * of queries, its span; outside of it there is nothing to compute. Inside, attn_tile_class says
 * which tiles have hidden pairs, and only these are masked.
 *
 * Interface:
 * - find_span: the columns that a strip of keys sees anything of.
 * - mask_tile: -inf at the hidden pairs of a tile.
 */
#ifndef BACKWARD_MASK_H
#define BACKWARD_MASK_H

#include <math.h>

#include "attention/forward/cpu/simd_mask.h"
#include "attention/rows.h"
#include "attn_pairs.h"
#include "backward_pack.h"

/* Hides pairs of S^T: the keys of strip s, `width` columns from query i on. Who may see whom is
 * asked with the roles exchanged: key minus query becomes query minus key, so left and right of the
 * rule change places. */
static inline void mask_tile(const AttnArgs *args, const BackwardPlan *p, const KeyBlock *block,
                             int64_t s, int64_t i, int64_t width, float *S)
{
    const int64_t row = s * p->simd->strip, rows = smaller(p->simd->strip, block->count - row);
    const int64_t panel = i / p->simd->panel, cols = smaller(width, args->shape.Nq - i);
    AttnArgs swapped = *args;
    swapped.positions_q = args->positions_k;
    swapped.positions_k = args->positions_q;
    swapped.rule = (AttnRule){args->rule.right, args->rule.left};
    swapped.mask = NULL; /* [Nq][Nk]: asked here, since its rows are queries */
    if (p->straight[panel]) {
        AttnRange columns = p->ranges[panel];
        columns.min += i % p->simd->panel;
        hide_intervals(p->simd, swapped.rule, block->positions + row, rows, columns, cols, width,
                       S);
    } else {
        attn_mask_rows(&swapped, block->j + row, rows, i, cols, S, SIMD_ROW);
    }
    for (int64_t c = 0; args->mask && c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            if (args->mask[(i + c) * args->shape.Nk + block->j + row + r])
                S[r * SIMD_ROW + c] = -INFINITY;
}

/* Which columns of the block of queries i .. does strip s see anything of? Whole panels at first;
 * where positions rise by 1, the first and the last one are cut to what the rule leaves of them. */
static inline void find_span(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                             int64_t s, int64_t i)
{
    const int64_t width = p->simd->panel, cols = smaller(p->queries, args->shape.Nq - i);
    const AttnRange *queries = p->ranges + i / width, keys = block->ranges[s];
    const uint8_t *straight = p->straight + i / width;
    int64_t first = 0, last = (cols + width - 1) / width;
    while (first < last && attn_tile_class(args->rule, queries[first], keys) == ATTN_TILE_SKIP)
        first++;
    while (first < last && attn_tile_class(args->rule, queries[last - 1], keys) == ATTN_TILE_SKIP)
        last--;
    block->first[s] = first < last ? first * width : 0;
    block->last[s] = first < last ? smaller(last * width, cols) : 0;
    if (first < last && keys.sequence >= 0 && args->rule.right >= 0 && straight[first]) {
        const int64_t ahead = keys.min - queries[first].min; /* the first key's own column */
        if (ahead > args->rule.right)
            block->first[s] += ahead - args->rule.right;
    }
    if (first < last && keys.sequence >= 0 && args->rule.left >= 0 && straight[last - 1]) {
        const int64_t ahead = keys.max - queries[last - 1].min;
        if (args->rule.left < width - 1 - ahead)
            block->last[s] =
                smaller(block->last[s], (last - 1) * width + ahead + args->rule.left + 1);
    }
}

#endif
