/* SPDX-License-Identifier: MIT
 *
 * attn_tiles.h: what is known about a tile of pairs without asking pair by pair.
 *
 * Visibility is a matter of differences of positions (attn.h). So the extreme positions of some
 * queries and some keys tell whether no pair of their tile is visible, all are, or some:
 *
 *     queries at 8 .. 11, causal      keys at 0 .. 7    full: every key is behind every query
 *                                     keys at 8 .. 11   masked: the diagonal runs through the tile
 *                                     keys at 12 .. 15  skipped
 *
 * Interface:
 * - AttnRange, attn_range: extreme positions of a run of local indexes.
 * - attn_tile_class: is the tile of two ranges skipped, masked or full (AttnTile, attn.h)?
 * The header is C11 and C++17 (nvcc compiles it for host and device).
 */
#ifndef ATTN_TILES_H
#define ATTN_TILES_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Extreme positions of a run of local indexes; sequence = -1: it spans several sequences. */
typedef struct AttnRange {
    int64_t sequence, min, max;
} AttnRange;

/* Range of local indexes first .. first+count-1 (count >= 1). Walks segments, not elements. */
static inline ATTN_HD AttnRange attn_range(AttnPositions map, int64_t first, int64_t count)
{
    int64_t s, end = first + count, started = 0;
    AttnRange r;
    r.sequence = -1;
    r.min = r.max = 0;
    for (s = 0; s < map.count; s++) {
        const AttnSegment *g = &map.segments[s];
        int64_t lo = first > g->first ? first : g->first;
        int64_t hi = end < g->first + g->length ? end : g->first + g->length;
        int64_t p, q;
        if (lo >= hi)
            continue;
        p = g->position + (lo - g->first) * g->stride;
        q = g->position + (hi - 1 - g->first) * g->stride;
        if (p > q) {
            int64_t swap = p;
            p = q;
            q = swap;
        }
        if (!started) {
            r.sequence = g->sequence;
            r.min = p;
            r.max = q;
            started = 1;
        } else {
            r.sequence = r.sequence == g->sequence ? r.sequence : -1;
            r.min = p < r.min ? p : r.min;
            r.max = q > r.max ? q : r.max;
        }
    }
    return r;
}

/* Skip: no pair of the tile is visible. Clean: all are. Masked: must be asked pair by pair.
 * The full mask makes no tile clean; the caller looks after that. */
static inline ATTN_HD AttnTile attn_tile_class(AttnRule rule, AttnRange q, AttnRange k)
{
    if (q.sequence < 0 || k.sequence < 0)
        return ATTN_TILE_MASKED;
    if (q.sequence != k.sequence || (rule.left >= 0 && k.max - q.min < -rule.left) ||
        (rule.right >= 0 && k.min - q.max > rule.right))
        return ATTN_TILE_SKIP;
    if ((rule.left < 0 || k.min - q.max >= -rule.left) &&
        (rule.right < 0 || k.max - q.min <= rule.right))
        return ATTN_TILE_CLEAN;
    return ATTN_TILE_MASKED;
}

#ifdef __cplusplus
}
#endif
#endif
