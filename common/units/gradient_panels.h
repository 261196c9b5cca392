/* SPDX-License-Identifier: MIT
 *
 * gradient_panels.h: the operands of a backward pass, laid out once in the order of use, and its
 * sums; v2_packing of stage 04 is the rung that brings them, in the same words.
 *
 * Q, dO and K take part in two kinds of product, so they have two layouts:
 *
 *     Q_panels, dO_panels   [panels of queries][d][PANEL]          S = Q K^T, dP = dO V^T
 *     Q_pieces, dO_pieces   [panels of channels][queries][PANEL]   dK += dS^T Q, dV += P^T dO
 *     K_pieces              [panels of channels][keys][PANEL]      dQ += dS K
 *
 * Interface:
 * - PANEL, MOST_PANEL: two vectors. KEYS, QUERIES, S_ROW: of a block. smaller, round_up.
 * - Plan: size_plan, plan_floats, place_plan. QueryHead, KeyBlock: query_head, key_block; part_dQ.
 * - pack_query, pack_keys (pack_piece, pack_column). store_keys, add_parts: the way back.
 * For files that are compiled once for each instruction set (units/vector.h).
 */
#ifndef UNITS_GRADIENT_PANELS_H
#define UNITS_GRADIENT_PANELS_H

#include <math.h>

#include "units/vector.h"

#define PANEL        (2 * LANES)
#define MOST_PANEL   (2 * MOST_LANES)
#define KEYS         120            /* of a block: whole strips */
#define QUERIES      192            /* of a block: whole strips and panels */
#define S_ROW        (QUERIES + 16) /* no power of 2: rows would fight for L1 */
#define WANTED_TASKS 8              /* (batch, kv head, part): for so many threads */

/* A query head, laid out. Rows from Nq on, up to whole panels, are zeros. */
typedef struct QueryHead {
    float *Q_panels, *dO_panels; /* [rows / PANEL][d][PANEL]; Q times a factor: the scale */
    float *Q_pieces, *dO_pieces; /* [channels / PANEL][rows][PANEL] */
    float *lse;                  /* [rows] +inf where a row sees no key, so that P = 0 */
    float *delta;                /* [rows] */
} QueryHead;

/* What one thread works in: a block of keys from key j on. */
typedef struct KeyBlock {
    int64_t j, count;
    float *K, *V;    /* [KEYS / strip][d][strip] */
    float *K_pieces; /* [channels / PANEL][KEYS][PANEL] */
    float *dK, *dV;  /* [KEYS][channels]; dK without the scale */
    float *S;        /* [strip][S_ROW] scores of a strip of keys, then P */
    float *dS;       /* [KEYS][S_ROW] dP, then dS */
} KeyBlock;

/* Sizes that follow from the problem, and where things lie in the work space. */
typedef struct Plan {
    int64_t Nq, Nk, d;
    int64_t from, to;       /* query i sees key j when from <= j - i <= to */
    int64_t strip;          /* keys that are worked on at a time */
    int64_t rows, channels; /* Nq and d, rounded up to whole strips and panels */
    int64_t group, parts;   /* query heads of a kv head; dQ that its keys are dealt out to */
    int64_t slots;          /* kv heads that are in work at a time */
    float *heads;           /* [slots][group][head_floats] QueryHead */
    float *dQ;              /* [slots][parts][group][rows][channels], without the scale */
    float *blocks;          /* [threads][block_floats] KeyBlock */
} Plan;

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

/* --- where things lie --------------------------------------------------------------------------*/

/* The sizes that `panel` columns and strips of `strip` keys make, with all kv heads in work. Parts
 * follow from the shape alone, or more threads would give other bits. */
static inline void size_plan(Plan *plan, int64_t kv_heads, int64_t panel, int64_t strip)
{
    plan->strip = strip;
    plan->rows = round_up(round_up(plan->Nq, strip), panel);
    plan->channels = round_up(plan->d, panel);
    plan->parts = smaller((plan->Nk + KEYS - 1) / KEYS, (WANTED_TASKS + kv_heads - 1) / kv_heads);
    plan->slots = kv_heads;
}

static inline int64_t head_floats(const Plan *plan)
{
    return 2 * plan->rows * (plan->d + plan->channels + 1);
}

static inline int64_t block_floats(const Plan *plan)
{
    return 2 * round_up(KEYS * plan->d, 16) + KEYS * (3 * plan->channels + S_ROW) +
           plan->strip * S_ROW;
}

static inline int64_t plan_floats(const Plan *plan, int threads)
{
    return plan->slots * plan->group *
               (head_floats(plan) + plan->parts * plan->rows * plan->channels) +
           threads * block_floats(plan);
}

static inline void place_plan(Plan *plan, float *work)
{
    const int64_t heads = plan->slots * plan->group;
    plan->heads = work;
    plan->dQ = plan->heads + heads * head_floats(plan);
    plan->blocks = plan->dQ + heads * plan->parts * plan->rows * plan->channels;
}

