/* SPDX-License-Identifier: MIT
 *
 * v2_packing: v1_fa2_rows without BLAS: keys and values are laid out once, in the order of use.
 *
 * The products of v1 are thin: a tile of scores is 64 numbers deep. A BLAS call on such a tile
 * spends much of its time on copying the operands into an order of its own, again for every tile,
 * and v1 has copied them before. Here K and V of a kv head are copied once, for all tiles of
 * queries and for all query heads that share them:
 *
 *     K_packed [panels of keys][d][PANEL]        PANEL keys side by side, for each channel
 *     V_packed [panels of channels][Nk][PANEL]   PANEL channels side by side, for each key
 *
 * Then both products read one operand as whole vectors, without a gap, and the other one number at
 * a time. A vector of scores belongs to as many keys as it has lanes, a vector of O to channels:
 *
 *     S_i[j ..] += Q_i[x] * K_packed[panel of j][x][..]        for each channel x
 *     O_i[x ..] += P_i[j] * V_packed[panel of x][j][..]        for each key j
 *
 * The loops of v1 stay: a block of queries keeps O, m and l until it has seen all keys. Inside a
 * block, BLOCK_KEYS keys stay in the L2 cache while all rows of the block use them.
 *
 * Prediction: about as fast as v1. No copies and no calls any more, but a row has only VECTORS sums
 * in work, 4, where a core with two multiply-add units of 4 cycles each needs 8 to be busy: at most
 * half of its peak. The next rung cures that.
 *
 * Instruction sets: Meson compiles this file once for each (exp/vector.h). The copy for any
 * processor holds the choice, at the end of the file.
 *
 * Interface: flash_forward_v2_packing (flash_forward.h). Float32.
 */
#include <math.h>
#include <string.h>

#include "attn_config.h"
#include "exp/exp.h"
#include "exp/vector.h"
#include "flash_forward.h"

#define VECTORS    4
#define PANEL      (VECTORS * LANES)
#define BLOCK_KEYS 256 /* whole panels */
#define BLOCK_ROWS 96

/* What one thread works in. */
typedef struct Block {
    float *Q_i;       /* [BLOCK_ROWS][d], times the scale */
    float *O_i;       /* [BLOCK_ROWS][channels], not yet divided by l_i */
    float *S;         /* [BLOCK_KEYS] scores of one row, then P */
    float *m_i, *l_i; /* [BLOCK_ROWS] */
} Block;

/* One kv head, laid out. */
typedef struct Packed {
    float *K;               /* [keys / PANEL][d][PANEL] */
    float *V;               /* [channels / PANEL][keys][PANEL] */
    int64_t keys, channels; /* Nk and d, rounded up to whole panels */
} Packed;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

/* --- which keys a query sees: from first_key to end_key - 1 --------------------------------------
 * The limits of a window may be as large as an int64 can be, so nothing is added to them before
 * they are known to be small. */

static int64_t own_key(const AttnArgs *args, int64_t i)
{
    return i + attn_position(args->positions_q, 0).position -
           attn_position(args->positions_k, 0).position;
}

static int64_t first_key(const AttnArgs *args, int64_t i)
{
    const int64_t own = own_key(args, i);
    return args->rule.left >= 0 && own > args->rule.left
               ? smaller(own - args->rule.left, args->shape.Nk)
               : 0;
}

static int64_t end_key(const AttnArgs *args, int64_t i)
{
    const int64_t own = own_key(args, i), Nk = args->shape.Nk;
    if (args->rule.right < 0 || args->rule.right >= Nk - 1 - own)
        return Nk;
    return own + args->rule.right + 1 > 0 ? own + args->rule.right + 1 : 0;
}

/* --- packing -----------------------------------------------------------------------------------*/

/* PANEL keys of kv head `kv` (batch * Hkv + head), from key j on. What is past the last key or
 * channel becomes 0. */
