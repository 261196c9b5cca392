/* SPDX-License-Identifier: MIT
 *
 * backward_run.c: the backward pass of the CPU library: v1's loops on packed operands, register
 * tiles and a vector exp, as the library of stage 03, for any mask, strides, segments and softcap.
 *
 * For a block of keys (dK, dV and the keys' packed copies stay in the L2 cache), for each query
 * head of the group and each block of queries:
 *
 *     for each strip of keys:
 *         for each panel of queries:   S^T = K Q^T, dP^T = V dO^T in registers, then to memory
 *         P^T = 2^(S^T - lse), dS^T = P^T * (dP^T - delta)
 *         for each panel of channels:  dV += P^T dO, dK += dS^T Q
 *     for each strip of queries, for each panel of channels:   dQ += dS K
 *
 * Scores are transposed: a row is a key. Then P^T and dS^T are walked along their rows for dV and
 * dK, as P is in the forward pass, and dS^T read down its columns is what dQ needs (see
 * backward_kernels.c). Nothing has to be turned round. lse and delta belong to columns now, so the
 * two lines of arithmetic between the products are vector operations without a broadcast.
 *
 * The scale is applied to the finished sums dQ and dK: N d multiplications, not N^2.
 *
 * Masks: a block walks from the first query that sees any of its keys to the last (index_span.h of
 * stage 03), and each strip of keys has a span of columns (backward_mask.h). Outside of it nothing
 * is computed: the first two products round it up to vectors, the other three do not.
 *
 * Order of sums: keys are dealt out to parts as in v1, by the shape alone.
 *
 * Interface:
 * - flash_backward_library_cpu; flash_backward_block_cpu adds what a block of keys gives.
 * - flash_backward_simd_run, flash_backward_simd_workspace_bytes: both, in the caller's memory.
 */
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "alloc.h"
#include "attention/backward/backward_library.h"
#include "attention/forward/cpu/index_span.h"
#include "attn_pairs.h"
#include "backward_mask.h"
#include "backward_pack.h"
#include "tensor.h"

size_t flash_backward_simd_workspace_bytes(const AttnShape *shape, int threads)
{
    BackwardPlan plan;
    return backward_make_plan(&plan, shape, threads, NULL);
}

/* --- one strip of keys -------------------------------------------------------------------------*/

/* S^T and dP^T of strip s and its span, queries i .. of one block. A panel of which only one half
 * is visible is computed by half. */
static void score_strip(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                        const QueryHead *head, int64_t s, int64_t i)
{
    const int64_t d = args->shape.d, width = p->simd->panel, lanes = p->simd->lanes;
    const int64_t row = s * p->simd->strip, first = block->first[s], last = block->last[s];
    for (int64_t c = round_down(first, width); c < last; c += width) {
        const int64_t skip = first - c >= lanes ? lanes : 0;
        const int64_t cols = last - c > lanes ? width - skip : lanes, at = (i + c) * d + skip;
        const AttnTile kind =
            attn_tile_class(args->rule, p->ranges[(i + c) / width], block->ranges[s]);
        float *S = block->S + c + skip, *dP = block->dS + row * SIMD_ROW + c + skip;
        p->simd->scores(block->K_strips + row * d, head->Q_panels + at, d, S, cols);
        p->simd->scores(block->V_strips + row * d, head->dO_panels + at, d, dP, cols);
        if (args->softcap > 0.0f)
            p->simd->cap(S, block->slope + c + skip, args->softcap * (float)M_LOG2E, cols);
        if (args->mask || kind != ATTN_TILE_CLEAN)
            mask_tile(args, p, block, s, i + c + skip, cols, S);
    }
}

/* P^T and dS^T of strip s, and what they give to its dV and dK. */
static void add_strip(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                      const QueryHead *head, int64_t s, int64_t i)
{
    const int64_t width = p->simd->panel, strip = p->simd->strip, row = s * strip;
    const int64_t first = block->first[s], seen = block->last[s] - first;
    const int64_t from = round_down(first, p->simd->lanes);
    const int64_t to = round_up(block->last[s], p->simd->lanes);
    float *S = block->S, *dS = block->dS + row * SIMD_ROW;
    p->backward->gradients(S + from, dS + from, head->lse + i + from, head->delta + i + from,
                           args->softcap > 0.0f ? block->slope + from : NULL, to - from);
    for (int64_t x = 0; x < p->channels; x += width) {
        const int64_t piece = x * p->rows + (i + first) * width;
        float *dV = block->dV + row * p->channels + x, *dK = block->dK + row * p->channels + x;
        p->backward->add_rows(S + first, head->dO_pieces + piece, seen, block->begun[s], dV,
                              p->channels);
        p->backward->add_rows(dS + first, head->Q_pieces + piece, seen, block->begun[s], dK,
                              p->channels);
    }
    block->begun[s] = 1;
    /* add_queries takes the columns by strips: what they reach of beyond the span is zero */
    for (int64_t r = 0; r < strip; r++) {
        const int64_t start = round_down(first, strip), end = round_up(block->last[s], strip);
        for (int64_t c = start; c < from; c++)
            dS[r * SIMD_ROW + c] = 0.0f;
        for (int64_t c = to; c < end; c++)
            dS[r * SIMD_ROW + c] = 0.0f;
    }
}

