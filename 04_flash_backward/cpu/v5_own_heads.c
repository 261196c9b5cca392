/* SPDX-License-Identifier: MIT
 *
 * v5_own_heads: v4_exp2 with another division of labour among threads.
 *
 * v4 packs all query heads, waits for all threads, computes, waits again and adds up dQ. A packed
 * head is four copies of N x d numbers, dQ a fifth: by the time a core needs what it packed, that
 * has left its cache. Where the kv heads divide evenly among the threads, a thread here packs the
 * query heads of one kv head, computes all of it and adds up its dQ, and takes the next kv head in
 * the same memory. Nobody waits before the end. Where they do not, all threads share packing, parts
 * and sums as in v4, but each takes the next part when it is free.
 *
 * Prediction: two or three per cent at N = 2048; memory falls from the copies of all heads to those
 * of one group of heads a thread.
 *
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 04 in which a thread packs what it computes; float32.
 */
#include "problem.h"
#include "units/exp2_negative.h"
#include "units/gradient_strips.h"
#include "units/threads.h"

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

/* --- who packs what ----------------------------------------------------------------------------*/

/* Kv heads that are in work at a time: one a thread, or all. */
static Plan plan_of(const Problem *p, int64_t panel, int64_t strip)
{
    const int kv_heads = p->B * p->Hkv;
    Plan plan = {.Nq = p->Nq, .Nk = p->Nk, .d = p->d, .from = p->from, .to = p->to};
    plan.group = p->H / p->Hkv;
    size_plan(&plan, kv_heads, panel, strip);
    plan.slots = kv_heads % p->threads == 0 ? p->threads : kv_heads;
    return plan;
}

/* Query i of head `head` (batch * H + h), whose kv head is in a slot; rows past the last are
 * zeros. */
static void pack_row(const Problem *p, const Plan *plan, int64_t slot, int64_t head, int64_t i)
{
    const QueryHead to = query_head(plan, slot, head % plan->group);
    const int64_t at = query_row(p, (int)(head / p->H), (int)(head % p->H), i < p->Nq ? (int)i : 0);
    pack_query(plan, &to, i, (const float *)p->Q + at, (const float *)p->dO + at,
               (const float *)p->O + at, i < p->Nq ? p->lse[head * p->Nq + i] : -INFINITY, p->scale,
               (float)M_LOG2E);
}

/* Blocks part, part + parts, ... of the keys of a kv head (batch * Hkv + head) in a slot. */
static void backward_part(const Problem *p, const Plan *plan, KeyBlock *block, int64_t kv,
                          int64_t slot, int64_t part)
{
    const int64_t ld = p->Hkv * p->d;
    memset(part_dQ(plan, slot, part, 0), 0,
           (size_t)(plan->group * plan->rows * plan->channels) * sizeof(float));
    for (int64_t j = part * KEYS; j < p->Nk; j += plan->parts * KEYS) {
        const int64_t key = key_row(p, (int)(kv / p->Hkv), (int)(kv % p->Hkv), (int)j);
        pack_keys(plan, block, j, (const float *)p->K + key, (const float *)p->V + key, ld);
        for (int64_t g = 0; g < plan->group; g++) {
            const QueryHead head = query_head(plan, slot, g);
            visit_head(plan, block, &head, part_dQ(plan, slot, part, g));
        }
        store_keys(plan, block, p->scale, (float *)p->dK + key, (float *)p->dV + key, ld);
    }
}

/* dQ of query i of the same head. */
static void finish_row(const Problem *p, const Plan *plan, int64_t slot, int64_t head, int64_t i)
{
    add_parts(plan, slot, head % plan->group, i, p->scale,
              (float *)p->dQ + query_row(p, (int)(head / p->H), (int)(head % p->H), (int)i));
}

/* Kv heads of one thread, one after the other, in one slot. */
static void own_heads(const Problem *p, const Plan *plan, KeyBlock *block, int64_t slot)
{
    for (int64_t kv = slot; kv < p->B * p->Hkv; kv += plan->slots) {
        const int64_t first = kv * plan->group; /* of its query heads */
        for (int64_t t = 0; t < plan->group * plan->rows; t++)
            pack_row(p, plan, slot, first + t / plan->rows, t % plan->rows);
        for (int64_t part = 0; part < plan->parts; part++)
            backward_part(p, plan, block, kv, slot, part);
        for (int64_t t = 0; t < plan->group * p->Nq; t++)
            finish_row(p, plan, slot, first + t / p->Nq, t % p->Nq);
    }
}

/* All threads of a team share all heads; each kv head has a slot. */
static void shared_heads(const Problem *p, const Plan *plan, KeyBlock *block)
{
#pragma omp for schedule(static)
    for (int64_t t = 0; t < p->B * p->H * plan->rows; t++)
        pack_row(p, plan, t / plan->rows / plan->group, t / plan->rows, t % plan->rows);
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < plan->slots * plan->parts; t++)
        backward_part(p, plan, block, t / plan->parts, t / plan->parts, t % plan->parts);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < (int64_t)p->B * p->H * p->Nq; t++)
        finish_row(p, plan, t / p->Nq / plan->group, t / p->Nq, t % p->Nq);
}

static void gradients(const Problem *p)
{
    const int threads = p->threads;
    Plan plan = plan_of(p, PANEL, STRIP);
    place_plan(&plan, p->work);
#pragma omp parallel num_threads(threads)
    {
        KeyBlock block = key_block(&plan, thread_number());
        if (plan.slots != threads)
            shared_heads(p, &plan, &block);
        else /* a team may be smaller than asked for */
            for (int thread = thread_number(); thread < threads; thread += team_size())
                own_heads(p, &plan, &block, thread);
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

EACH_ISA(flash_backward_v5_own_heads, gradients, backward)

RUNG(flash_backward, v5_own_heads, "each thread packs the heads that it computes", F32, NULL,
     backward, work, tiles, 0);
