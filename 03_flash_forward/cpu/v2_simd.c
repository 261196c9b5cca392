/* SPDX-License-Identifier: MIT
 *
 * v2_simd: v1's loops on packed operands, register tiles and a vector exp.
 *
 * The two products of attention have an inner length of d = 64 and an output width of d: thin
 * matrices, for which a BLAS call spends much of its time on copying operands into its own layout,
 * again for every tile. Here K and V of a kv head are laid out once, for all tiles of queries and
 * all query heads that share them (simd_pack.c). Then, for a block of queries:
 *
 *     for each block of SIMD_KEYS keys, for each strip of rows:
 *         for each panel of keys:       S tile in registers, then to memory; hide what is masked
 *         m_new, alpha, P = 2^(S - m_new), l
 *         for each panel of channels:   O = alpha O + P V, in registers
 *
 * A strip is as many rows as a register tile has (simd_kernels.c). Its S, 14 KiB, stays in L1; the
 * key block stays in L2 while all strips of the block use it. Logarithms are to base 2:
 * log2(e) * scale is multiplied into Q once, and 2^x needs no multiplication by log2(e) for each
 * score.
 *
 * Masks: a block walks from the first key that any of its queries sees to the last (index_span.h).
 * In there each strip has a span of columns in which it sees anything; what is outside is neither
 * computed nor multiplied with V. Under a causal mask the span ends at the strip's last query: the
 * product Q K^T rounds that up to a vector, the product P V does not. Inside, attn_tile_class says
 * which tiles have hidden pairs.
 *
 * Interface:
 * - flash_forward_v2_simd; flash_block_cpu resumes from (O, lse).
 * - flash_simd_run, flash_simd_workspace_bytes: both, in the caller's memory. flash_simd_isa.
 * Threads share blocks of queries of all heads; a result does not depend on their number.
 */
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "alloc.h"
#include "attn_config.h"
#include "exp.h"
#include "flash_forward.h"
#include "index_span.h"
#include "naive.h"
#include "simd_mask.h"
#include "simd_pack.h"
#include "tensor.h"

#define LN2 0x1.62e43p-1f

static const FlashSimd *choose_simd(void)
{
#ifdef HAVE_ISA_AVX512
    if (strcmp(exp_isa(), "avx512") == 0)
        return &flash_simd_avx512;
#endif
#ifdef HAVE_ISA_AVX2
    if (strcmp(exp_isa(), "portable") != 0)
        return &flash_simd_avx2;
#endif
    return &flash_simd_portable;
}

const char *flash_simd_isa(void)
{
    return choose_simd()->name;
}

size_t flash_simd_workspace_bytes(const AttnShape *shape, int threads)
{
    Plan plan;
    return flash_make_plan(&plan, choose_simd(), shape, threads, NULL);
}

/* --- masks -------------------------------------------------------------------------------------*/

/* Hides pairs of S [strip][SIMD_KEYS]: `rows` rows from row `first` of the block (query i) on, the
 * first `width` columns of the panel of keys. */
static void mask_tile(const AttnArgs *args, const Plan *p, const Block *block, int64_t i,
                      int64_t first, int64_t rows, int64_t panel, int64_t width, float *S)
{
    int64_t j = panel * p->simd->panel, cols = smaller(width, args->shape.Nk - j);
    int usual = !args->mask && p->straight[panel]; /* what a row sees is an interval of columns */
    hide_intervals(p->simd, args->rule, block->positions + first, usual ? rows : 0,
                   p->ranges[panel], cols, width, S);
    if (!usual)
        naive_mask_rows(args, i + first, rows, j, cols, S, SIMD_KEYS);
}

/* Columns first .. last-1 of the key block are all that strip s can see anything of; first starts a
 * panel. */
typedef struct Span {
    int64_t first, last;
} Span;

static Span find_span(const AttnArgs *args, const Plan *p, const Block *block, int64_t s, int64_t j)
{
    int64_t width = p->simd->panel, first = 0, last = smaller(SIMD_KEYS, p->keys - j) / width;
    const AttnRange *ranges = p->ranges + j / width, *queries = &block->ranges[s];
    Span span = {0, 0};
    while (first < last && attn_tile_class(args->rule, *queries, ranges[first]) == ATTN_TILE_SKIP)
        first++;
    while (first < last &&
           attn_tile_class(args->rule, *queries, ranges[last - 1]) == ATTN_TILE_SKIP)
        last--;
    if (first == last)
        return span;
    span.first = first * width;
    span.last = smaller(last * width, args->shape.Nk - j);
    /* causal: the last panel ends at the position of the strip's last query */
    if (args->rule.right >= 0 && p->straight[j / width + last - 1] && queries->sequence >= 0)
        span.last = smaller(span.last, (last - 1) * width + queries->max + args->rule.right + 1 -
                                           ranges[last - 1].min);
    return span;
}

/* --- one block of queries ----------------------------------------------------------------------*/