static void pack_panel(const AttnArgs *args, const Packed *to, int64_t kv, int64_t j)
{
    const AttnShape *n = &args->shape;
    const int64_t b = kv / n->Hkv, h = kv % n->Hkv, count = smaller(PANEL, n->Nk - j);
    const float *K = (const float *)args->K.data + tensor_offset(&args->K, b, j, h);
    const float *V = (const float *)args->V.data + tensor_offset(&args->V, b, j, h);
    float *K_panel = to->K + j * n->d;
    if (count < PANEL)
        memset(K_panel, 0, (size_t)(PANEL * n->d) * sizeof(float));
    for (int64_t x = 0; x < n->d; x++)
        for (int64_t c = 0; c < count; c++)
            K_panel[x * PANEL + c] = K[c * args->K.stride[1] + x];
    for (int64_t x = 0; x < to->channels; x += PANEL)
        for (int64_t c = 0; c < PANEL; c++) {
            const int64_t width = c < count ? smaller(PANEL, n->d - x) : 0;
            float *V_c = to->V + x * to->keys + (j + c) * PANEL;
            memset(V_c + width, 0, (size_t)(PANEL - width) * sizeof(float));
            memcpy(V_c, V + c * args->V.stride[1] + x, (size_t)width * sizeof(float));
        }
}

/* --- one row of queries ------------------------------------------------------------------------*/

/* VECTORS vectors gain the sum of a[t] * b [steps][PANEL]. */
static inline void add_products(Vector acc[VECTORS], const float *a, const float *b, int64_t steps)
{
    for (int64_t t = 0; t < steps; t++, b += PANEL)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            acc[v] += a[t] * load(b + v * LANES);
}

/* S of row r and keys start .. end-1; -inf before `first` and up to the end of the last panel. */
static void score_row(const Block *block, const Packed *packed, int64_t d, int64_t r, int64_t start,
                      int64_t first, int64_t end)
{
    for (int64_t j = start; j < end; j += PANEL) {
        Vector acc[VECTORS] = {{0}};
        add_products(acc, block->Q_i + r * d, packed->K + j * d, d);
        for (int v = 0; v < VECTORS; v++)
            store(block->S + j - start + v * LANES, acc[v]);
    }
    for (int64_t c = 0; c < first - start; c++)
        block->S[c] = -INFINITY;
    for (int64_t c = end - start; c % PANEL; c++)
        block->S[c] = -INFINITY;
}

/* The online update of stage 02: S becomes P relative to the new maximum, l follows. Returns alpha,
 * what the old O is worth now. */
static float update_row(const Block *block, int64_t r, int64_t cols)
{
    const float tile_max = row_max(block->S, cols);
    const float m_new = block->m_i[r] > tile_max ? block->m_i[r] : tile_max;
    const float shift = m_new == -INFINITY ? 0.0f : m_new; /* nothing seen: not -inf - -inf */
    const float alpha = expf(block->m_i[r] - shift);
    block->l_i[r] = alpha * block->l_i[r] + softmax_exp_row(block->S, block->S, cols, shift);
    block->m_i[r] = m_new;
    return alpha;
}

