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
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 03 that packs K and V; float32.
 */
#include <math.h>
#include <string.h>

#include "problem.h"
#include "units/exp_rows.h"
#include "units/vector.h"

#define VECTORS    4
#define PANEL      (VECTORS * LANES)
#define MOST_PANEL (VECTORS * MOST_LANES)
#define BLOCK_KEYS 256 /* whole panels */
#define BLOCK_ROWS 96

/* What one thread works in: a block of queries. */
typedef struct Block {
    float *Q_i;       /* [BLOCK_ROWS][d], times the scale */
    float *O_i;       /* [BLOCK_ROWS][channels], not yet divided by l_i */
    float *S;         /* [BLOCK_KEYS] scores of one row, then P */
    float *m_i, *l_i; /* [BLOCK_ROWS] */
} Block;

/* --- packing -----------------------------------------------------------------------------------*/

/* One kv head, laid out. */
typedef struct Packed {
    float *K;               /* [keys / PANEL][d][PANEL] */
    float *V;               /* [channels / PANEL][keys][PANEL] */
    int64_t keys, channels; /* Nk and d, rounded up to whole panels */
} Packed;

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

/* Floats of a kv head with panels of so many columns. */
static inline int64_t packed_floats(int64_t Nk, int64_t d, int64_t panel)
{
    return round_up(Nk, panel) * (d + round_up(d, panel));
}

/* Number kv of the kv heads that lie one behind the other. */
static inline Packed packed_head(float *heads, int64_t kv, int64_t Nk, int64_t d)
{
    const int64_t keys = round_up(Nk, PANEL), channels = round_up(d, PANEL);
    float *K = heads + kv * packed_floats(Nk, d, PANEL);
    return (Packed){K, K + keys * d, keys, channels};
}

/* Keys j .. j+PANEL-1, or the `left` ones that there are. K, V: d channels of key j, the next key
 * ld floats further. What is past the last key or channel becomes 0. */
static inline void pack_panel(const Packed *to, const float *K, const float *V, int64_t ld,
                              int64_t d, int64_t j, int64_t left)
{
    const int64_t count = smaller(PANEL, left);
    float *K_panel = to->K + j * d;
    if (count < PANEL)
        memset(K_panel, 0, (size_t)(PANEL * d) * sizeof(float));
    for (int64_t x = 0; x < d; x++)
        for (int64_t c = 0; c < count; c++)
            K_panel[x * PANEL + c] = K[c * ld + x];
    for (int64_t x = 0; x < to->channels; x += PANEL)
        for (int64_t c = 0; c < PANEL; c++) {
            const int64_t width = c < count ? smaller(PANEL, d - x) : 0;
            float *V_c = to->V + x * to->keys + (j + c) * PANEL;
            memset(V_c + width, 0, (size_t)(PANEL - width) * sizeof(float));
            memcpy(V_c, V + c * ld + x, (size_t)width * sizeof(float));
        }
}

