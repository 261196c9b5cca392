/* SPDX-License-Identifier: MIT
 *
 * simd_run.c: the forward pass of the CPU library: v1's loops on packed operands, register tiles
 * and a vector exp, for any mask, strides, segments, softcap and state to resume from. The ladder
 * ../../cpu/v2 to v5 builds the plain case of it, one idea at a time.
 *
 * The two products of attention have an inner length of d = 64 and an output width of d: thin
 * matrices, for which a BLAS call spends much of its time on copying operands into its own layout,
 * again for every tile. Here K and V of a kv head are laid out once, for all tiles of queries and
 * all query heads that share them (simd_pack.c). Then, for a block of queries (simd_block.c):
 *
 *     for each block of SIMD_KEYS keys, for each strip of rows:
 *         for each panel of keys:       S tile in registers, then to memory; hide what is masked
 *         m_new, alpha, P = 2^(S - m_new), l
 *         for each panel of channels:   O = alpha O + P V, in registers
 *
 * Logarithms are to base 2: log2(e) * scale is multiplied into Q once, and 2^x needs no
 * multiplication by log2(e) for each score.
 *
 * This file shares the blocks out among threads. A block walks from the first key that any of its
 * queries sees to the last (index_span.h). In a narrow window no thread ever needs more keys at a
 * time than that, so they roll through a small buffer of its own:
 *
 *     packed      [ . . . 5 6 7 8 9 . . . ]      block of queries that sees keys 5 .. 9
 *     packed      [ . . . . . 7 8 9 a b . ]      the next one: two more panels, two are dead
 *     moved       [ 9 a b c d . . . . . . ]      the end is reached: back to the front
 *
 * Interface:
 * - flash_forward_library_cpu; flash_block_cpu resumes from (O, lse).
 * - flash_simd_run, flash_simd_workspace_bytes: both, in the caller's memory.
 *   flash_simd_resume: likewise, from a state that is not divided.
 * Threads share blocks of queries of all heads; a result does not depend on their number.
 */
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "alloc.h"
#include "attention/rows.h"
#include "attn_config.h"
#include "index_span.h"
#include "simd_block.h"
#include "units/vector.h"

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

size_t flash_simd_workspace_bytes(const AttnShape *shape, int threads)
{
    const AttnArgs args = {.shape = *shape, .rule = {-1, -1}, .threads = threads};
    Plan plan;
    return flash_make_plan(&plan, choose_simd(), &args, NULL);
}

/* --- whole heads are packed --------------------------------------------------------------------*/

static void attend_whole(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                         int64_t b, int64_t h, int64_t i, int64_t slot)
{
    const Keys keys = {p->K_packed + slot * p->K_floats, p->V_packed + slot * p->V_floats, 0};
    flash_attend_block(args, p, block, &keys, O_state, b, h, i, NULL);
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
            flash_pack_panel(args, p, block->copy, kv, thread, panel, panel);
        for (int64_t h = kv % n->Hkv * group; h < (kv % n->Hkv + 1) * group; h++)
            for (int64_t i = 0; i < n->Nq; i += p->rows)
                attend_whole(args, p, block, O_state, kv / n->Hkv, h, i, thread);
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
        flash_pack_panel(args, p, block->copy, t / panels, t / panels, t % panels, t % panels);
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < n->B * n->H * blocks; t++) {
        int64_t b = t / (n->H * blocks), h = t / blocks % n->H;
        attend_whole(args, p, block, O_state, b, h, (blocks - 1 - t % blocks) * p->rows,
                     b * n->Hkv + attn_kv_head(n, h));
    }
}

/* --- keys roll ---------------------------------------------------------------------------------*/

/* Panels first .. last-1 of a head are packed. */
typedef struct Roll {
    int64_t first, last;
} Roll;

static IndexSpan keys_of_block(const AttnArgs *args, const Plan *p, int64_t i)
{
    return span_of_keys(args, i, smaller(p->rows, args->shape.Nq - i));
}

/* Both ends of `seen` move upwards from block to block. */
static void roll_on(const AttnArgs *args, const Plan *p, Block *block, int64_t kv, int64_t slot,
                    IndexSpan seen, Roll *roll)
{
    int64_t width = p->simd->panel, room = p->capacity / width;
    int64_t first = seen.first / width, last = (seen.last + width - 1) / width;
    if (first >= roll->last) {
        *roll = (Roll){first, first};
    } else if (last - roll->first > room) {
        flash_move_panels(p, args->shape.d, slot, first - roll->first, roll->last - first);
        roll->first = first;
    }
    for (; roll->last < last; roll->last++)
        flash_pack_panel(args, p, block->copy, kv, slot, roll->last, roll->last - roll->first);
}