/* What row r (query i) sees of keys j .. j+BLOCK_KEYS-1: S, P, and O = alpha O + P V. */
static void attend_row(const AttnArgs *args, const Block *block, const Packed *packed, int64_t i,
                       int64_t r, int64_t j)
{
    const int64_t from = first_key(args, i), first = from > j ? from : j;
    const int64_t end = smaller(end_key(args, i), j + BLOCK_KEYS), start = first / PANEL * PANEL;
    if (first >= end)
        return;
    score_row(block, packed, args->shape.d, r, start, first, end);
    const float alpha = update_row(block, r, round_up(end - start, LANES));
    for (int64_t x = 0; x < packed->channels; x += PANEL) {
        float *O = block->O_i + r * packed->channels + x;
        Vector acc[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            acc[v] = alpha * load(O + v * LANES);
        add_products(acc, block->S + first - start, packed->V + x * packed->keys + first * PANEL,
                     end - first);
        for (int v = 0; v < VECTORS; v++)
            store(O + v * LANES, acc[v]);
    }
}

/* --- one block of queries ----------------------------------------------------------------------*/

static void start_block(const AttnArgs *args, const Block *block, const Packed *packed, int64_t b,
                        int64_t h, int64_t i, int64_t rows)
{
    const int64_t d = args->shape.d;
    memset(block->O_i, 0, (size_t)(BLOCK_ROWS * packed->channels) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        const float *Q = (const float *)args->Q.data + tensor_offset(&args->Q, b, i + r, h);
        for (int64_t x = 0; x < d; x++)
            block->Q_i[r * d + x] = args->scale * Q[x];
        block->m_i[r] = -INFINITY;
        block->l_i[r] = 0.0f;
    }
}

/* O / l, and lse. A row that saw no key: 0 and -inf. */
static void finish_block(const AttnArgs *args, const Block *block, const Packed *packed, int64_t b,
                         int64_t h, int64_t i, int64_t rows)
{
    const AttnShape *n = &args->shape;
    for (int64_t r = 0; r < rows; r++) {
        const float l = block->l_i[r], inverse = l == 0.0f ? 0.0f : 1.0f / l;
        float *O = (float *)args->O.data + tensor_offset(&args->O, b, i + r, h);
        for (int64_t x = 0; x < n->d; x++)
            O[x] = inverse * block->O_i[r * packed->channels + x];
        args->lse[(b * n->H + h) * n->Nq + i + r] = l == 0.0f ? -INFINITY : block->m_i[r] + logf(l);
    }
}

static void attend_block(const AttnArgs *args, const Block *block, const Packed *packed, int64_t b,
                         int64_t h, int64_t i)
{
    const int64_t rows = smaller(BLOCK_ROWS, args->shape.Nq - i);
    const int64_t end = end_key(args, i + rows - 1); /* later queries see later keys */
    start_block(args, block, packed, b, h, i, rows);
    for (int64_t j = first_key(args, i) / BLOCK_KEYS * BLOCK_KEYS; j < end; j += BLOCK_KEYS)
        for (int64_t r = 0; r < rows; r++)
            attend_row(args, block, packed, i + r, r, j);
    finish_block(args, block, packed, b, h, i, rows);
}

/* --- all of it ---------------------------------------------------------------------------------*/

/* Floats of a block. All parts are multiples of 16, so vectors in them are aligned. */
static int64_t block_floats(int64_t d, int64_t channels)
{
    return BLOCK_ROWS * (d + channels + 2) + BLOCK_KEYS;
}

static Block place_block(float *at, int64_t d, int64_t channels)
{
    Block block;
    block.Q_i = at;
    block.O_i = block.Q_i + BLOCK_ROWS * d;
    block.m_i = block.O_i + BLOCK_ROWS * channels;
    block.l_i = block.m_i + BLOCK_ROWS;
    block.S = block.l_i + BLOCK_ROWS;
    return block;
}

static Packed packed_head(const AttnShape *n, float *heads, int64_t kv)
{
    const int64_t keys = round_up(n->Nk, PANEL), channels = round_up(n->d, PANEL);
    float *K = heads + kv * keys * (n->d + channels);
    return (Packed){K, K + keys * n->d, keys, channels};
}

AttnStatus OWN(v2_packing)(const AttnArgs *args);

AttnStatus OWN(v2_packing)(const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    const int threads = args->threads;
    const int64_t keys = round_up(n->Nk, PANEL), channels = round_up(n->d, PANEL);
    const int64_t kv_heads = n->B * n->Hkv, panels = keys / PANEL, group = n->H / n->Hkv;
    const int64_t head_floats = kv_heads * keys * (n->d + channels);
    const int64_t blocks = (n->Nq + BLOCK_ROWS - 1) / BLOCK_ROWS, work = n->B * n->H * blocks;
    const int64_t thread_floats = block_floats(n->d, channels);
    float *heads = workspace_alloc((size_t)(head_floats + threads * thread_floats) * sizeof *heads);
    if (!heads)
        return ATTN_NO_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < kv_heads * panels; t++) {
        const Packed packed = packed_head(n, heads, t / panels);
        pack_panel(args, &packed, t / panels, t % panels * PANEL);
    }
    /* Neighbouring blocks go to different threads: under a causal mask the last ones see more. */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        const Block block =
            place_block(heads + head_floats + thread * thread_floats, n->d, channels);
        for (int64_t t = thread; t < work; t += threads) {
            const int64_t head = t / blocks; /* batch * H + h; its kv head is head / group */
            const Packed packed = packed_head(n, heads, head / group);
            attend_block(args, &block, &packed, head / n->H, head % n->H, t % blocks * BLOCK_ROWS);
        }
    }
    workspace_free(heads);
    return ATTN_OK;
}

/* --- which instruction set ---------------------------------------------------------------------*/

#ifdef ANY_PROCESSOR
AttnStatus v2_packing_avx2(const AttnArgs *args);
AttnStatus v2_packing_avx512(const AttnArgs *args);

AttnStatus flash_forward_v2_packing(const AttnArgs *args)
{
#ifdef HAVE_ISA_AVX512
    if (strcmp(exp_isa(), "avx512") == 0)
        return v2_packing_avx512(args);
#endif
#ifdef HAVE_ISA_AVX2
    if (strcmp(exp_isa(), "avx2") == 0)
        return v2_packing_avx2(args);
#endif
    return v2_packing_portable(args);
}
#endif
