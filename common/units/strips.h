/* SPDX-License-Identifier: MIT
 *
 * strips.h: a tile of sums in registers, and the block of queries that it works through strip by
 * strip; v3_register_tiles of stage 03 is the rung that brings it, in the same words.
 *
 * A core does two vector multiply-adds in a cycle, each takes 4 cycles, and two loads. A tile of
 * STRIP rows x 2 vectors needs the same two vectors for all its rows: with AVX2 12 sums, 2 vectors
 * of K or V and 1 number of Q or P fill the 16 registers.
 *
 * Interface:
 * - STRIP, MOST_STRIP; BLOCK_ROWS, BLOCK_KEYS, S_ROW: sizes.
 * - Block, block_floats, place_block, start_block, finish_block: the queries of a block.
 * - add_products: a tile gains a product. score_strip, hide_keys, add_values: S, and O += P V.
 * For files that are compiled once for each instruction set (units/vector.h).
 */
#ifndef UNITS_STRIPS_H
#define UNITS_STRIPS_H

#include <math.h>

#include "units/panels.h"

#define MOST_STRIP 12
#define STRIP      (LANES == 16 ? 12 : 6) /* rows of a tile of sums in registers */
#define BLOCK_KEYS 256                    /* whole panels */
#define S_ROW      (BLOCK_KEYS + 64)      /* no power of 2: rows a page apart fight for L1 */
#define BLOCK_ROWS 96                     /* whole strips */

/* What one thread works in: a block of queries. */
typedef struct Block {
    float *Q_i;       /* [BLOCK_ROWS / STRIP][d][STRIP], times a factor: the scale */
    float *O_i;       /* [BLOCK_ROWS][channels], not yet divided by l_i */
    float *S;         /* [STRIP][S_ROW] scores of a strip, then P */
    float *m_i, *l_i; /* [BLOCK_ROWS] */
} Block;

/* Floats of a block. All parts are multiples of 16, so vectors in them are aligned. */
static inline int64_t block_floats(int64_t d, int64_t panel, int64_t strip)
{
    return BLOCK_ROWS * (d + round_up(d, panel) + 2) + strip * S_ROW;
}

static inline Block place_block(float *at, int64_t d)
{
    Block block;
    block.Q_i = at;
    block.O_i = block.Q_i + BLOCK_ROWS * d;
    block.m_i = block.O_i + BLOCK_ROWS * round_up(d, PANEL);
    block.l_i = block.m_i + BLOCK_ROWS;
    block.S = block.l_i + BLOCK_ROWS;
    return block;
}

/* `rows` queries, Q [rows][ld], and nothing seen. Rows past the last query are zeros. */
static inline void start_block(const Block *block, const float *Q, int64_t ld, int64_t rows,
                               int64_t d, float factor)
{
    memset(block->O_i, 0, (size_t)(BLOCK_ROWS * round_up(d, PANEL)) * sizeof(float));
    memset(block->Q_i, 0, (size_t)(BLOCK_ROWS * d) * sizeof(float));
    for (int64_t r = 0; r < BLOCK_ROWS; r++) {
        block->m_i[r] = -INFINITY;
        block->l_i[r] = 0.0f;
    }
    for (int64_t r = 0; r < rows; r++) {
        float *strip = block->Q_i + r / STRIP * STRIP * d + r % STRIP;
        for (int64_t x = 0; x < d; x++)
            strip[x * STRIP] = factor * Q[r * ld + x];
    }
}

/* O [rows][ld] = O / l, and lse [rows]; m counts in units of `unit`. A row that saw no key: 0 and
 * -inf. */
static inline void finish_block(const Block *block, float *O, int64_t ld, float *lse, int64_t rows,
                                int64_t d, float unit)
{
    for (int64_t r = 0; r < rows; r++) {
        const float l = block->l_i[r], inverse = l == 0.0f ? 0.0f : 1.0f / l;
        for (int64_t x = 0; x < d; x++)
            O[r * ld + x] = inverse * block->O_i[r * round_up(d, PANEL) + x];
        lse[r] = l == 0.0f ? -INFINITY : block->m_i[r] * unit + logf(l);
    }
}

/* A tile gains a b: number t of row r of a stands at a[r * row_step + t * step], b is
 * [steps][PANEL]. All loops but that over the steps are unrolled, so that acc is registers. */
static inline __attribute__((always_inline)) void add_products(Vector acc[STRIP][2], const float *a,
                                                               const int64_t row_step,
                                                               const int64_t step, const float *b,
                                                               int64_t steps)
{
#pragma GCC unroll 4
    for (int64_t t = 0; t < steps; t++, a += step, b += PANEL) {
        const Vector b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            acc[r][0] += a[r * row_step] * b0;
            acc[r][1] += a[r * row_step] * b1;
        }
    }
}

/* S of the strip that begins with row r: `cols` keys from key `start` on, whole panels. */
static inline void score_strip(const Block *block, const Packed *packed, int64_t d, int64_t r,
                               int64_t start, int64_t cols)
{
    for (int64_t c = 0; c < cols; c += PANEL) {
        Vector acc[STRIP][2] = {{{0}}};
        add_products(acc, block->Q_i + r * d, 1, STRIP, packed->K + (start + c) * d, d);
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            store(block->S + row * S_ROW + c, acc[row][0]);
            store(block->S + row * S_ROW + c + LANES, acc[row][1]);
        }
    }
}

/* Of `cols` scores the row sees first .. end-1. What it does not see becomes -inf. */
static inline void hide_keys(float *S_r, int64_t first, int64_t end, int64_t cols)
{
    for (int64_t c = 0; c < smaller(first, cols); c++)
        S_r[c] = -INFINITY;
    for (int64_t c = end > 0 ? end : 0; c < cols; c++)
        S_r[c] = -INFINITY;
}

/* O = alpha O + P V of the strip that begins with row r, for keys first .. end-1. P [STRIP][S_ROW]
 * begins with key `first`. */
static inline void add_values(const Block *block, const Packed *packed, int64_t r,
                              const float *alpha, const float *P, int64_t first, int64_t end)
{
    for (int64_t x = 0; x < packed->channels; x += PANEL) {
        float *O = block->O_i + r * packed->channels + x;
        Vector acc[STRIP][2];
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            acc[row][0] = alpha[row] * load(O + row * packed->channels);
            acc[row][1] = alpha[row] * load(O + row * packed->channels + LANES);
        }
        add_products(acc, P, S_ROW, 1, packed->V + x * packed->keys + first * PANEL, end - first);
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            store(O + row * packed->channels, acc[row][0]);
            store(O + row * packed->channels + LANES, acc[row][1]);
        }
    }
}

#endif
