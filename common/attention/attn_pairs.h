/* SPDX-License-Identifier: MIT
 *
 * attn_pairs.h: pairs of a query and a key: who sees whom, one by one or a tile at once, and the
 * score.
 *
 * Visibility is a matter of differences of positions. So the extreme positions of some queries and
 * some keys tell whether no pair of their tile is visible, all are, or some:
 *
 *     queries at 8 .. 11, causal      keys at 0 .. 7    full: every key is behind every query
 *                                     keys at 8 .. 11   masked: the diagonal runs through the tile
 *                                     keys at 12 .. 15  skipped
 *
 * Interface:
 * - attn_positions() makes a position map.
 * - attn_visible() decides whether a query may look at a key, attn_sees() with the full mask: the
 *   definition. Kernels have faster forms of it, which the tests hold against this one.
 * - attn_score() is the score that enters the softmax.
 * - AttnRange, attn_range: extreme positions of a run of local indexes.
 * - attn_tile_class: is the tile of two ranges skipped, masked or full (AttnTile)?
 * The header is C11 and C++17 (nvcc compiles it for host and device).
 */
#ifndef ATTN_PAIRS_H
#define ATTN_PAIRS_H

#include <math.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A map in host memory. */
static inline AttnPositions attn_positions(const AttnSegment *segments, int64_t count)
{
    AttnPositions map;
    map.segments = segments;
    map.host = segments;
    map.count = count;
    return map;
}

/* May a query at q look at a key at k? (attn_sees asks the full mask too.) */
static inline ATTN_HD int attn_visible(AttnRule rule, AttnPosition q, AttnPosition k)
{
    int64_t ahead = k.position - q.position; /* differences: limits near INT64_MAX do no harm */
    return q.sequence == k.sequence && (rule.left < 0 || ahead >= -rule.left) &&
           (rule.right < 0 || ahead <= rule.right);
}

/* The whole question for local indexes i (query) and j (key): position rule AND full mask. */
static inline ATTN_HD int attn_sees(const AttnArgs *a, int64_t i, int64_t j)
{
    return !(a->mask && a->mask[i * a->shape.Nk + j]) &&
           attn_visible(a->rule, attn_position(a->positions_q, i),
                        attn_position(a->positions_k, j));
}

/* The score that enters the softmax, from the raw dot product q.k. */
static inline ATTN_HD float attn_score(const AttnArgs *a, float qk)
{
    float s = a->scale * qk;
    return a->softcap > 0.0f ? a->softcap * tanhf(s / a->softcap) : s;
}

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

typedef enum AttnTile { ATTN_TILE_SKIP, ATTN_TILE_MASKED, ATTN_TILE_CLEAN } AttnTile;

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
