/* SPDX-License-Identifier: MIT
 *
 * simd_pack.c: operands of the library, laid out in the order in which its loops read them.
 *
 * A thin product (64 numbers deep) cannot afford operands that lie scattered over memory: rows of
 * one head are H * d numbers apart. So each row is read once, and K and V of a kv head are laid out
 * once for all tiles of queries and all query heads that share them: 2 N d copies beside 4 N^2 d
 * operations.
 *
 * In a window it is not negligible: 2 N d copies beside 4 N w d operations, and a copy of
 * everything is written to memory and read again, when w + 1 keys and those of a block of queries
 * would do. So there the packed keys roll (simd_run.c), and the copy stays in the L2 cache.
 *
 * Interface: simd_pack.h.
 */
#include "simd_pack.h"
#include "attn_pairs.h"

#include <math.h>
#include <string.h>

#include "tensor.h"

/* Floats of each part of a block, in its order. */
enum { PART_Q, PART_O, PART_S, PART_L, PART_M, PART_ALPHA, PART_COPY, PARTS };

static int64_t block_parts(const Plan *p, int64_t d, int64_t at[PARTS])
{
    const int64_t size[PARTS] = {
        [PART_Q] = p->rows * d + SIMD_MAX_LANES, [PART_O] = p->rows * p->channels,
        [PART_S] = p->simd->strip * SIMD_ROW,    [PART_L] = p->rows * p->simd->lanes,
        [PART_M] = p->rows + SIMD_MAX_LANES,     [PART_ALPHA] = p->rows + SIMD_MAX_LANES,
        [PART_COPY] = p->simd->panel * d};
    return place_parts(size, PARTS, at);
}

void flash_place_block(Block *block, const Plan *p, int64_t d, float *base)
{
    int64_t at[PARTS];
    block_parts(p, d, at);
    block->Q_i = base + at[PART_Q];
    block->O_i = base + at[PART_O];
    block->S = base + at[PART_S];
    block->l_i = base + at[PART_L];
    block->m_i = base + at[PART_M];
    block->alpha = base + at[PART_ALPHA];
    block->copy = base + at[PART_COPY];
}

/* A block has as many strips as fit; where threads share the blocks, they are so small that each
 * thread gets about 16 of them: the last one to finish then keeps the others waiting for little. */
static int64_t block_strips(const Plan *p, const AttnShape *n, int threads)
{
    int64_t all = n->B * n->H * ((n->Nq + p->simd->strip - 1) / p->simd->strip);
    int64_t most = BLOCK_ROWS / p->simd->strip, share = all / (16 * threads);
    if (p->slots == threads || share > most)
        return most;
    return share < 1 ? 1 : share;
}

/* Keys that `rows` queries in a row meet, if the rule alone tells: a window that is finite on both
 * sides, positions that rise by 1. Else 0. */
static int64_t window_keys(const AttnArgs *args, int64_t rows)
{
    const AttnPositions q = args->positions_q, k = args->positions_k;
    const AttnRule rule = args->rule;
    const int64_t Nk = args->shape.Nk;
    if (rule.left < 0 || rule.right < 0 || rule.left >= Nk || rule.right >= Nk || q.count != 1 ||
        k.count != 1 || q.segments->stride != 1 || k.segments->stride != 1)
        return 0;
    return rule.left + rule.right + rows;
}

/* Do rows of O leave the caches before anybody reads them, and are they whole lines? 16-bit rows
 * are made from float32 ones that have to stay near. */
static int leaves_caches(const Tensor *O)
{
    const int64_t *n = O->shape, *ld = O->stride;
    return O->dtype == ATTN_F32 && n[0] * n[1] * n[2] * n[3] >= PAST_CACHES / 4 &&
           (ld[0] | ld[1] | ld[2] | n[3]) % 16 == 0 && (uintptr_t)O->data % 64 == 0;
}

