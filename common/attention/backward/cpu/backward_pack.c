/* SPDX-License-Identifier: MIT
 *
 * backward_pack.c: operands of the library, laid out in the order in which its loops read them.
 *
 * Every one of Q, dO, K takes part in two kinds of product: along the channels (S = Q K^T) and
 * along the queries or keys (dK = dS^T Q). Each kind wants its own layout, so Q, dO and K are
 * packed twice, V once.
 *
 * Interface: backward_pack.h.
 */
#include "backward_pack.h"

#include <math.h>
#include <string.h>

#include "attn_config.h"
#include "attn_pairs.h"
#include "units/vector.h"

static void choose_simd(BackwardPlan *p)
{
    p->simd = &flash_simd_portable;
    p->backward = &backward_simd_portable;
#ifdef HAVE_ISA_AVX512
    if (strcmp(exp_isa(), "avx512") == 0) {
        p->simd = &flash_simd_avx512;
        p->backward = &backward_simd_avx512;
    }
#endif
#ifdef HAVE_ISA_AVX2
    if (strcmp(exp_isa(), "avx2") == 0) {
        p->simd = &flash_simd_avx2;
        p->backward = &backward_simd_avx2;
    }
#endif
}

/* Floats of each part of a key block, in its order. */
enum { AT_K, AT_V, AT_PIECES, AT_DK, AT_DV, AT_S, AT_DS, AT_SLOPE, AT_COPY, AT_END };

static int64_t block_parts(const BackwardPlan *p, int64_t d, int64_t at[AT_END])
{
    const int64_t strip = p->simd->strip * SIMD_ROW;
    const int64_t size[AT_END] = {
        [AT_K] = p->keys * d + SIMD_MAX_LANES, [AT_V] = p->keys * d + SIMD_MAX_LANES,
        [AT_PIECES] = p->keys * p->channels,   [AT_DK] = p->keys * p->channels,
        [AT_DV] = p->keys * p->channels,       [AT_S] = strip,
        [AT_DS] = p->keys * SIMD_ROW,          [AT_SLOPE] = strip,
        [AT_COPY] = 2 * p->simd->panel * d};
    return place_parts(size, AT_END, at);
}

void backward_place_block(KeyBlock *block, const BackwardPlan *p, int64_t d, int thread)
{
    float *base = p->blocks + thread * p->block_floats;
    int64_t at[AT_END];
    block_parts(p, d, at);
    block->K_strips = base + at[AT_K];
    block->V_strips = base + at[AT_V];
    block->K_pieces = base + at[AT_PIECES];
    block->dK = base + at[AT_DK];
    block->dV = base + at[AT_DV];
    block->S = base + at[AT_S];
    block->dS = base + at[AT_DS];
    block->slope = base + at[AT_SLOPE];
    block->copy = base + at[AT_COPY];
}

/* The number of parts depends on the shape alone, or more threads would give other bits. Slots: as
 * many as threads where each thread has kv heads of its own, else all. */
size_t backward_make_plan(BackwardPlan *p, const AttnShape *n, int threads, char *workspace)
{
    const int64_t kv_heads = n->B * n->Hkv;
    const int64_t wanted = (WANTED_TASKS + kv_heads - 1) / kv_heads;
    int64_t at[AT_END], unit, panels;
    size_t bytes[5], sum = 0;
    choose_simd(p);
    unit = p->simd->panel; /* becomes the smallest number of whole panels and whole strips */
    while (unit % p->simd->strip)
        unit += p->simd->panel;
    p->queries = round_down(SIMD_KEYS, unit);
    p->rows = round_up(round_up(n->Nq, p->simd->strip), p->simd->panel);
    p->channels = round_up(n->d, p->simd->panel);
    p->group = n->H / n->Hkv;
    p->keys = p->channels > 64 ? MOST_KEYS / 2 : MOST_KEYS; /* with all that is theirs in 1 MiB */
    p->parts = smaller((n->Nk + p->keys - 1) / p->keys, wanted);
    p->slots = kv_heads % threads == 0 ? threads : kv_heads;
    p->head_floats = round_up(2 * p->rows * (n->d + p->channels + 1), 16);
    p->block_floats = block_parts(p, n->d, at);
    panels = p->rows / p->simd->panel;
    bytes[0] = (size_t)(p->slots * p->group * p->head_floats) * sizeof(float);
    bytes[1] = (size_t)(p->slots * p->parts * p->group * p->rows * p->channels) * sizeof(float);
    bytes[2] = (size_t)(threads * p->block_floats) * sizeof(float);
    bytes[3] = (size_t)panels * sizeof(AttnRange);
    bytes[4] = (size_t)panels;
    if (workspace) {
        p->heads = (float *)workspace;
        p->parts_dQ = (float *)(workspace + bytes[0]);
        p->blocks = (float *)(workspace + bytes[0] + bytes[1]);
        p->ranges = (AttnRange *)(workspace + bytes[0] + bytes[1] + bytes[2]);
        p->straight = (uint8_t *)(p->ranges + panels);
    }
    for (int part = 0; part < 5; part++)
        sum += bytes[part];
    return sum;
}

