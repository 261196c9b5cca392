/* SPDX-License-Identifier: MIT
 *
 * v2_packing: v1_fa2_backward without BLAS: every operand is laid out once, in the order of use.
 *
 * v1 calls BLAS five times for a tile of 64 x 64, too small for BLAS to be good at: each call
 * copies its operands into an order of its own. Here they are copied once for all tiles. Q, dO and
 * K take part in two kinds of product, so they have two layouts:
 *
 *     Q_panels, dO_panels   [panels of queries][d][PANEL]          S = Q K^T, dP = dO V^T
 *     Q_pieces, dO_pieces   [panels of channels][queries][PANEL]   dK += dS^T Q, dV += P^T dO
 *     K_pieces              [panels of channels][keys][PANEL]      dQ += dS K
 *
 * Scores are transposed: a row of S is a key, its columns are queries. Then P and dS of a key are
 * walked along their row for dV and dK, and dS read down a column is what dQ needs. Nothing is
 * turned round, and lse and delta, which belong to columns, are vectors like S.
 *
 *     for each block of keys, each query head of the group, each block of queries:
 *         for each key:     S, dP, P = exp(S - lse), dS = P * (dP - delta)
 *                           dV_j += P dO        dK_j += dS Q
 *         for each query:   dQ_i += dS K
 *
 * Each part of the keys adds to a dQ of its own, as in v1.
 *
 * Prediction: slower than v1. No copies and no calls any more, but a row has only VECTORS sums in
 * work, 4, where a core with two multiply-add units of 4 cycles each needs 8, and it asks the L2
 * cache for a vector with every multiply-add. The next rung cures both.
 *
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 04 that packs every operand; float32.
 */
#include <math.h>
#include <string.h>

#include "problem.h"
#include "units/exp_rows.h"
#include "units/vector.h"

#define VECTORS      4
#define PANEL        (VECTORS * LANES)
#define MOST_PANEL   (VECTORS * MOST_LANES)
#define KEYS         120            /* of a block */
#define QUERIES      192            /* of a block: whole panels */
#define S_ROW        (QUERIES + 16) /* no power of 2: rows would fight for L1 */
#define STRIP        1              /* no strips yet: one key */
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

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

/* --- where things lie --------------------------------------------------------------------------*/

/* The sizes that `panel` columns and strips of `strip` keys make, with all kv heads in work. Parts
 * follow from the shape alone, or more threads would give other bits. */
static void size_plan(Plan *plan, int64_t kv_heads, int64_t panel, int64_t strip)
{
    plan->strip = strip;
    plan->rows = round_up(round_up(plan->Nq, strip), panel);
    plan->channels = round_up(plan->d, panel);
    plan->parts = smaller((plan->Nk + KEYS - 1) / KEYS, (WANTED_TASKS + kv_heads - 1) / kv_heads);
    plan->slots = kv_heads;
}

static int64_t head_floats(const Plan *plan)
{
    return 2 * plan->rows * (plan->d + plan->channels + 1);
}

static int64_t block_floats(const Plan *plan)
{
    return 2 * round_up(KEYS * plan->d, 16) + KEYS * (3 * plan->channels + S_ROW) +
           plan->strip * S_ROW;
}

static int64_t plan_floats(const Plan *plan, int threads)
{
    return plan->slots * plan->group *
               (head_floats(plan) + plan->parts * plan->rows * plan->channels) +
           threads * block_floats(plan);
}

static void place_plan(Plan *plan, float *work)
{
    const int64_t heads = plan->slots * plan->group;
    plan->heads = work;
    plan->dQ = plan->heads + heads * head_floats(plan);
    plan->blocks = plan->dQ + heads * plan->parts * plan->rows * plan->channels;
}

/* Query head g of the kv head in a slot. */
static QueryHead query_head(const Plan *plan, int64_t slot, int64_t g)
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

static KeyBlock key_block(const Plan *plan, int thread)
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
static float *part_dQ(const Plan *plan, int64_t slot, int64_t part, int64_t g)
{
    return plan->dQ + ((slot * plan->parts + part) * plan->group + g) * plan->rows * plan->channels;
}

/* --- packing, and back -------------------------------------------------------------------------*/

/* Row r of [channels / PANEL][rows][PANEL]; from NULL: zeros. */
static void pack_piece(const float *from, int64_t d, int64_t rows, int64_t r, float *to)
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
static void pack_column(const float *from, int64_t d, int64_t i, int64_t width, float factor,
                        float *to)
{
    float *column = to + i / width * width * d + i % width;
    for (int64_t x = 0; x < d; x++)
        column[x * width] = from ? factor * from[x] : 0.0f;
}

/* Query i: Q, dO, O [d]. lse and Q_panels count in units of 1 / `unit`. A row without keys (lse is
 * -inf) gives nothing, whatever stands in its Q and dO. */