static NextBlock next_block(const AttnArgs *args, const Plan *p, int64_t kv, int64_t i,
                            int64_t packed)
{
    const AttnShape *n = &args->shape;
    const IndexSpan seen = keys_of_block(args, p, i);
    return (NextBlock){kv / n->Hkv, kv % n->Hkv * (n->H / n->Hkv), i,
                       packed > seen.first ? smaller(packed, seen.last) : seen.first, seen.last};
}

/* One block for the query heads that share its keys. After all of them comes `next`; before that,
 * the same queries of the next head, whose keys are packed already. */
static void attend_group(const AttnArgs *args, const Plan *p, Block *block, const Keys *keys,
                         float *O_state, int64_t kv, int64_t i, const NextBlock *next)
{
    const AttnShape *n = &args->shape;
    int64_t b = kv / n->Hkv, group = n->H / n->Hkv, h = kv % n->Hkv * group;
    for (int64_t g = 1; g <= group; g++, h++) {
        const NextBlock same = {b, h + 1, i, 0, 0};
        flash_attend_block(args, p, block, keys, O_state, b, h, i, g < group ? &same : next);
    }
}

/* Each thread has a run of the blocks t of all heads: neighbours need almost the same keys. Where
 * two runs meet, a window of keys is packed twice. */
static void attend_rolling(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                           int64_t slot)
{
    const AttnShape *n = &args->shape;
    int64_t blocks = (n->Nq + p->rows - 1) / p->rows, all = n->B * n->Hkv * blocks;
    int64_t t = all * slot / p->slots, end = all * (slot + 1) / p->slots, width = p->simd->panel;
    Keys keys = {p->K_packed + slot * p->K_floats, p->V_packed + slot * p->V_floats, 0};
    Roll roll = {0, 0};
    while (t < end) {
        int64_t kv = t / blocks, i = t % blocks * p->rows;
        NextBlock next;
        roll_on(args, p, block, kv, slot, keys_of_block(args, p, i), &roll);
        keys.first = roll.first * width;
        if (++t % blocks == 0) /* another head's keys */
            roll = (Roll){0, 0};
        if (t < end) {
            next = next_block(args, p, t / blocks, t % blocks * p->rows, roll.last * width);
            attend_group(args, p, block, &keys, O_state, kv, i, &next);
        } else {
            attend_group(args, p, block, &keys, O_state, kv, i, NULL);
        }
    }
}

/* --- all of it ---------------------------------------------------------------------------------*/

/* What belongs to one slot of as many as there are threads. */
static void attend_slot(const AttnArgs *args, const Plan *p, Block *block, float *O_state, int slot)
{
    if (p->rolls)
        attend_rolling(args, p, block, O_state, slot);
    else
        attend_own_heads(args, p, block, O_state, slot);
}

AttnStatus flash_simd_run(const AttnArgs *args, float *O_state, void *workspace)
{
    return flash_simd_resume(args, O_state, (FlashRows){NULL, NULL, NULL}, workspace);
}

AttnStatus flash_simd_resume(const AttnArgs *args, float *O_state, FlashRows rows, void *workspace)
{
    int threads = args->threads;
    Plan plan;
    flash_make_plan(&plan, choose_simd(), args, workspace);
    plan.earlier = rows;
    flash_describe_panels(args->positions_k, args->shape.Nk, plan.simd->panel, plan.ranges,
                          plan.straight);

    if (threads == 1) { /* OpenMP allocates memory for a region, even of one thread */
        Block block;
        flash_place_block(&block, &plan, args->shape.d, plan.thread);
        attend_slot(args, &plan, &block, O_state, 0);
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
                attend_slot(args, &plan, &block, O_state, slot);
    }
    return ATTN_OK;
}

FlashTiles flash_tiles_library_cpu(const AttnArgs *args)
{
    Plan plan;
    flash_make_plan(&plan, choose_simd(), args, NULL);
    return flash_tiles_of(&args->shape, plan.rows, plan.simd->panel);
}

AttnStatus flash_block_cpu(const AttnArgs *args, float *O_state)
{
    Plan plan;
    void *workspace = workspace_alloc(flash_make_plan(&plan, choose_simd(), args, NULL));
    AttnStatus status;
    if (!workspace)
        return ATTN_NO_MEMORY;
    status = flash_simd_run(args, O_state, workspace);
    workspace_free(workspace);
    return status;
}

AttnStatus flash_forward_library_cpu(const AttnArgs *args)
{
    return flash_block_cpu(args, NULL);
}
