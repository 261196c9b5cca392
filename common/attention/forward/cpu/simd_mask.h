/* SPDX-License-Identifier: MIT
 *
 * simd_mask.h: which columns of a tile a row sees, without asking pair by pair.
 *
 * Where positions rise by 1 from column to column, a row sees an interval of columns, and both ends
 * follow from its own position: two subtractions a row instead of a question for each pair. The
 * vectors of simd->hide do the rest. In stage 03 rows are queries and columns are keys; in stage 04
 * it is the other way round, and left and right of the rule change places.
 *
 * Interface:
 * - hide_intervals: -inf where a row does not see a column.
 */
#ifndef FLASH_SIMD_MASK_H
#define FLASH_SIMD_MASK_H

#include "attn_pairs.h"
#include "simd.h"
#include "sizes.h"

/* S [strip][SIMD_ROW], its first `width` columns, of which `cols` exist. Column c is at position
 * columns.min + c; row r < rows is at where[r]. No comparison overflows, however large a limit. */
static inline void hide_intervals(const FlashSimd *simd, AttnRule rule, const AttnPosition *where,
                                  int64_t rows, AttnRange columns, int64_t cols, int64_t width,
                                  float *S)
{
    int32_t from[SIMD_MAX_STRIP] = {0}, to[SIMD_MAX_STRIP]; /* visible: from <= c < to */
    for (int64_t r = 0; r < simd->strip; r++)
        to[r] = (int32_t)cols;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t ahead = where[r].position - columns.min; /* the column of its own position */
        if (rule.left >= 0 && ahead > rule.left)
            from[r] = (int32_t)smaller(ahead - rule.left, cols);
        if (rule.right >= 0 && rule.right < cols - 1 - ahead)
            to[r] = (int32_t)(ahead + rule.right + 1 > 0 ? ahead + rule.right + 1 : 0);
        if (where[r].sequence != columns.sequence)
            to[r] = 0;
    }
    simd->hide(S, from, to, width);
}

#endif