/* S of strip s and the span of the key block j .., masked. A panel of which only the first half is
 * visible is computed by half. */
static void score_strip(const AttnArgs *args, const Plan *p, const Block *block,
                        const float *K_head, int64_t i, int64_t s, int64_t j, Span span)
{
    int64_t d = args->shape.d, width = p->simd->panel, strip = p->simd->strip;
    int64_t row = s * strip, rows = smaller(strip, args->shape.Nq - i - row);
    for (int64_t c = span.first; c < span.last; c += width) {
        int64_t panel = (j + c) / width, cols = span.last - c > p->simd->lanes ? width : width / 2;
        float *S = block->S + c - span.first;
        p->simd->scores(block->Q_i + row * d, K_head + (j + c) * d, d, S, cols);
        if (args->softcap > 0.0f)
            p->simd->cap(S, NULL, args->softcap * LOG2E, cols);
        if (args->mask || j + c + cols > args->shape.Nk ||
            attn_tile_class(args->rule, block->ranges[s], p->ranges[panel]) != ATTN_TILE_CLEAN)
            mask_tile(args, p, block, i, row, rows, panel, cols, S);
    }
}

static void start_block(const AttnArgs *args, const Plan *p, Block *block, const float *O_state,
                        int64_t b, int64_t h, int64_t i, int64_t rows)
{
    const AttnShape *n = &args->shape;
    int64_t strip = p->simd->strip, padded = round_up(rows, strip);
    flash_pack_queries(args, p, block, b, h, i, rows);
    memset(block->O_i, 0, (size_t)(padded * p->channels) * sizeof(float));
    memset(block->l_i, 0, (size_t)(padded * p->simd->lanes) * sizeof(float));
    for (int64_t r = 0; r < padded + SIMD_MAX_LANES; r++)
        block->m_i[r] = -INFINITY;
    for (int64_t r = 0; r < rows; r++)
        block->positions[r] = attn_position(args->positions_q, i + r);
    for (int64_t s = 0; s * strip < rows; s++)
        block->ranges[s] =
            attn_range(args->positions_q, i + s * strip, smaller(strip, rows - s * strip));
    for (int64_t r = 0; O_state && r < rows; r++) { /* resume: m = lse, l = 1 */
        float lse = args->lse[(b * n->H + h) * n->Nq + i + r];
        block->m_i[r] = lse * LOG2E;
        block->l_i[r * p->simd->lanes] = lse == -INFINITY ? 0.0f : 1.0f;
        memcpy(block->O_i + r * p->channels, O_state + ((b * n->Nq + i + r) * n->H + h) * n->d,
               (size_t)n->d * sizeof(float));
    }
}

/* Divides by l and brings a strip to where it belongs; 16-bit tensors by way of the copy. */
static void store_strip(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                        int64_t b, int64_t h, int64_t i, int64_t first, int64_t count)
{
    const AttnShape *n = &args->shape;
    const Tensor *O = &args->O;
    float l[SIMD_MAX_STRIP + SIMD_MAX_LANES], *to = block->copy;
    float *lse = args->lse + (b * n->H + h) * n->Nq + i + first;
    int64_t ld = n->d;
    if (O_state) {
        to = O_state + ((b * n->Nq + i + first) * n->H + h) * n->d;
        ld = n->H * n->d;
    } else if (O->dtype == ATTN_F32) {
        to = (float *)O->data + tensor_offset(O, b, i + first, h);
        ld = O->stride[1];
    }
    p->simd->sums(block->l_i + first * p->simd->lanes, l);
    for (int64_t r = 0; r < count; r++) {
        lse[r] = l[r] == 0.0f ? -INFINITY : block->m_i[first + r] * LN2 + logf(l[r]);
        l[r] = l[r] == 0.0f ? 0.0f : 1.0f / l[r];
    }
    p->simd->scale_rows(block->O_i + first * p->channels, p->channels, l, count, n->d, to, ld);
    for (int64_t r = 0; r < count && to == block->copy; r++)
        tensor_write_row(O, b, i + first + r, h, to + r * ld);
}

static void finish_block(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                         int64_t b, int64_t h, int64_t i, int64_t rows)
{
    int64_t strip = p->simd->strip;
    for (int64_t r = 0; r < rows; r += strip) {
        for (int64_t ahead = r + strip; !O_state && ahead < smaller(r + 2 * strip, rows); ahead++)
            flash_fetch_row(&args->O, b, h, i + ahead);
        store_strip(args, p, block, O_state, b, h, i, r, smaller(strip, rows - r));
    }
}