/* Whether a window is narrow decides in which order a row's keys are added up, so it must not
 * depend on the number of threads. Whether keys roll decides nothing but where they lie. A slot has
 * room for two windows: in the second half keys are packed, then they are moved to the first. */
static void plan_window(Plan *p, const AttnArgs *args)
{
    const int64_t most = window_keys(args, BLOCK_ROWS), width = p->simd->panel;
    const int64_t row = (args->shape.d + p->channels) * (int64_t)sizeof(float);
    const int64_t room = 2 * (round_up(window_keys(args, p->rows), width) + width);
    p->narrow = most > 0 && most < args->shape.Nk && most * row <= WINDOW_BYTES;
    p->rolls = p->narrow && room * args->threads <= p->keys * p->slots;
    if (p->rolls) {
        p->slots = args->threads;
        p->capacity = room;
    }
}

size_t flash_make_plan(Plan *p, const FlashSimd *simd, const AttnArgs *args, char *workspace)
{
    const AttnShape *n = &args->shape;
    const int threads = args->threads;
    int64_t panels = (n->Nk + simd->panel - 1) / simd->panel, kv_heads = n->B * n->Hkv;
    int64_t at[PARTS];
    size_t bytes[5], sum = 0;
    p->simd = simd;
    p->slots = kv_heads % threads == 0 ? threads : kv_heads;
    p->rows = block_strips(p, n, threads) * simd->strip;
    p->keys = p->capacity = panels * simd->panel;
    p->channels = round_up(n->d, simd->panel);
    p->O_past_caches = leaves_caches(&args->O);
    plan_window(p, args);
    p->K_floats = round_up(p->capacity * n->d, 16);
    p->V_floats = round_up(p->capacity * p->channels, 16);
    p->thread_floats = block_parts(p, n->d, at);
    bytes[0] = (size_t)(p->slots * p->K_floats + SIMD_MAX_LANES) * sizeof(float);
    bytes[1] = (size_t)(p->slots * p->V_floats) * sizeof(float);
    bytes[2] = (size_t)(threads * p->thread_floats) * sizeof(float);
    bytes[3] = (size_t)panels * sizeof(AttnRange);
    bytes[4] = (size_t)panels;
    if (workspace) {
        p->K_packed = (float *)workspace;
        p->V_packed = (float *)(workspace + bytes[0]);
        p->thread = (float *)(workspace + bytes[0] + bytes[1]);
        p->ranges = (AttnRange *)(workspace + bytes[0] + bytes[1] + bytes[2]);
        p->straight = (uint8_t *)(p->ranges + panels);
    }
    for (int part = 0; part < 5; part++)
        sum += bytes[part];
    return sum;
}

/* --- rows of the caller's tensors --------------------------------------------------------------*/

/* With many heads the rows of one head lie a page apart, and there the processor stops guessing
 * what will be read next. So it is told; without this the copies below cost ten per cent. */
void flash_fetch_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count)
{
    const int64_t element = (int64_t)dtype_size(t->dtype), bytes = t->shape[3] * element;
    const char *row = (const char *)t->data + tensor_offset(t, b, first, h) * element;
    for (int64_t r = smaller(count, t->shape[1] - first); r > 0; r--, row += t->stride[1] * element)
        for (int64_t line = 0; line < bytes; line += 64)
            __builtin_prefetch(row + line, 0, 2); /* into L2: it has room for more at a time */
}

void flash_fetch_row(const Tensor *t, int64_t b, int64_t h, int64_t row)
{
    flash_fetch_rows(t, b, h, row, 1);
}

static const float *rows_at(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                            float *copy, int64_t *ld)
{
    if (t->dtype == ATTN_F32) {
        *ld = t->stride[1];
        return (const float *)t->data + tensor_offset(t, b, first, h);
    }
    *ld = t->shape[3];
    for (int64_t r = 0; r < count; r++)
        tensor_read_row(t, b, first + r, h, copy + r * *ld);
    return copy;
}

