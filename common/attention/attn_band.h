/* SPDX-License-Identifier: MIT
 *
 * attn_band.h: the rule of positions where queries and keys each stand in one run of one sequence.
 *
 * Query i sees keys i + from ... i + to, as far as they exist. Rules and positions are 64-bit
 * numbers, kernels count in 32: what is further away than any index becomes 2^30, to which an index
 * below 2^30 may be added.
 *
 * Interface:
 * - AttnBand, attn_band: for device code from the maps' segments, which are in device memory.
 */
#ifndef ATTN_BAND_H
#define ATTN_BAND_H

#include "attn.h"

typedef struct AttnBand {
    int from, to;
} AttnBand;

static inline ATTN_HD int attn_band_end(int64_t distance)
{
    const int64_t far = 1 << 30;
    return (int)(distance < -far ? -far : distance > far ? far : distance);
}

/* Positions up to 2^60. A limit may be INT64_MAX, which no distance can be added to: 2^62 is as
 * good as none. */
static inline ATTN_HD AttnBand attn_band(const AttnArgs *a)
{
    const int64_t none = (int64_t)1 << 62;
    const int64_t shift = a->positions_q.segments->position - a->positions_k.segments->position;
    const int64_t left = a->rule.left < 0 || a->rule.left > none ? none : a->rule.left;
    const int64_t right = a->rule.right < 0 || a->rule.right > none ? none : a->rule.right;
    AttnBand band;
    band.from = attn_band_end(shift - left);
    band.to = attn_band_end(shift + right);
    return band;
}

#endif
