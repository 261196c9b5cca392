/* SPDX-License-Identifier: MIT
 *
 * v2_simd: v1's loops on packed operands, register tiles and a vector exp, as v2_simd of stage 03.
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
 * Order of sums: keys are dealt out to parts as in v1, by the shape alone.
 *
 * Interface:
 * - flash_backward_v2_simd; flash_backward_block_cpu adds what a block of keys gives.
 * - flash_backward_simd_run, flash_backward_simd_workspace_bytes: that in the caller's memory.
 */
#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "alloc.h"
#include "backward_pack.h"
#include "naive.h"

size_t flash_backward_simd_workspace_bytes(const AttnShape *shape, int threads)
{
    BackwardPlan plan;
    return backward_make_plan(&plan, shape, threads, NULL);
}

/* Hides pairs of S^T: `rows` keys from j on, `cols` queries from i on. Who may see whom is asked
 * with the roles exchanged: key minus query becomes query minus key, so left and right change. */
static void mask_tile(const AttnArgs *args, int64_t j, int64_t rows, int64_t i, int64_t cols,
                      float *S)
{
    AttnArgs swapped = *args;
    swapped.positions_q = args->positions_k;
    swapped.positions_k = args->positions_q;
    swapped.rule = (AttnRule){args->rule.right, args->rule.left};
    swapped.mask = NULL; /* [Nq][Nk]: asked here, since its rows are queries */
    naive_mask_rows(&swapped, j, rows, i, cols, S, SIMD_KEYS);
    for (int64_t r = 0; args->mask && r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            if (args->mask[(i + c) * args->shape.Nk + j + r])
                S[r * SIMD_KEYS + c] = -INFINITY;
}

/* S -> cap * tanh(S), in units of log2, and the derivative of that. */
static void cap_tile(const BackwardPlan *p, float *S, float *slope, float cap)
{
    for (int64_t r = 0; r < p->simd->strip; r++)
        for (int64_t c = r * SIMD_KEYS; c < r * SIMD_KEYS + p->simd->panel; c++) {
            const float t = tanhf(S[c]);
            S[c] = cap * LOG2E * t;
            slope[c] = 1.0f - t * t;
        }
}

/* S^T and dP^T of one strip of keys, queries i .. of one block: the span of columns that the strip
 * sees anything of. dP^T is zero outside, since the product with K does not know of spans. */
static void score_strip(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                        const QueryHead *head, int64_t s, int64_t i)
{
    const int64_t d = args->shape.d, width = p->simd->panel, row = s * p->simd->strip;
    const int64_t rows = smaller(p->simd->strip, block->count - row);
    float *dP = block->dS + row * SIMD_KEYS;
    int64_t first = 0, last = (smaller(p->queries, args->shape.Nq - i) + width - 1) / width;
    const AttnRange *queries = p->ranges + i / width, *keys = &block->ranges[s];
    while (first < last && attn_tile_class(args->rule, queries[first], *keys) == ATTN_TILE_SKIP)
        first++;
    while (first < last && attn_tile_class(args->rule, queries[last - 1], *keys) == ATTN_TILE_SKIP)
        last--;
    block->first[s] = first * width;
    block->last[s] = last * width;
    for (int64_t c = first * width; c < last * width; c += width) {
        const int64_t cols = smaller(width, args->shape.Nq - i - c);
        float *S = block->S + c;
        p->simd->scores(block->K_strips + row * d, head->Q_panels + (i + c) * d, d, S, width);
        p->simd->scores(block->V_strips + row * d, head->dO_panels + (i + c) * d, d, dP + c, width);
        if (args->softcap > 0.0f)
            cap_tile(p, S, block->slope + c, args->softcap);
        if (args->mask || attn_tile_class(args->rule, queries[c / width], *keys) != ATTN_TILE_CLEAN)
            mask_tile(args, block->j + row, rows, i + c, cols, S);
    }
    for (int64_t r = 0; r < rows && last * width - first * width < p->queries; r++) {
        memset(dP + r * SIMD_KEYS, 0, (size_t)(first * width) * sizeof *dP);
        memset(dP + r * SIMD_KEYS + last * width, 0,
               (size_t)(p->queries - last * width) * sizeof *dP);
    }
}

/* P^T and dS^T of one strip, and what they give to its dV and dK. */
static void add_strip(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                      const QueryHead *head, int64_t s, int64_t i)
{
    const int64_t width = p->simd->panel, strip = p->simd->strip, row = s * strip;
    const int64_t first = block->first[s], cols = block->last[s] - first;
    const int64_t seen = smaller(cols, args->shape.Nq - i - first);
    float *S = block->S + first, *dS = block->dS + row * SIMD_KEYS + first;
    p->backward->gradients(S, dS, head->lse + i + first, head->delta + i + first, cols);
    for (int64_t r = 0; args->softcap > 0.0f && r < strip; r++)
        for (int64_t c = r * SIMD_KEYS; c < r * SIMD_KEYS + cols; c++)
            dS[c] *= block->slope[first + c];
    for (int64_t x = 0; x < p->channels; x += width) {
        const int64_t piece = x * p->rows + (i + first) * width;
        float *dV = block->dV + row * p->channels + x, *dK = block->dK + row * p->channels + x;
        p->simd->weighted_sum(S, seen, head->dO_pieces + piece, block->ones, dV, p->channels);
        p->simd->weighted_sum(dS, seen, head->Q_pieces + piece, block->ones, dK, p->channels);
    }
}

/* dQ [rows][channels] of queries i .. += dS K, for each strip of queries over the keys from the
 * first to the last strip that sees any of it. */
static void add_queries(const BackwardPlan *p, const KeyBlock *block, int64_t Nq, int64_t i,
                        float *dQ)
{
    const int64_t strip = p->simd->strip, width = p->simd->panel;
    const int64_t strips = (block->count + strip - 1) / strip;
    for (int64_t c = 0; c < smaller(p->queries, Nq - i); c += strip) {
        int64_t from = 0, to = strips;
        while (from < to && (block->first[from] >= c + strip || block->last[from] <= c))
            from++;
        while (from < to && (block->first[to - 1] >= c + strip || block->last[to - 1] <= c))
            to--;
        const int64_t steps = smaller(to * strip, block->count) - from * strip;
        for (int64_t x = 0; from < to && x < p->channels; x += width)
            p->backward->add_product(block->dS + from * strip * SIMD_KEYS + c,
                                     block->K_pieces + x * BLOCK_KEYS + from * strip * width, steps,
                                     dQ + (i + c) * p->channels + x, p->channels);
    }
}

/* One block of keys with all queries of its group. */
static void visit_keys(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block, FlashSums sums,
                       int64_t b, int64_t h_kv, int64_t part)
{
    const AttnShape *n = &args->shape;
    const int64_t d = n->d, group = n->H / n->Hkv;
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++) {
        const QueryHead head = backward_query_head(p, n, b, h);
        float *dQ = backward_part_dQ(p, n, b, h, part);
        for (int64_t i = 0; i < n->Nq; i += p->queries) {
            for (int64_t s = 0; s * p->simd->strip < block->count; s++) {
                score_strip(args, p, block, &head, s, i);
                if (block->first[s] < block->last[s])
                    add_strip(args, p, block, &head, s, i);
            }
            add_queries(p, block, n->Nq, i, dQ);
        }
    }
    for (int64_t c = 0; c < block->count; c++) { /* nobody else has these keys */
        const int64_t to = ((b * n->Nk + block->j + c) * n->Hkv + h_kv) * d;
        for (int64_t x = 0; x < d; x++) {
            sums.dK[to + x] += args->scale * block->dK[c * p->channels + x];
            sums.dV[to + x] += block->dV[c * p->channels + x];
        }
    }
}