/* Keys j .. of kv head `kv` (batch * Hkv + head). */
static void pack_keys(const Problem *p, const Packed *to, int64_t kv, int64_t j)
{
    const int64_t key = key_row(p, (int)(kv / p->Hkv), (int)(kv % p->Hkv), (int)j);
    pack_panel(to, (const float *)p->K + key, (const float *)p->V + key, p->Hkv * p->d, p->d, j,
               p->Nk - j);
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
static void attend_row(const Problem *p, const Block *block, const Packed *packed, int64_t i,
                       int64_t r, int64_t j)
{
    const int64_t from = first_key(p, (int)i), first = from > j ? from : j;
    const int64_t end = smaller(end_key(p, (int)i), j + BLOCK_KEYS), start = first / PANEL * PANEL;
    if (first >= end)
        return;
    score_row(block, packed, p->d, r, start, first, end);
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

/* Floats of a block. All parts are multiples of 16, so vectors in them are aligned. */
static int64_t block_floats(int64_t d, int64_t panel)
{
    return BLOCK_ROWS * (d + round_up(d, panel) + 2) + BLOCK_KEYS;
}

static Block place_block(float *at, int64_t d)
{
    Block block;
    block.Q_i = at;
    block.O_i = block.Q_i + BLOCK_ROWS * d;
    block.m_i = block.O_i + BLOCK_ROWS * round_up(d, PANEL);
    block.l_i = block.m_i + BLOCK_ROWS;
    block.S = block.l_i + BLOCK_ROWS;
    return block;
}

/* `rows` queries, Q [rows][ld], and nothing seen. */
static void start_block(const Block *block, const float *Q, int64_t ld, int64_t rows, int64_t d,
                        float scale)
{
    memset(block->O_i, 0, (size_t)(BLOCK_ROWS * round_up(d, PANEL)) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t x = 0; x < d; x++)
            block->Q_i[r * d + x] = scale * Q[r * ld + x];
        block->m_i[r] = -INFINITY;
        block->l_i[r] = 0.0f;
    }
}

/* O [rows][ld] = O / l, and lse [rows]. A row that saw no key: 0 and -inf. */
static void finish_block(const Block *block, float *O, int64_t ld, float *lse, int64_t rows,
                         int64_t d)
{
    for (int64_t r = 0; r < rows; r++) {
        const float l = block->l_i[r], inverse = l == 0.0f ? 0.0f : 1.0f / l;
        for (int64_t x = 0; x < d; x++)
            O[r * ld + x] = inverse * block->O_i[r * round_up(d, PANEL) + x];
        lse[r] = l == 0.0f ? -INFINITY : block->m_i[r] + logf(l);
    }
}

static void attend_block(const Problem *p, const Block *block, const Packed *packed, int b, int h,
                         int64_t i)
{
    const int64_t rows = smaller(BLOCK_ROWS, p->Nq - i), ld = p->H * p->d;
    const int64_t query = query_row(p, b, h, (int)i);
    const int64_t end = end_key(p, (int)(i + rows - 1)); /* later queries see later keys */
    start_block(block, (const float *)p->Q + query, ld, rows, p->d, p->scale);
    for (int64_t j = first_key(p, (int)i) / BLOCK_KEYS * BLOCK_KEYS; j < end; j += BLOCK_KEYS)
        for (int64_t r = 0; r < rows; r++)
            attend_row(p, block, packed, i + r, r, j);
    finish_block(block, (float *)p->O + query, ld, p->lse + lse_row(p, b, h, (int)i), rows, p->d);
}

/* --- all of it ---------------------------------------------------------------------------------*/

static void attend(const Problem *p)
{
    const int threads = p->threads, group = p->H / p->Hkv;
    const int64_t kv_heads = p->B * p->Hkv, panels = round_up(p->Nk, PANEL) / PANEL;
    const int64_t blocks = (p->Nq + BLOCK_ROWS - 1) / BLOCK_ROWS, tasks = p->B * p->H * blocks;
    float *heads = p->work, *of_threads = heads + kv_heads * packed_floats(p->Nk, p->d, PANEL);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < kv_heads * panels; t++) {
        const Packed packed = packed_head(heads, t / panels, p->Nk, p->d);
        pack_keys(p, &packed, t / panels, t % panels * PANEL);
    }
    /* Neighbouring blocks go to different threads: under a causal mask the last ones see more. */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        const Block block = place_block(of_threads + thread * block_floats(p->d, PANEL), p->d);
        for (int64_t t = thread; t < tasks; t += threads) {
            const int64_t head = t / blocks; /* batch * H + h; its kv head is head / group */
            const Packed packed = packed_head(heads, head / group, p->Nk, p->d);
            attend_block(p, &block, &packed, (int)(head / p->H), (int)(head % p->H),
                         t % blocks * BLOCK_ROWS);
        }
    }
}

/* Enough for the widest vectors. */
static int64_t work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * (p->B * p->Hkv * packed_floats(p->Nk, p->d, MOST_PANEL) +
                                     p->threads * block_floats(p->d, MOST_PANEL));
}

/* For the byte model: panels with AVX2 of v3. */
static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){BLOCK_ROWS, 16};
}

EACH_ISA(flash_forward_v2_packing, attend, forward)

RUNG(flash_forward, v2_packing, "keys and values laid out once, in the order of use", F32, forward,
     NULL, work, tiles, 0);