QueryHead backward_query_head(const BackwardPlan *p, const AttnShape *n, int64_t slot, int64_t g)
{
    QueryHead head;
    head.Q_panels = p->heads + (slot * p->group + g) * p->head_floats;
    head.dO_panels = head.Q_panels + p->rows * n->d;
    head.Q_pieces = head.dO_panels + p->rows * n->d;
    head.dO_pieces = head.Q_pieces + p->rows * p->channels;
    head.lse = head.dO_pieces + p->rows * p->channels;
    head.delta = head.lse + p->rows;
    return head;
}

float *backward_part_dQ(const BackwardPlan *p, int64_t slot, int64_t part, int64_t g)
{
    return p->parts_dQ + ((slot * p->parts + part) * p->group + g) * p->rows * p->channels;
}

/* dO of rows without keys becomes zeros, whatever it is: 0 * NaN would reach dK and dV. In the
 * copy, which is made for them where the rows are still those of the tensor. */
static const float *clear_empty(const float *lse, int64_t count, int64_t d, const float *dO,
                                int64_t *ld, float *copy)
{
    const size_t bytes = (size_t)d * sizeof *copy;
    int64_t first = 0;
    while (first < count && lse[first] != -INFINITY)
        first++;
    if (first == count)
        return dO;
    for (int64_t r = 0; dO != copy && r < count; r++)
        memcpy(copy + r * d, dO + r * *ld, bytes);
    for (int64_t r = first; r < count; r++)
        if (lse[r] == -INFINITY)
            memset(copy + r * d, 0, bytes);
    *ld = d;
    return copy;
}

/* Rows past the last query: zeros in the panels, P = 0 by their lse; nobody reads their pieces. */
void backward_pack_queries(const AttnArgs *args, const BackwardPlan *p, const float *delta,
                           float *copy, const QueryHead *head, int64_t b, int64_t h, int64_t i)
{
    const AttnShape *n = &args->shape;
    const int64_t width = p->simd->panel, ld = p->rows * width, row = (b * n->H + h) * n->Nq + i;
    const int64_t count = i < n->Nq ? smaller(width, n->Nq - i) : 0;
    int64_t ld_Q, ld_dO, ld_O;
    const float *Q = flash_find_rows(&args->Q, b, h, i, count, copy, &ld_Q), *dO, *O;
    p->simd->transpose(Q, ld_Q, count, n->d, 1.0f, head->Q_panels + i * n->d, width);
    p->simd->split(Q, ld_Q, count, n->d, head->Q_pieces + i * width, ld);
    dO = flash_find_rows(&args->dO, b, h, i, count, copy, &ld_dO);
    dO = clear_empty(args->lse + row, count, n->d, dO, &ld_dO, copy);
    p->simd->transpose(dO, ld_dO, count, n->d, 1.0f, head->dO_panels + i * n->d, width);
    p->simd->split(dO, ld_dO, count, n->d, head->dO_pieces + i * width, ld);
    for (int64_t r = 0; r < width; r++) {
        const float lse = r < count ? args->lse[row + r] : -INFINITY;
        head->lse[i + r] = lse == -INFINITY ? INFINITY : lse * (float)M_LOG2E;
        head->delta[i + r] = delta && r < count ? delta[row + r] : 0.0f;
    }
    if (delta)
        return;
    O = flash_find_rows(&args->O, b, h, i, count, copy + width * n->d, &ld_O);
    p->backward->row_dots(dO, ld_dO, O, ld_O, count, n->d, head->delta + i);
}

void backward_pack_keys(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block, int64_t b,
                        int64_t h_kv, int64_t j)
{
    const int64_t d = args->shape.d, strip = p->simd->strip, width = p->simd->panel;
    const float factor = flash_score_factor(args);
    block->j = j;
    block->count = smaller(p->keys, args->shape.Nk - j);
    for (int64_t r = 0; r < block->count; r += strip) {
        const int64_t count = smaller(strip, block->count - r);
        int64_t ld;
        const float *rows = flash_find_rows(&args->K, b, h_kv, j + r, count, block->copy, &ld);
        p->simd->transpose(rows, ld, count, d, factor, block->K_strips + r * d, strip);
        p->simd->split(rows, ld, count, d, block->K_pieces + r * width, p->keys * width);
        rows = flash_find_rows(&args->V, b, h_kv, j + r, count, block->copy, &ld);
        p->simd->transpose(rows, ld, count, d, 1.0f, block->V_strips + r * d, strip);
        block->ranges[r / strip] = attn_range(args->positions_k, j + r, count);
    }
    for (int64_t r = 0; r < block->count; r++)
        block->positions[r] = attn_position(args->positions_k, j + r);
    memset(block->begun, 0, sizeof block->begun);
}