static void backward_part(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block,
                          FlashSums sums, int64_t b, int64_t h_kv, int64_t part)
{
    const AttnShape *n = &args->shape;
    const int64_t group = n->H / n->Hkv;
    memset(backward_part_dQ(p, n, b, h_kv * group, part), 0,
           (size_t)(group * p->rows * p->channels) * sizeof(float));
    for (int64_t j = part * BLOCK_KEYS; j < n->Nk; j += p->parts * BLOCK_KEYS) {
        backward_pack_keys(args, p, block, b, h_kv, j);
        visit_keys(args, p, block, sums, b, h_kv, part);
    }
}

/* dQ of one query row += scale * the parts, first to last. */
static void add_parts(const AttnArgs *args, const BackwardPlan *p, FlashSums sums, int64_t row)
{
    const AttnShape *n = &args->shape;
    const int64_t b = row / (n->H * n->Nq), h = row / n->Nq % n->H, i = row % n->Nq;
    float *dQ = sums.dQ + ((b * n->Nq + i) * n->H + h) * n->d;
    for (int64_t part = 0; part < p->parts; part++) {
        const float *from = backward_part_dQ(p, n, b, h, part) + i * p->channels;
        for (int64_t x = 0; x < n->d; x++)
            dQ[x] += args->scale * from[x];
    }
}

/* Called by each thread of a team, or by the only one. */
static void work(const AttnArgs *args, const BackwardPlan *p, const float *delta, FlashSums sums,
                 int thread)
{
    const AttnShape *n = &args->shape;
    const int64_t panels = p->rows / p->simd->panel;
    KeyBlock block;
    backward_place_block(&block, p, n->d, thread);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < n->B * n->H * panels; t++)
        backward_pack_queries(args, p, delta, block.copy, t / panels / n->H, t / panels % n->H,
                              t % panels * p->simd->panel);
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < n->B * n->Hkv * p->parts; t++)
        backward_part(args, p, &block, sums, t / p->parts / n->Hkv, t / p->parts % n->Hkv,
                      t % p->parts);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < n->B * n->H * n->Nq; row++)
        add_parts(args, p, sums, row);
}

AttnStatus flash_backward_simd_run(const AttnArgs *args, const float *delta, FlashSums sums,
                                   void *workspace)
{
    const int64_t Nq = args->shape.Nq;
    BackwardPlan plan;
    backward_make_plan(&plan, &args->shape, args->threads, workspace);
    for (int64_t i = 0; i < Nq; i += plan.simd->panel)
        plan.ranges[i / plan.simd->panel] =
            attn_range(args->positions_q, i, smaller(plan.simd->panel, Nq - i));
    if (args->threads == 1) { /* OpenMP allocates memory for a region, even of one thread */
        work(args, &plan, delta, sums, 0);
        return ATTN_OK;
    }
#pragma omp parallel num_threads(args->threads)
    {
        int thread = 0;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
        work(args, &plan, delta, sums, thread);
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

AttnStatus flash_backward_v2_simd(const AttnArgs *args)
{
    return flash_backward_by_block(args, flash_backward_block_cpu);
}
