/* SPDX-License-Identifier: MIT
 *
 * simd_pack.c: operands of v2_simd, laid out in the order in which its loops read them.
 *
 * A thin product (64 numbers deep) cannot afford operands that lie scattered over memory: rows of
 * one head are H * d numbers apart. So each row is read once, and K and V of a kv head are laid out
 * once for all tiles of queries and all query heads that share them: 2 N d copies beside 4 N^2 d
 * operations.
 *
 * Interface: simd_pack.h.
 */
#include "simd_pack.h"

#include <math.h>

#include "tensor.h"

/* Floats of each part of a block, in its order. */
enum { PART_Q, PART_O, PART_S, PART_L, PART_M, PART_ALPHA, PART_COPY, PARTS };

static int64_t block_parts(const Plan *p, int64_t d, int64_t at[PARTS])
{
    const int64_t size[PARTS] = {
        [PART_Q] = p->rows * d + SIMD_MAX_LANES, [PART_O] = p->rows * p->channels,
        [PART_S] = p->simd->strip * SIMD_KEYS,   [PART_L] = p->rows * p->simd->lanes,
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

size_t flash_make_plan(Plan *p, const FlashSimd *simd, const AttnShape *n, int threads,
                       char *workspace)
{
    int64_t panels = (n->Nk + simd->panel - 1) / simd->panel, kv_heads = n->B * n->Hkv;
    int64_t at[PARTS];
    size_t bytes[5], sum = 0;
    p->simd = simd;
    p->slots = kv_heads % threads == 0 ? threads : kv_heads;
    p->rows = block_strips(p, n, threads) * simd->strip;
    p->keys = panels * simd->panel;
    p->channels = round_up(n->d, simd->panel);
    p->K_floats = round_up(p->keys * n->d, 16);
    p->V_floats = round_up(p->keys * p->channels, 16);
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
void flash_fetch_row(const Tensor *t, int64_t b, int64_t h, int64_t row)
{
    size_t bytes = (size_t)t->shape[3] * dtype_size(t->dtype);
    const char *p =
        (const char *)t->data + tensor_offset(t, b, row, h) * (int64_t)dtype_size(t->dtype);
    for (size_t line = 0; row < t->shape[1] && line < bytes; line += 64)
        __builtin_prefetch(p + line, 0, 2); /* into L2: it has room for more at a time */
}

const float *flash_find_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                             float *copy, int64_t *ld)
{
    for (int64_t r = 0; r < count; r++)
        flash_fetch_row(t, b, h, first + r + ROWS_AHEAD);
    if (t->dtype == ATTN_F32) {
        *ld = t->stride[1];
        return (const float *)t->data + tensor_offset(t, b, first, h);
    }
    *ld = t->shape[3];
    for (int64_t r = 0; r < count; r++)
        tensor_read_row(t, b, first + r, h, copy + r * *ld);
    return copy;
}

/* --- packing -----------------------------------------------------------------------------------*/

/* Keys past the end become zeros in K, so that their scores, which are hidden later, are finite;
 * nobody asks for their V. */
void flash_pack_panel(const AttnArgs *args, const Plan *p, float *copy, int64_t kv, int64_t slot,
                      int64_t panel)
{
    const AttnShape *n = &args->shape;
    int64_t width = p->simd->panel, j = panel * width, count = smaller(width, n->Nk - j), ld;
    int64_t b = kv / n->Hkv, kv_head = kv % n->Hkv;
    const float *rows = flash_find_rows(&args->K, b, kv_head, j, count, copy, &ld);
    p->simd->transpose(rows, ld, count, n->d, 1.0f, p->K_packed + slot * p->K_floats + j * n->d,
                       width);
    rows = flash_find_rows(&args->V, b, kv_head, j, count, copy, &ld);
    p->simd->split(rows, ld, count, n->d, p->V_packed + slot * p->V_floats + j * width,
                   p->keys * width);
}

/* What turns q.k into a power of two or, with a cap, into the argument of tanh. A tiny cap would
 * make that infinite, and 0 * inf is NaN; 1e25 gives the same scores to within scale / 1e25. */
float flash_score_factor(const AttnArgs *args)
{
    if (args->softcap > 0.0f)
        return fmaxf(-1e25f, fminf(args->scale / args->softcap, 1e25f));
    return args->scale * LOG2E;
}

/* Rows behind the last query are zeros; so they have finite scores and are never stored. */
void flash_pack_queries(const AttnArgs *args, const Plan *p, Block *block, int64_t b, int64_t h,
                        int64_t i, int64_t rows)
{
    const float factor = flash_score_factor(args);
    int64_t strip = p->simd->strip, d = args->shape.d, ld;
    for (int64_t r = 0; r < rows; r += strip) {
        int64_t count = smaller(strip, rows - r);
        const float *from = flash_find_rows(&args->Q, b, h, i + r, count, block->copy, &ld);
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
