/* SPDX-License-Identifier: MIT
 *
 * v4_exp2: v3_register_tiles with powers of 2 instead of e, and the arithmetic between the products
 * in one pass over vectors.
 *
 * P = exp(S - lse) in v3 is a loop, a call of units/exp_rows.h and another loop; the call serves
 * any argument. Here lse is known to be at least every score of its row, so 2^x for x <= 0 is
 * enough: log2(e) goes into the factor of Q and into lse, and P and dS are one loop over vectors,
 * which loads S, dP, lse and delta once and has 11 operations for 2^x.
 *
 * Prediction: there are 5 * d multiply-adds to a score, and one exponential. For d = 64 the softmax
 * falls from about a sixth of the time to a twentieth; d = 128 gains half of that.
 *
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 04 that brings powers of 2; float32.
 */
#include "problem.h"
#include "units/exp2_negative.h"
#include "units/gradient_strips.h"

/* --- one strip ---------------------------------------------------------------------------------*/

/* S becomes P, dP becomes dS. lse and delta [QUERIES] of the block of queries. */
static void update_row(float *S, float *dS, const float *lse, const float *delta, int64_t start,
                       int64_t end)
{
    for (int64_t c = start; c < end; c += LANES) {
        /* lse is rounded, and below a large S: P stays at most 1. NaN is second, and stays. */
        const Vector P = exp2_negative(-larger((Vector){0}, load(lse + c) - load(S + c)));
        store(S + c, P);
        store(dS + c, P * (load(dS + c) - load(delta + c)));
    }
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
               (float)M_LOG2E);
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

EACH_ISA(flash_backward_v4_exp2, gradients, backward)

RUNG(flash_backward, v4_exp2, "powers of 2, and P and dS in one pass over vectors", F32, NULL,
     backward, work, tiles, 0);