static void pack_query(const Plan *plan, const QueryHead *head, int64_t i, const float *Q,
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
static void pack_keys(const Plan *plan, KeyBlock *block, int64_t j, const float *K, const float *V,
                      int64_t ld)
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
static void store_keys(const Plan *plan, const KeyBlock *block, float scale, float *dK, float *dV,
                       int64_t ld)
{
    for (int64_t r = 0; r < block->count; r++)
        for (int64_t x = 0; x < plan->d; x++) {
            dK[r * ld + x] = scale * block->dK[r * plan->channels + x];
            dV[r * ld + x] = block->dV[r * plan->channels + x];
        }
}

/* dQ [d] of query i of head g = scale * the parts, first to last. */
static void add_parts(const Plan *plan, int64_t slot, int64_t g, int64_t i, float scale, float *dQ)
{
    for (int64_t x = 0; x < plan->d; x++) {
        float sum = 0.0f;
        for (int64_t part = 0; part < plan->parts; part++)
            sum += part_dQ(plan, slot, part, g)[i * plan->channels + x];
        dQ[x] = scale * sum;
    }
}

/* --- one row -----------------------------------------------------------------------------------*/

/* VECTORS vectors gain the sum of a[t * step] * b [steps][PANEL]. */
static inline void add_products(Vector acc[VECTORS], const float *a, int64_t step, const float *b,
                                int64_t steps)
{
    for (int64_t t = 0; t < steps; t++, b += PANEL)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            acc[v] += a[t * step] * load(b + v * LANES);
}

/* C [channels] += a times rows first .. first+steps-1 of pieces [channels / PANEL][rows][PANEL] */
static void add_rows(const float *a, int64_t step, const float *pieces, int64_t rows, int64_t first,
                     int64_t steps, float *C, int64_t channels)
{
    for (int64_t x = 0; x < channels; x += PANEL) {
        Vector acc[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            acc[v] = load(C + x + v * LANES);
        add_products(acc, a, step, pieces + x * rows + first * PANEL, steps);
        for (int v = 0; v < VECTORS; v++)
            store(C + x + v * LANES, acc[v]);
    }
}

/* S and dP of row r, columns start .. end-1 of the block of queries i ..; hidden is S = -inf. */
static void score_row(const KeyBlock *block, const QueryHead *head, int64_t d, int64_t r, int64_t i,
                      int64_t start, int64_t first, int64_t end)
{
    for (int64_t c = start; c < end; c += PANEL) {
        Vector S[VECTORS] = {{0}}, dP[VECTORS] = {{0}};
        add_products(S, block->K + r * d, 1, head->Q_panels + (i + c) * d, d);
        add_products(dP, block->V + r * d, 1, head->dO_panels + (i + c) * d, d);
        for (int v = 0; v < VECTORS; v++) {
            store(block->S + c + v * LANES, S[v]);
            store(block->dS + r * S_ROW + c + v * LANES, dP[v]);
        }
    }
    for (int64_t c = start; c < first; c++)
        block->S[c] = -INFINITY;
    for (int64_t c = end; c % PANEL; c++)
        block->S[c] = -INFINITY;
}

/* S becomes P, dP becomes dS. lse and delta [QUERIES] of the block of queries. */
static void update_row(float *S, float *dS, const float *lse, const float *delta, int64_t start,
                       int64_t end)
{
    for (int64_t c = start; c < end; c++)
        S[c] = S[c] > lse[c] ? 0.0f : S[c] - lse[c]; /* lse is rounded: P stays at most 1 */
    softmax_exp_row(S + start, S + start, end - start, 0.0f);
    for (int64_t c = start; c < end; c++)
        dS[c] = S[c] * (dS[c] - delta[c]);
}

/* Row r, key j = block->j + r, with queries i .. i+QUERIES-1: j - to .. j - from see it. */
static void visit_row(const Plan *plan, const KeyBlock *block, const QueryHead *head, int64_t r,
                      int64_t i)
{
    const int64_t j = block->j + r, from = j - plan->to - i, first = from > 0 ? from : 0;
    const int64_t end = smaller(smaller(j - plan->from + 1, plan->Nq) - i, QUERIES);
    const int64_t start = first / PANEL * PANEL;
    float *dS = block->dS + r * S_ROW;
    if (first >= end)
        return;
    score_row(block, head, plan->d, r, i, start, first, end);
    update_row(block->S, dS, head->lse + i, head->delta + i, start, round_up(end, PANEL));
    add_rows(block->S + first, 1, head->dO_pieces, plan->rows, i + first, end - first,
             block->dV + r * plan->channels, plan->channels);
    add_rows(dS + first, 1, head->Q_pieces, plan->rows, i + first, end - first,
             block->dK + r * plan->channels, plan->channels);
}

/* dQ of query i, row c of the block of queries, from the keys of the block that it sees. */
static void add_query(const Plan *plan, const KeyBlock *block, float *dQ, int64_t i, int64_t c)
{
    const int64_t from = i + plan->from - block->j, first = from > 0 ? from : 0;
    const int64_t end = smaller(i + plan->to + 1 - block->j, block->count);
    if (first < end)
        add_rows(block->dS + first * S_ROW + c, S_ROW, block->K_pieces, KEYS, first, end - first,
                 dQ + i * plan->channels, plan->channels);
}

/* --- one block of keys -------------------------------------------------------------------------*/

/* With all queries of one head; dQ [rows][channels]. */
static void visit_head(const Plan *plan, const KeyBlock *block, const QueryHead *head, float *dQ)
{
    const int64_t first = block->j - plan->to, last = block->j + block->count - 1;
    const int64_t end = smaller(last - plan->from + 1, plan->Nq);
    for (int64_t i = first > 0 ? first / QUERIES * QUERIES : 0; i < end; i += QUERIES) {
        for (int64_t r = 0; r < block->count; r++)
            visit_row(plan, block, head, r, i);
        for (int64_t c = 0; c < smaller(QUERIES, plan->Nq - i); c++)
            add_query(plan, block, dQ, i + c, c);
    }
}

/* --- all of it ---------------------------------------------------------------------------------*/

static Plan plan_of(const Problem *p, int64_t panel, int64_t strip)
{
    Plan plan = {.Nq = p->Nq, .Nk = p->Nk, .d = p->d, .from = p->from, .to = p->to};
    plan.group = p->H / p->Hkv;
    size_plan(&plan, p->B * p->Hkv, panel, strip);
    return plan;
}

/* Query i of head `head` (batch * H + h); rows past the last are zeros. */
static void pack_row(const Problem *p, const Plan *plan, int64_t head, int64_t i)
{
    const QueryHead to = query_head(plan, head / plan->group, head % plan->group);
    const int64_t at = query_row(p, (int)(head / p->H), (int)(head % p->H), i < p->Nq ? (int)i : 0);
    pack_query(plan, &to, i, (const float *)p->Q + at, (const float *)p->dO + at,
               (const float *)p->O + at, i < p->Nq ? p->lse[head * p->Nq + i] : -INFINITY, p->scale,
               1.0f);
}

/* Blocks part, part + parts, ... of the keys of a kv head (batch * Hkv + head). */
static void backward_part(const Problem *p, const Plan *plan, KeyBlock *block, int64_t kv,
                          int64_t part)
{
    const int64_t ld = p->Hkv * p->d;
    memset(part_dQ(plan, kv, part, 0), 0,
           (size_t)(plan->group * plan->rows * plan->channels) * sizeof(float));
    for (int64_t j = part * KEYS; j < p->Nk; j += plan->parts * KEYS) {
        const int64_t key = key_row(p, (int)(kv / p->Hkv), (int)(kv % p->Hkv), (int)j);
        pack_keys(plan, block, j, (const float *)p->K + key, (const float *)p->V + key, ld);
        for (int64_t g = 0; g < plan->group; g++) {
            const QueryHead head = query_head(plan, kv, g);
            visit_head(plan, block, &head, part_dQ(plan, kv, part, g));
        }
        store_keys(plan, block, p->scale, (float *)p->dK + key, (float *)p->dV + key, ld);
    }
}

static void gradients(const Problem *p)
{
    const int threads = p->threads;
    Plan plan = plan_of(p, PANEL, STRIP);
    const int64_t heads = p->B * p->H, tasks = p->B * p->Hkv * plan.parts;
    place_plan(&plan, p->work);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < heads * plan.rows; t++)
        pack_row(p, &plan, t / plan.rows, t % plan.rows);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        KeyBlock block = key_block(&plan, thread);
        for (int64_t t = thread; t < tasks; t += threads)
            backward_part(p, &plan, &block, t / plan.parts, t % plan.parts);
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < heads * p->Nq; t++) {
        const int64_t head = t / p->Nq, i = t % p->Nq;
        add_parts(&plan, head / plan.group, head % plan.group, i, p->scale,
                  (float *)p->dQ + query_row(p, (int)(head / p->H), (int)(head % p->H), (int)i));
    }
}

/* Enough for the widest vectors. */
static int64_t work(const Problem *p, int backward)
{
    const Plan plan = plan_of(p, MOST_PANEL, STRIP);
    (void)backward;
    return (int64_t)sizeof(float) * plan_floats(&plan, p->threads);
}

static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){QUERIES, KEYS};
}

EACH_ISA(flash_backward_v2_packing, gradients, backward)

RUNG(flash_backward, v2_packing, "every operand laid out once, scores transposed", F32, NULL,
     backward, work, tiles, 0);
