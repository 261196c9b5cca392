/* SPDX-License-Identifier: MIT
 *
 * backward_pack.c: operands of v2_simd, laid out in the order in which its loops read them.
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
#include "exp.h"
#include "naive.h"

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

/* Floats of each part of a key block, in its order; every part starts at a multiple of 64 bytes. */
enum { AT_K, AT_V, AT_PIECES, AT_DK, AT_DV, AT_S, AT_DS, AT_SLOPE, AT_ONES, AT_COPY, AT_END };

static int64_t block_parts(const BackwardPlan *p, int64_t d, int64_t at[AT_END + 1])
{
    const int64_t strip = p->simd->strip * SIMD_KEYS;
    const int64_t size[AT_END] = {[AT_K] = BLOCK_KEYS * d + SIMD_MAX_LANES,
                                  [AT_V] = BLOCK_KEYS * d + SIMD_MAX_LANES,
                                  [AT_PIECES] = BLOCK_KEYS * p->channels,
                                  [AT_DK] = BLOCK_KEYS * p->channels,
                                  [AT_DV] = BLOCK_KEYS * p->channels,
                                  [AT_S] = strip,
                                  [AT_DS] = BLOCK_KEYS * SIMD_KEYS,
                                  [AT_SLOPE] = strip,
                                  [AT_ONES] = SIMD_MAX_STRIP,
                                  [AT_COPY] = BLOCK_KEYS * d};
    at[0] = 0;
    for (int part = 0; part < AT_END; part++)
        at[part + 1] = at[part] + round_up(size[part], 16);
    return at[AT_END];
}

void backward_place_block(KeyBlock *block, const BackwardPlan *p, int64_t d, int thread)
{
    float *base = p->blocks + thread * p->block_floats;
    int64_t at[AT_END + 1];
    block_parts(p, d, at);
    block->K_strips = base + at[AT_K];
    block->V_strips = base + at[AT_V];
    block->K_pieces = base + at[AT_PIECES];
    block->dK = base + at[AT_DK];
    block->dV = base + at[AT_DV];
    block->S = base + at[AT_S];
    block->dS = base + at[AT_DS];
    block->slope = base + at[AT_SLOPE];
    block->ones = base + at[AT_ONES];
    block->copy = base + at[AT_COPY];
    for (int r = 0; r < p->simd->strip; r++)
        block->ones[r] = 1.0f;
}

/* The number of parts depends on the shape alone, or more threads would give other bits. */
size_t backward_make_plan(BackwardPlan *p, const AttnShape *n, int threads, char *workspace)
{
    const int64_t key_blocks = (n->Nk + BLOCK_KEYS - 1) / BLOCK_KEYS, kv_heads = n->B * n->Hkv;
    const int64_t wanted = (WANTED_TASKS + kv_heads - 1) / kv_heads;
    int64_t at[AT_END + 1], unit;
    size_t bytes[4], sum = 0;
    choose_simd(p);
    unit = p->simd->panel; /* becomes the smallest number of whole panels and whole strips */
    while (unit % p->simd->strip)
        unit += p->simd->panel;
    p->queries = SIMD_KEYS / unit * unit;
    p->rows = round_up(n->Nq, p->queries);
    p->channels = round_up(n->d, p->simd->panel);
    p->parts = smaller(key_blocks, wanted);
    p->head_floats = round_up(2 * p->rows * (n->d + p->channels + 1), 16);
    p->block_floats = block_parts(p, n->d, at);
    bytes[0] = (size_t)(n->B * n->H * p->head_floats) * sizeof(float);
    bytes[1] = (size_t)(p->parts * n->B * n->H * p->rows * p->channels) * sizeof(float);
    bytes[2] = (size_t)(threads * p->block_floats) * sizeof(float);
    bytes[3] = (size_t)(p->rows / p->simd->panel) * sizeof(AttnRange);
    if (workspace) {
        p->heads = (float *)workspace;
        p->parts_dQ = (float *)(workspace + bytes[0]);
        p->blocks = (float *)(workspace + bytes[0] + bytes[1]);
        p->ranges = (AttnRange *)(workspace + bytes[0] + bytes[1] + bytes[2]);
    }
    for (int part = 0; part < 4; part++)
        sum += bytes[part];
    return sum;
}