/* --- one block of keys -------------------------------------------------------------------------*/

/* dQ [queries][channels] = begun * dQ + dS K: for each strip of queries, for each run of key strips
 * that see any of it. */
static void add_queries(const BackwardPlan *p, const KeyBlock *block, int64_t cols, int begun,
                        float *dQ)
{
    const int64_t strip = p->simd->strip, width = p->simd->panel;
    const int64_t strips = (block->count + strip - 1) / strip;
    for (int64_t c = 0; c < cols; c += strip) {
        float *dQ_c = dQ + c * p->channels;
        int there = begun; /* is there anything in dQ_c? */
        int64_t from = 0, to = 0;
        while (from < strips) {
            while (to < strips && block->first[to] < c + strip && block->last[to] > c)
                to++;
            const int64_t steps = smaller(to * strip, block->count) - from * strip;
            for (int64_t x = 0; from < to && x < p->channels; x += width)
                p->backward->add_columns(block->dS + from * strip * SIMD_ROW + c,
                                         block->K_pieces + x * p->keys + from * strip * width,
                                         steps, there, dQ_c + x, p->channels);
            there |= from < to;
            from = ++to;
        }
        if (!there)
            memset(dQ_c, 0, (size_t)(strip * p->channels) * sizeof *dQ_c);
    }
}

/* A finished row: added to the caller's sums or, in a whole pass, rounded to where it belongs. */
static void finish_row(const Tensor *t, float *sums, int64_t sums_row, int64_t b, int64_t row,
                       int64_t h, int64_t d, float factor, float *from)
{
    for (int64_t x = 0; x < d; x++)
        from[x] *= factor;
    for (int64_t x = 0; sums && x < d; x++)
        sums[sums_row * d + x] += from[x];
    if (sums)
        return;
    flash_fetch_row(t, b, h, row + ROWS_AHEAD);
    tensor_write_row(t, b, row, h, from);
}

/* Nobody else has these keys: their dK and dV are done. */
static void finish_keys(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                        FlashSums sums, int64_t b, int64_t h_kv)
{
    const AttnShape *n = &args->shape;
    for (int64_t c = 0; c < block->count; c++) {
        const int64_t j = block->j + c, row = (b * n->Nk + j) * n->Hkv + h_kv;
        float *dK = block->dK + c * p->channels, *dV = block->dV + c * p->channels;
        if (!block->begun[c / p->simd->strip]) {
            memset(dK, 0, (size_t)n->d * sizeof *dK);
            memset(dV, 0, (size_t)n->d * sizeof *dV);
        }
        finish_row(&args->dK, sums.dK, row, b, j, h_kv, n->d, args->scale, dK);
        finish_row(&args->dV, sums.dV, row, b, j, h_kv, n->d, 1.0f, dV);
    }
}

/* One block of keys with all queries of its group. */
static void visit_keys(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block, int64_t slot,
                       int64_t part)
{
    const AttnShape *n = &args->shape;
    const int begun = block->j != part * p->keys; /* else it is the part's first: dQ = 0 */
    const IndexSpan near = span_of_queries(args, block->j, block->count);
    const IndexSpan queries = begun ? near : (IndexSpan){0, n->Nq};
    for (int64_t g = 0; g < p->group; g++) {
        const QueryHead head = backward_query_head(p, n, slot, g);
        float *dQ = backward_part_dQ(p, slot, part, g);
        for (int64_t i = round_down(queries.first, p->queries); i < queries.last; i += p->queries) {
            int seen = 0;
            for (int64_t s = 0; s * p->simd->strip < block->count; s++) {
                find_span(args, p, block, s, i);
                if (block->first[s] < block->last[s]) {
                    score_strip(args, p, block, &head, s, i);
                    add_strip(args, p, block, &head, s, i);
                    seen = 1;
                }
            }
            if (seen || !begun)
                add_queries(p, block, smaller(p->queries, n->Nq - i), begun, dQ + i * p->channels);
        }
    }
}

/* --- who does what -----------------------------------------------------------------------------*/

static void pack_panel(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                       const float *delta, int64_t kv, int64_t slot, int64_t t)
{
    const AttnShape *n = &args->shape;
    const int64_t panels = p->rows / p->simd->panel, g = t / panels;
    const QueryHead head = backward_query_head(p, n, slot, g);
    backward_pack_queries(args, p, delta, block->copy, &head, kv / n->Hkv,
                          kv % n->Hkv * p->group + g, t % panels * p->simd->panel);
}

static void do_part(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block, FlashSums sums,
                    int64_t kv, int64_t slot, int64_t part)
{
    const AttnShape *n = &args->shape;
    for (int64_t j = part * p->keys; j < n->Nk; j += p->parts * p->keys) {
        backward_pack_keys(args, p, block, kv / n->Hkv, kv % n->Hkv, j);
        visit_keys(args, p, block, slot, part);
        finish_keys(args, p, block, sums, kv / n->Hkv, kv % n->Hkv);
    }
}

