/* SPDX-License-Identifier: MIT
 *
 * mask_rows.c: hides the scores that a query may not see, without asking pair by pair.
 *
 * A row of scores asks attn_tile_class about its whole span of keys: "do I see all of you, none, or
 * some?" Only "some" needs work, and then the span is cut in two and asked again. A causal row of
 * 2048 keys is settled by about 20 questions instead of 2048, with no knowledge here of what the
 * rule is.
 *
 * (Apart from rows.c, so that who only masks does not link the matrix product and its BLAS.)
 *
 * Interface: attn_mask_rows (rows.h).
 */
#include <math.h>

#include "attention/rows.h"
#include "attn_pairs.h"

/* One row, keys j0 .. j0+cols-1. A span of one key is always all or none, so the halving ends. */
static void mask_span(const AttnArgs *args, AttnRange query, int64_t j0, int64_t cols, float *S_i)
{
    const int64_t half = cols / 2;
    int64_t c;
    switch (attn_tile_class(args->rule, query, attn_range(args->positions_k, j0, cols))) {
    case ATTN_TILE_CLEAN:
        return;
    case ATTN_TILE_SKIP:
        for (c = 0; c < cols; c++)
            S_i[c] = -INFINITY;
        return;
    case ATTN_TILE_MASKED:
        mask_span(args, query, j0, half, S_i);
        mask_span(args, query, j0 + half, cols - half, S_i + half);
    }
}

void attn_mask_rows(const AttnArgs *args, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                    float *S, int64_t ld_S)
{
    int64_t r, c;
    for (r = 0; r < rows; r++) {
        float *S_i = S + r * ld_S;
        mask_span(args, attn_range(args->positions_q, i0 + r, 1), j0, cols, S_i);
        if (args->mask) { /* [Nq][Nk], 1 = masked out: has no structure, so ask every pair */
            const uint8_t *mask_i = args->mask + (i0 + r) * args->shape.Nk + j0;
            for (c = 0; c < cols; c++)
                S_i[c] = mask_i[c] ? -INFINITY : S_i[c];
        }
    }
}
