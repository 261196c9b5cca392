/* SPDX-License-Identifier: MIT
 *
 * gradient_strips.h: the five products of a backward pass as tiles of sums in registers;
 * v3_register_tiles of stage 04 is the rung that brings them, in the same words.
 *
 *     product          rows of the tile   numbers                        from one step to the next
 *     S^T, dP^T        keys               K, V of a strip, [d][STRIP]    STRIP
 *     dV, dK           keys               P, dS along their rows         1
 *     dQ               queries            dS down its columns            S_ROW
 *
 * The unit of work is a strip of keys. Its keys are seen by different queries: what is hidden of a
 * tile gets S = -inf, and dS is 0 up to the ends of the block of queries.
 *
 * Interface:
 * - STRIP, MOST_STRIP. add_products: a tile gains a product. add_rows, multiply_panel.
 * - Span, span_of_strip: the queries that a strip of keys sees. score_strip: S and dP.
 * - add_queries: dV and dK of a strip of keys. add_strip: dQ of a strip of queries.
 * For files that are compiled once for each instruction set (units/vector.h).
 */
#ifndef UNITS_GRADIENT_STRIPS_H
#define UNITS_GRADIENT_STRIPS_H

#include "units/gradient_panels.h"

#define STRIP      (LANES == 16 ? 12 : 6) /* rows of a tile of sums in registers, 2 vectors wide */
#define MOST_STRIP 12

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

/* C [STRIP][channels] += a times rows first .. first+steps-1 of pieces
 * [channels / PANEL][rows][PANEL] */
static inline __attribute__((always_inline)) void
add_rows(const float *a, const int64_t row_step, const int64_t step, const float *pieces,
         int64_t rows, int64_t first, int64_t steps, float *C, int64_t channels)
{
    for (int64_t x = 0; x < channels; x += PANEL) {
        Vector acc[STRIP][2];
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            acc[r][0] = load(C + r * channels + x);
            acc[r][1] = load(C + r * channels + x + LANES);
        }
        add_products(acc, a, row_step, step, pieces + x * rows + first * PANEL, steps);
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            store(C + r * channels + x, acc[r][0]);
            store(C + r * channels + x + LANES, acc[r][1]);
        }
    }
}

/* A tile [STRIP][PANEL] of S or dP: a strip of K or V with a panel of Q or dO. */
static inline __attribute__((always_inline)) void
multiply_panel(const float *strip, const float *panel, int64_t d, float *to)
{
    Vector acc[STRIP][2] = {{{0}}};
    add_products(acc, strip, 1, STRIP, panel, d);
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++) {
        store(to + r * S_ROW, acc[r][0]);
        store(to + r * S_ROW + LANES, acc[r][1]);
    }
}

/* What a strip of keys sees of a block of queries: columns first .. seen-1, and the whole panels
 * start .. end-1 that hold them. */
typedef struct Span {
    int64_t first, seen, start, end;
} Span;

/* The strip from row r on, queries i .. i+QUERIES-1: key j is seen by j - to .. j - from. */
static inline Span span_of_strip(const Plan *plan, const KeyBlock *block, int64_t r, int64_t i)
{
    const int64_t j = block->j + r, last = j + smaller(STRIP, block->count - r) - 1;
    const int64_t from = j - plan->to - i, first = from > 0 ? from : 0;
    const int64_t seen = smaller(smaller(last - plan->from + 1, plan->Nq) - i, QUERIES);
    return (Span){first, seen, first / PANEL * PANEL, round_up(seen > 0 ? seen : 0, PANEL)};
}

/* S and dP in the panels of the span. What is hidden becomes S = -inf; beside the panels dS is 0,
 * since add_strip reads a bit further. */
static inline void score_strip(const Plan *plan, const KeyBlock *block, const QueryHead *head,
                               int64_t r, int64_t i, Span at)
{
    const int64_t d = plan->d;
    float *dP = block->dS + r * S_ROW;
    for (int64_t c = at.start; c < at.end; c += PANEL) {
        multiply_panel(block->K + r * d, head->Q_panels + (i + c) * d, d, block->S + c);
        multiply_panel(block->V + r * d, head->dO_panels + (i + c) * d, d, dP + c);
    }
    for (int64_t row = 0; row < STRIP; row++) {
        const int64_t j = block->j + r + row, first = smaller(j - plan->to - i, at.end);
        const int64_t hidden = smaller(j - plan->from + 1, plan->Nq) - i;
        for (int64_t c = at.start; c < first; c++)
            block->S[row * S_ROW + c] = -INFINITY;
        for (int64_t c = hidden > at.start ? hidden : at.start; c < at.end; c++)
            block->S[row * S_ROW + c] = -INFINITY;
        memset(dP + row * S_ROW, 0, (size_t)at.start * sizeof *dP);
        memset(dP + row * S_ROW + at.end, 0, (size_t)(QUERIES - at.end) * sizeof *dP);
    }
}

/* dV += P dO and dK += dS Q of the strip, from the queries of its span. */
static inline void add_queries(const Plan *plan, const KeyBlock *block, const QueryHead *head,
                               int64_t r, int64_t i, Span at)
{
    const int64_t first = at.first, steps = at.seen - at.first;
    add_rows(block->S + first, S_ROW, 1, head->dO_pieces, plan->rows, i + first, steps,
             block->dV + r * plan->channels, plan->channels);
    add_rows(block->dS + r * S_ROW + first, S_ROW, 1, head->Q_pieces, plan->rows, i + first, steps,
             block->dK + r * plan->channels, plan->channels);
}

/* dQ of the strip of queries i .., columns c .. of the block of queries, from the keys of the block
 * that it sees anything of. */
static inline void add_strip(const Plan *plan, const KeyBlock *block, float *dQ, int64_t i,
                             int64_t c)
{
    const int64_t from = i + plan->from - block->j, first = from > 0 ? from : 0;
    const int64_t end = smaller(i + STRIP - 1 + plan->to + 1 - block->j, block->count);
    if (first < end)
        add_rows(block->dS + first * S_ROW + c, 1, S_ROW, block->K_pieces, KEYS, first, end - first,
                 dQ + i * plan->channels, plan->channels);
}

#endif