/* dQ of one query row = scale * the parts, first to last. */
static void add_parts(const AttnArgs *args, const BackwardPlan *p, FlashSums sums, int64_t kv,
                      int64_t slot, int64_t t)
{
    const AttnShape *n = &args->shape;
    const int64_t g = t / n->Nq, i = t % n->Nq, b = kv / n->Hkv, h = kv % n->Hkv * p->group + g;
    float *dQ = backward_part_dQ(p, slot, 0, g) + i * p->channels;
    for (int64_t part = 1; part < p->parts; part++) {
        const float *from = backward_part_dQ(p, slot, part, g) + i * p->channels;
        for (int64_t x = 0; x < n->d; x++)
            dQ[x] += from[x];
    }
    finish_row(&args->dQ, sums.dQ, (b * n->Nq + i) * n->H + h, b, i, h, n->d, args->scale, dQ);
}

/* Kv heads divide evenly among the threads: each does its own from packing to the sum of the parts,
 * and what it packed is still in its cache. */
static void own_heads(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                      const float *delta, FlashSums sums, int64_t slot)
{
    const AttnShape *n = &args->shape;
    for (int64_t kv = slot; kv < n->B * n->Hkv; kv += p->slots) {
        for (int64_t t = 0; t < p->group * p->rows / p->simd->panel; t++)
            pack_panel(args, p, block, delta, kv, slot, t);
        for (int64_t part = 0; part < p->parts; part++)
            do_part(args, p, block, sums, kv, slot, part);
        for (int64_t t = 0; t < p->group * n->Nq; t++)
            add_parts(args, p, sums, kv, slot, t);
    }
}

/* They do not: all threads pack all heads, share the parts, and add them up. */
static void shared_heads(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                         const float *delta, FlashSums sums)
{
    const AttnShape *n = &args->shape;
    const int64_t kv_heads = n->B * n->Hkv, panels = p->group * p->rows / p->simd->panel;
    const int64_t rows = p->group * n->Nq;
#pragma omp for schedule(static)
    for (int64_t t = 0; t < kv_heads * panels; t++)
        pack_panel(args, p, block, delta, t / panels, t / panels, t % panels);
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < kv_heads * p->parts; t++)
        do_part(args, p, block, sums, t / p->parts, t / p->parts, t % p->parts);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < kv_heads * rows; t++)
        add_parts(args, p, sums, t / rows, t / rows, t % rows);
}

AttnStatus flash_backward_simd_run(const AttnArgs *args, const float *delta, FlashSums sums,
                                   void *workspace)
{
    const AttnShape *n = &args->shape;
    const int threads = args->threads;
    BackwardPlan plan;
    backward_make_plan(&plan, n, threads, workspace);
    flash_describe_panels(args->positions_q, n->Nq, plan.simd->panel, plan.ranges, plan.straight);
    delta = sums.dQ ? delta : NULL; /* a whole pass makes its own */
    if (threads == 1) {             /* OpenMP allocates memory for a region, even of one thread */
        KeyBlock block;
        backward_place_block(&block, &plan, n->d, 0);
        own_heads(args, &plan, &block, delta, sums, 0);
        return ATTN_OK;
    }
#pragma omp parallel num_threads(threads)
    {
        int thread = 0, team = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num();
        team = omp_get_num_threads();
#endif
        KeyBlock block;
        backward_place_block(&block, &plan, n->d, thread);
        if (plan.slots != threads)
            shared_heads(args, &plan, &block, delta, sums);
        else /* a team may be smaller than asked for */
            for (int slot = thread; slot < threads; slot += team)
                own_heads(args, &plan, &block, delta, sums, slot);
    }
    return ATTN_OK;
}

AttnStatus flash_backward_block_cpu(const AttnArgs *args, const float *delta, FlashSums sums)
{
    void *workspace =
        workspace_alloc(flash_backward_simd_workspace_bytes(&args->shape, args->threads));
    AttnStatus status;
    if (!workspace)
        return ATTN_NO_MEMORY;
    status = flash_backward_simd_run(args, delta, sums, workspace);
    workspace_free(workspace);
    return status;
}

AttnStatus flash_backward_library_cpu(const AttnArgs *args)
{
    return flash_backward_block_cpu(args, NULL, (FlashSums){NULL, NULL, NULL});
}

/* For the byte model: a tile is a block of keys, whose operands and sums stay in the L2 cache, with
 * a block of queries. */
FlashTiles flash_backward_tiles_library_cpu(const AttnArgs *args)
{
    FlashTiles tiles;
    BackwardPlan plan;
    backward_make_plan(&plan, &args->shape, 1, NULL);
    tiles = flash_tiles_of(&args->shape, plan.queries, plan.keys);
    tiles.splits = plan.parts;
    return tiles;
}