static void attend_block(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                         int64_t b, int64_t h, int64_t i, int64_t slot)
{
    const AttnShape *n = &args->shape;
    int64_t strip = p->simd->strip, width = p->simd->panel;
    int64_t rows = smaller(p->rows, n->Nq - i), strips = (rows + strip - 1) / strip;
    const float *K_head = p->K_packed + slot * p->K_floats;
    const float *V_head = p->V_packed + slot * p->V_floats;
    const IndexSpan keys = span_of_keys(args, i, rows);

    start_block(args, p, block, O_state, b, h, i, rows);
    for (int64_t j = round_down(keys.first, SIMD_KEYS); j < keys.last; j += SIMD_KEYS)
        for (int64_t s = 0; s < strips; s++) {
            Span span = find_span(args, p, block, s, j);
            int64_t cols = span.last - span.first;
            if (cols == 0)
                continue;
            score_strip(args, p, block, K_head, i, s, j, span);
            p->simd->update(block->S, round_up(cols, p->simd->lanes), block->m_i + s * strip,
                            block->l_i + s * strip * p->simd->lanes, block->alpha);
            for (int64_t x = 0; x < p->channels; x += width)
                p->simd->weighted_sum(block->S, cols,
                                      V_head + x * p->keys + (j + span.first) * width, block->alpha,
                                      block->O_i + s * strip * p->channels + x, p->channels);
        }
    finish_block(args, p, block, O_state, b, h, i, rows);
}

/* Kv heads divide evenly among the threads: each packs and computes its own, one after the other,
 * and the packed copy of a head is still in the cache when it is used. */
static void attend_own_heads(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                             int thread)
{
    const AttnShape *n = &args->shape;
    int64_t group = n->H / n->Hkv, panels = p->keys / p->simd->panel;
    for (int64_t kv = thread; kv < n->B * n->Hkv; kv += p->slots) {
        for (int64_t panel = 0; panel < panels; panel++)
            flash_pack_panel(args, p, block->copy, kv, thread, panel);
        for (int64_t h = kv % n->Hkv * group; h < (kv % n->Hkv + 1) * group; h++)
            for (int64_t i = 0; i < n->Nq; i += p->rows)
                attend_block(args, p, block, O_state, kv / n->Hkv, h, i, thread);
    }
}

/* They do not: all threads pack all heads, then share the blocks of queries, from the last block of
 * a head to its first: under a causal mask that is from much work to little, and the threads finish
 * together. Called by each thread of a parallel region. */
static void attend_shared_heads(const AttnArgs *args, const Plan *p, Block *block, float *O_state)
{
    const AttnShape *n = &args->shape;
    int64_t panels = p->keys / p->simd->panel, blocks = (n->Nq + p->rows - 1) / p->rows;
#pragma omp for schedule(static)
    for (int64_t t = 0; t < n->B * n->Hkv * panels; t++)
        flash_pack_panel(args, p, block->copy, t / panels, t / panels, t % panels);
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < n->B * n->H * blocks; t++) {
        int64_t b = t / (n->H * blocks), h = t / blocks % n->H;
        attend_block(args, p, block, O_state, b, h, (blocks - 1 - t % blocks) * p->rows,
                     b * n->Hkv + naive_kv_head(n, h));
    }
}

AttnStatus flash_simd_run(const AttnArgs *args, float *O_state, void *workspace)
{
    int threads = args->threads;
    Plan plan;
    flash_make_plan(&plan, choose_simd(), &args->shape, threads, workspace);
    flash_describe_panels(args->positions_k, args->shape.Nk, plan.simd->panel, plan.ranges,
                          plan.straight);

    if (threads == 1) { /* OpenMP allocates memory for a region, even of one thread */
        Block block;
        flash_place_block(&block, &plan, args->shape.d, plan.thread);
        attend_own_heads(args, &plan, &block, O_state, 0);
        return ATTN_OK;
    }
#pragma omp parallel num_threads(threads)
    {
        int thread = 0, team = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num();
        team = omp_get_num_threads();
#endif
        Block block;
        flash_place_block(&block, &plan, args->shape.d, plan.thread + thread * plan.thread_floats);
        if (plan.slots != threads)
            attend_shared_heads(args, &plan, &block, O_state);
        else /* a team may be smaller than asked for */
            for (int slot = thread; slot < threads; slot += team)
                attend_own_heads(args, &plan, &block, O_state, slot);
    }
    return ATTN_OK;
}

FlashTiles flash_tiles_v2_simd(const AttnArgs *args)
{
    Plan plan;
    flash_make_plan(&plan, choose_simd(), &args->shape, args->threads, NULL);
    return flash_tiles_of(&args->shape, plan.rows, plan.simd->panel);
}

AttnStatus flash_block_cpu(const AttnArgs *args, float *O_state)
{
    void *workspace = workspace_alloc(flash_simd_workspace_bytes(&args->shape, args->threads));
    AttnStatus status;
    if (!workspace)
        return ATTN_NO_MEMORY;
    status = flash_simd_run(args, O_state, workspace);
    workspace_free(workspace);
    return status;
}

AttnStatus flash_forward_v2_simd(const AttnArgs *args)
{
    return flash_block_cpu(args, NULL);
}
