/* SPDX-License-Identifier: MIT
 *
 * v3_register_tiles: v2_packing with a tile of sums in registers instead of one row.
 *
 * As in the forward pass: STRIP rows x 2 vectors are 12 sums (24 with AVX-512), enough to keep both
 * multiply-add units busy, and one vector from the cache serves STRIP rows. All five products of
 * the backward pass are such tiles; they differ in where the single numbers stand:
 *
 *     product          rows of the tile   numbers                        from one step to the next
 *     S^T, dP^T        keys               K, V of a strip, [d][STRIP]    STRIP
 *     dV, dK           keys               P, dS along their rows         1
 *     dQ               queries            dS down its columns            S_ROW
 *
 * So the unit of work is a strip of keys. Its keys are seen by different queries: what is hidden of
 * a tile gets P = 0, and dS = 0 up to the ends of the block of queries, where dQ takes strips of
 * queries, too.
 *
 * Prediction: three times as fast. Nothing waits for its own sum, and the traffic with the L2 cache
 * falls to a sixth.
 *
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 04 that brings tiles of sums in registers; float32.
 */
#include <math.h>
#include <string.h>

#include "problem.h"
#include "units/exp_rows.h"
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
static Span span_of_strip(const Plan *plan, const KeyBlock *block, int64_t r, int64_t i)
{
    const int64_t j = block->j + r, last = j + smaller(STRIP, block->count - r) - 1;
    const int64_t from = j - plan->to - i, first = from > 0 ? from : 0;
    const int64_t seen = smaller(smaller(last - plan->from + 1, plan->Nq) - i, QUERIES);
    return (Span){first, seen, first / PANEL * PANEL, round_up(seen > 0 ? seen : 0, PANEL)};
}

/* S and dP in the panels of the span. What is hidden becomes S = -inf; beside the panels dS is 0,
 * since add_strip reads a bit further. */
static void score_strip(const Plan *plan, const KeyBlock *block, const QueryHead *head, int64_t r,
                        int64_t i, Span at)
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
static void add_queries(const Plan *plan, const KeyBlock *block, const QueryHead *head, int64_t r,
                        int64_t i, Span at)
{
    const int64_t first = at.first, steps = at.seen - at.first;
    add_rows(block->S + first, S_ROW, 1, head->dO_pieces, plan->rows, i + first, steps,
             block->dV + r * plan->channels, plan->channels);
    add_rows(block->dS + r * S_ROW + first, S_ROW, 1, head->Q_pieces, plan->rows, i + first, steps,
             block->dK + r * plan->channels, plan->channels);
}

/* dQ of the strip of queries i .., columns c .. of the block of queries, from the keys of the block
 * that it sees anything of. */
static void add_strip(const Plan *plan, const KeyBlock *block, float *dQ, int64_t i, int64_t c)
{
    const int64_t from = i + plan->from - block->j, first = from > 0 ? from : 0;
    const int64_t end = smaller(i + STRIP - 1 + plan->to + 1 - block->j, block->count);
    if (first < end)
        add_rows(block->dS + first * S_ROW + c, 1, S_ROW, block->K_pieces, KEYS, first, end - first,
                 dQ + i * plan->channels, plan->channels);
}

/* --- one strip ---------------------------------------------------------------------------------*/

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

/* The strip from row r on, keys block->j + r .., with queries i .. i+QUERIES-1. */
static void visit_strip(const Plan *plan, const KeyBlock *block, const QueryHead *head, int64_t r,
                        int64_t i)
{
    const Span at = span_of_strip(plan, block, r, i);
    float *dS = block->dS + r * S_ROW;
    for (int row = 0; row < STRIP && at.first >= at.seen; row++)
        memset(dS + row * S_ROW, 0, QUERIES * sizeof *dS);
    if (at.first >= at.seen)
        return;
    score_strip(plan, block, head, r, i, at);
    for (int row = 0; row < STRIP; row++)
        update_row(block->S + row * S_ROW, dS + row * S_ROW, head->lse + i, head->delta + i,
                   at.start, at.end);
    add_queries(plan, block, head, r, i, at);
}

/* --- one block of keys -------------------------------------------------------------------------*/

/* With all queries of one head; dQ [rows][channels]. */
static void visit_head(const Plan *plan, const KeyBlock *block, const QueryHead *head, float *dQ)
{
    const int64_t first = block->j - plan->to, last = block->j + block->count - 1;
    const int64_t end = smaller(last - plan->from + 1, plan->Nq);
    for (int64_t i = first > 0 ? first / QUERIES * QUERIES : 0; i < end; i += QUERIES) {
        for (int64_t r = 0; r < block->count; r += STRIP)
            visit_strip(plan, block, head, r, i);
        for (int64_t c = 0; c < smaller(QUERIES, plan->Nq - i); c += STRIP)
            add_strip(plan, block, dQ, i + c, c);
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
    const Plan plan = plan_of(p, MOST_PANEL, MOST_STRIP);
    (void)backward;
    return (int64_t)sizeof(float) * plan_floats(&plan, p->threads);
}

static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){QUERIES, KEYS};
}

EACH_ISA(flash_backward_v3_register_tiles, gradients, backward)

RUNG(flash_backward, v3_register_tiles, "6 x 2 or 12 x 2 vectors of sums in registers", F32, NULL,
     backward, work, tiles, 0);