/* Query head g of the kv head in a slot. */
static inline QueryHead query_head(const Plan *plan, int64_t slot, int64_t g)
{
    QueryHead head;
    head.Q_panels = plan->heads + (slot * plan->group + g) * head_floats(plan);
    head.dO_panels = head.Q_panels + plan->rows * plan->d;
    head.Q_pieces = head.dO_panels + plan->rows * plan->d;
    head.dO_pieces = head.Q_pieces + plan->rows * plan->channels;
    head.lse = head.dO_pieces + plan->rows * plan->channels;
    head.delta = head.lse + plan->rows;
    return head;
}

static inline KeyBlock key_block(const Plan *plan, int thread)
{
    KeyBlock block;
    block.j = block.count = 0;
    block.K = plan->blocks + thread * block_floats(plan);
    block.V = block.K + round_up(KEYS * plan->d, 16);
    block.K_pieces = block.V + round_up(KEYS * plan->d, 16);
    block.dK = block.K_pieces + KEYS * plan->channels;
    block.dV = block.dK + KEYS * plan->channels;
    block.S = block.dV + KEYS * plan->channels;
    block.dS = block.S + plan->strip * S_ROW;
    return block;
}

/* The dQ [rows][channels] that a part of the keys adds up, of query head g. */
static inline float *part_dQ(const Plan *plan, int64_t slot, int64_t part, int64_t g)
{
    return plan->dQ + ((slot * plan->parts + part) * plan->group + g) * plan->rows * plan->channels;
}

/* --- packing, and back -------------------------------------------------------------------------*/

/* Row r of [channels / PANEL][rows][PANEL]; from NULL: zeros. */
static inline void pack_piece(const float *from, int64_t d, int64_t rows, int64_t r, float *to)
{
    for (int64_t x = 0; x < d; x += PANEL) {
        const int64_t width = from ? smaller(PANEL, d - x) : 0;
        float *piece = to + x * rows + r * PANEL;
        memset(piece + width, 0, (size_t)(PANEL - width) * sizeof(float));
        if (width > 0)
            memcpy(piece, from + x, (size_t)width * sizeof(float));
    }
}

/* Row i of [rows / width][d][width]; from NULL: zeros. */
static inline void pack_column(const float *from, int64_t d, int64_t i, int64_t width, float factor,
                               float *to)
{
    float *column = to + i / width * width * d + i % width;
    for (int64_t x = 0; x < d; x++)
        column[x * width] = from ? factor * from[x] : 0.0f;
}

/* Query i: Q, dO, O [d]. lse and Q_panels count in units of 1 / `unit`. A row without keys (lse is
 * -inf) gives nothing, whatever stands in its Q and dO. */
static inline void pack_query(const Plan *plan, const QueryHead *head, int64_t i, const float *Q,
                              const float *dO, const float *O, float lse, float scale, float unit)
{
    const int empty = lse == -INFINITY;
    head->lse[i] = empty ? INFINITY : lse * unit;
    head->delta[i] = 0.0f;
    for (int64_t x = 0; x < plan->d && !empty; x++)
        head->delta[i] += dO[x] * O[x];
    pack_column(empty ? NULL : Q, plan->d, i, PANEL, scale * unit, head->Q_panels);
    pack_column(empty ? NULL : dO, plan->d, i, PANEL, 1.0f, head->dO_panels);
    pack_piece(empty ? NULL : Q, plan->d, plan->rows, i, head->Q_pieces);
    pack_piece(empty ? NULL : dO, plan->d, plan->rows, i, head->dO_pieces);
}

/* Keys j .. of a kv head, up to whole strips, their rows ld floats apart; their sums become 0. */
static inline void pack_keys(const Plan *plan, KeyBlock *block, int64_t j, const float *K,
                             const float *V, int64_t ld)
{
    block->j = j;
    block->count = smaller(KEYS, plan->Nk - j);
    for (int64_t r = 0; r < round_up(block->count, plan->strip); r++) {
        const float *K_r = r < block->count ? K + r * ld : NULL;
        const float *V_r = r < block->count ? V + r * ld : NULL;
        pack_column(K_r, plan->d, r, plan->strip, 1.0f, block->K);
        pack_column(V_r, plan->d, r, plan->strip, 1.0f, block->V);
        pack_piece(K_r, plan->d, KEYS, r, block->K_pieces);
    }
    memset(block->dK, 0, (size_t)(KEYS * plan->channels) * sizeof(float));
    memset(block->dV, 0, (size_t)(KEYS * plan->channels) * sizeof(float));
}

/* Nobody else has these keys: their dK and dV, ld floats apart, are done. */
static inline void store_keys(const Plan *plan, const KeyBlock *block, float scale, float *dK,
                              float *dV, int64_t ld)
{
    for (int64_t r = 0; r < block->count; r++)
        for (int64_t x = 0; x < plan->d; x++) {
            dK[r * ld + x] = scale * block->dK[r * plan->channels + x];
            dV[r * ld + x] = block->dV[r * plan->channels + x];
        }
}

/* dQ [d] of query i of head g = scale * the parts, first to last. */
static inline void add_parts(const Plan *plan, int64_t slot, int64_t g, int64_t i, float scale,
                             float *dQ)
{
    for (int64_t x = 0; x < plan->d; x++) {
        float sum = 0.0f;
        for (int64_t part = 0; part < plan->parts; part++)
            sum += part_dQ(plan, slot, part, g)[i * plan->channels + x];
        dQ[x] = scale * sum;
    }
}

#endif