const float *flash_find_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                             float *copy, int64_t *ld)
{
    flash_fetch_rows(t, b, h, first + ROWS_AHEAD, count);
    return rows_at(t, b, h, first, count, copy, ld);
}

/* Where keys roll, the rows were fetched while the block before was computed (simd_block.c). */
static const float *find_rows(const Plan *p, const Tensor *t, int64_t b, int64_t h, int64_t first,
                              int64_t count, float *copy, int64_t *ld)
{
    return p->rolls ? rows_at(t, b, h, first, count, copy, ld)
                    : flash_find_rows(t, b, h, first, count, copy, ld);
}

/* --- packing -----------------------------------------------------------------------------------*/

/* Keys past the end become zeros in K, so that their scores, which are hidden later, are finite;
 * nobody asks for their V. */
void flash_pack_panel(const AttnArgs *args, const Plan *p, float *copy, int64_t kv, int64_t slot,
                      int64_t panel, int64_t place)
{
    const AttnShape *n = &args->shape;
    int64_t width = p->simd->panel, j = panel * width, count = smaller(width, n->Nk - j), ld;
    int64_t b = kv / n->Hkv, h = kv % n->Hkv;
    float *K = p->K_packed + slot * p->K_floats + place * width * n->d;
    float *V = p->V_packed + slot * p->V_floats + place * width * width;
    const float *rows = find_rows(p, &args->K, b, h, j, count, copy, &ld);
    p->simd->transpose(rows, ld, count, n->d, 1.0f, K, width);
    rows = find_rows(p, &args->V, b, h, j, count, copy, &ld);
    p->simd->split(rows, ld, count, n->d, V, p->capacity * width);
}

void flash_move_panels(const Plan *p, int64_t d, int64_t slot, int64_t from, int64_t count)
{
    const int64_t width = p->simd->panel, K_panel = width * d, V_panel = width * width;
    float *K = p->K_packed + slot * p->K_floats, *V = p->V_packed + slot * p->V_floats;
    memmove(K, K + from * K_panel, (size_t)(count * K_panel) * sizeof *K);
    for (int64_t x = 0; x < p->channels; x += width, V += p->capacity * width)
        memmove(V, V + from * V_panel, (size_t)(count * V_panel) * sizeof *V);
}

/* What turns q.k into a power of two or, with a cap, into the argument of tanh. A tiny cap would
 * make that infinite, and 0 * inf is NaN; 1e25 gives the same scores to within scale / 1e25. */
float flash_score_factor(const AttnArgs *args)
{
    if (args->softcap > 0.0f)
        return fmaxf(-1e25f, fminf(args->scale / args->softcap, 1e25f));
    return args->scale * (float)M_LOG2E;
}

/* Rows behind the last query are zeros; so they have finite scores and are never stored. */
void flash_pack_queries(const AttnArgs *args, const Plan *p, Block *block, int64_t b, int64_t h,
                        int64_t i, int64_t rows)
{
    const float factor = flash_score_factor(args);
    int64_t strip = p->simd->strip, d = args->shape.d, ld;
    for (int64_t r = 0; r < rows; r += strip) {
        int64_t count = smaller(strip, rows - r);
        const float *from = find_rows(p, &args->Q, b, h, i + r, count, block->copy, &ld);
        p->simd->transpose(from, ld, count, d, factor, block->Q_i + r * d, strip);
    }
}

void flash_describe_panels(AttnPositions map, int64_t N, int64_t width, AttnRange *ranges,
                           uint8_t *straight)
{
    for (int64_t first = 0; first < N; first += width) {
        int64_t count = smaller(width, N - first), panel = first / width;
        AttnRange range = attn_range(map, first, count);
        int rises = range.sequence >= 0 && range.max - range.min == count - 1;
        for (int64_t c = 0; rises && c < count; c++)
            rises = attn_position(map, first + c).position == range.min + c;
        ranges[panel] = range;
        straight[panel] = (uint8_t)rises;
    }
}