QueryHead backward_query_head(const BackwardPlan *p, const AttnShape *n, int64_t b, int64_t h)
{
    QueryHead head;
    head.Q_panels = p->heads + (b * n->H + h) * p->head_floats;
    head.dO_panels = head.Q_panels + p->rows * n->d;
    head.Q_pieces = head.dO_panels + p->rows * n->d;
    head.dO_pieces = head.Q_pieces + p->rows * p->channels;
    head.lse = head.dO_pieces + p->rows * p->channels;
    head.delta = head.lse + p->rows;
    return head;
}

float *backward_part_dQ(const BackwardPlan *p, const AttnShape *n, int64_t b, int64_t h,
                        int64_t part)
{
    const int64_t group = n->H / n->Hkv, task = (b * n->Hkv + h / group) * p->parts + part;
    return p->parts_dQ + (task * group + h % group) * p->rows * p->channels;
}

/* Rows past the last query: zeros in the panels, P = 0 by their lse; nobody reads their pieces. */
void backward_pack_queries(const AttnArgs *args, const BackwardPlan *p, const float *delta,
                           float *copy, int64_t b, int64_t h, int64_t i)
{
    const AttnShape *n = &args->shape;
    const QueryHead head = backward_query_head(p, n, b, h);
    const int64_t width = p->simd->panel, ld = p->rows * width, row = (b * n->H + h) * n->Nq + i;
    const int64_t count = i < n->Nq ? smaller(width, n->Nq - i) : 0;
    naive_load_rows(&args->Q, b, h, i, count, copy);
    p->simd->transpose(copy, n->d, count, n->d, 1.0f, head.Q_panels + i * n->d, width);
    p->simd->split(copy, n->d, count, n->d, head.Q_pieces + i * width, ld);
    naive_load_rows(&args->dO, b, h, i, count, copy);
    p->simd->transpose(copy, n->d, count, n->d, 1.0f, head.dO_panels + i * n->d, width);
    p->simd->split(copy, n->d, count, n->d, head.dO_pieces + i * width, ld);
    for (int64_t r = 0; r < width; r++) {
        const float lse = r < count ? args->lse[row + r] : -INFINITY;
        head.lse[i + r] = lse == -INFINITY ? INFINITY : lse * LOG2E;
        head.delta[i + r] = r < count ? delta[row + r] : 0.0f;
    }
}

/* What turns q.k into a power of two or, with a cap, into the argument of tanh. A tiny cap would
 * make that infinite, and 0 * inf is NaN; 1e25 gives the same scores to within scale / 1e25. */
static float key_factor(const AttnArgs *args)
{
    if (args->softcap > 0.0f)
        return fmaxf(-1e25f, fminf(args->scale / args->softcap, 1e25f));
    return args->scale * LOG2E;
}

void backward_pack_keys(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block, int64_t b,
                        int64_t h_kv, int64_t j)
{
    const AttnShape *n = &args->shape;
    const int64_t d = n->d, strip = p->simd->strip, width = p->simd->panel;
    const float factor = key_factor(args);
    block->j = j;
    block->count = smaller(BLOCK_KEYS, n->Nk - j);
    naive_load_rows(&args->K, b, h_kv, j, block->count, block->copy);
    p->simd->split(block->copy, d, block->count, d, block->K_pieces, BLOCK_KEYS * width);
    for (int64_t r = 0; r < block->count; r += strip) {
        const int64_t count = smaller(strip, block->count - r);
        p->simd->transpose(block->copy + r * d, d, count, d, factor, block->K_strips + r * d,
                           strip);
        block->ranges[r / strip] = attn_range(args->positions_k, j + r, count);
    }
    naive_load_rows(&args->V, b, h_kv, j, block->count, block->copy);
    for (int64_t r = 0; r < block->count; r += strip)
        p->simd->transpose(block->copy + r * d, d, smaller(strip, block->count - r), d, 1.0f,
                           block->V_strips + r * d, strip);
    memset(block->dK, 0, (size_t)(BLOCK_KEYS * p->channels) * sizeof(float));
    memset(block->dV, 0, (size_t)(BLOCK_KEYS * p->channels) * sizeof(float));
}
