/* SPDX-License-Identifier: MIT
 *
 * v3_register_tiles: v2_packing with a tile of scores in registers instead of one row.
 *
 * A core does two vector multiply-adds in a cycle, each takes 4 cycles, and two loads. One row of
 * v2 has 4 sums in work: it waits for its own sums, and loads 4 vectors and a number for every 4
 * multiply-adds. A tile of STRIP rows x 2 vectors needs the same two vectors for all its rows:
 *
 *     tile           sums     loads for one step     multiply-adds
 *     1 x 4           4        5                      4
 *     6 x 2          12        8                     12
 *     12 x 2         24       14                     24                 AVX-512
 *
 * The number of registers sets the tile: with AVX2 there are 16, for 12 sums, 2 vectors of K or V
 * and 1 number of Q or P, copied to all lanes. AVX-512 has 32. Every matrix product on a CPU is
 * built this way, BLAS included.
 *
 * So the unit of work is a strip of rows. Q of a strip is transposed, [d][STRIP], since the tile
 * asks for one number of each row at a time. Rows of a strip see different keys: what some of them
 * do not see is computed and becomes -inf.
 *
 * Prediction: the products double their speed, both with the same tile. The softmax, as in v2 by
 * calls for each row, stays what it was.
 *
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 03 that brings tiles of sums in registers; float32.
 */
#include <math.h>
#include <string.h>

#include "problem.h"
#include "units/exp_rows.h"
#include "units/panels.h"

#define MOST_STRIP 12
#define STRIP      (LANES == 16 ? 12 : 6) /* rows of a tile of sums in registers */
#define BLOCK_KEYS 256                    /* whole panels */
#define S_ROW      (BLOCK_KEYS + 64)      /* no power of 2: rows a page apart fight for L1 */
#define BLOCK_ROWS 96                     /* whole strips */

/* What one thread works in: a block of queries. */
typedef struct Block {
    float *Q_i;       /* [BLOCK_ROWS / STRIP][d][STRIP], times a factor: the scale */
    float *O_i;       /* [BLOCK_ROWS][channels], not yet divided by l_i */
    float *S;         /* [STRIP][S_ROW] scores of a strip, then P */
    float *m_i, *l_i; /* [BLOCK_ROWS] */
} Block;

/* Floats of a block. All parts are multiples of 16, so vectors in them are aligned. */
static inline int64_t block_floats(int64_t d, int64_t panel, int64_t strip)
{
    return BLOCK_ROWS * (d + round_up(d, panel) + 2) + strip * S_ROW;
}

static inline Block place_block(float *at, int64_t d)
{
    Block block;
    block.Q_i = at;
    block.O_i = block.Q_i + BLOCK_ROWS * d;
    block.m_i = block.O_i + BLOCK_ROWS * round_up(d, PANEL);
    block.l_i = block.m_i + BLOCK_ROWS;
    block.S = block.l_i + BLOCK_ROWS;
    return block;
}

/* `rows` queries, Q [rows][ld], and nothing seen. Rows past the last query are zeros. */
static inline void start_block(const Block *block, const float *Q, int64_t ld, int64_t rows,
                               int64_t d, float factor)
{
    memset(block->O_i, 0, (size_t)(BLOCK_ROWS * round_up(d, PANEL)) * sizeof(float));
    memset(block->Q_i, 0, (size_t)(BLOCK_ROWS * d) * sizeof(float));
    for (int64_t r = 0; r < BLOCK_ROWS; r++) {
        block->m_i[r] = -INFINITY;
        block->l_i[r] = 0.0f;
    }
    for (int64_t r = 0; r < rows; r++) {
        float *strip = block->Q_i + r / STRIP * STRIP * d + r % STRIP;
        for (int64_t x = 0; x < d; x++)
            strip[x * STRIP] = factor * Q[r * ld + x];
    }
}

/* O [rows][ld] = O / l, and lse [rows]; m counts in units of `unit`. A row that saw no key: 0 and
 * -inf. */
static inline void finish_block(const Block *block, float *O, int64_t ld, float *lse, int64_t rows,
                                int64_t d, float unit)
{
    for (int64_t r = 0; r < rows; r++) {
        const float l = block->l_i[r], inverse = l == 0.0f ? 0.0f : 1.0f / l;
        for (int64_t x = 0; x < d; x++)
            O[r * ld + x] = inverse * block->O_i[r * round_up(d, PANEL) + x];
        lse[r] = l == 0.0f ? -INFINITY : block->m_i[r] * unit + logf(l);
    }
}

/* A tile gains a b: number t of row r of a stands at a[r * row_step + t * step], b is
 * [steps][PANEL]. All loops but that over the steps are unrolled, so that acc is registers. */
static inline __attribute__((always_inline)) void add_products(Vector acc[STRIP][2], const float *a,
                                                               const int64_t row_step,
                                                               const int64_t step, const float *b,
                                                               int64_t steps)
{
#pragma GCC unroll 4
    for (int64_t t = 0; t < steps; t++, a += step, b += PANEL) {
        const Vector b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            acc[r][0] += a[r * row_step] * b0;
            acc[r][1] += a[r * row_step] * b1;
        }
    }
}

/* S of the strip that begins with row r: `cols` keys from key `start` on, whole panels. */
static inline void score_strip(const Block *block, const Packed *packed, int64_t d, int64_t r,
                               int64_t start, int64_t cols)
{
    for (int64_t c = 0; c < cols; c += PANEL) {
        Vector acc[STRIP][2] = {{{0}}};
        add_products(acc, block->Q_i + r * d, 1, STRIP, packed->K + (start + c) * d, d);
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            store(block->S + row * S_ROW + c, acc[row][0]);
            store(block->S + row * S_ROW + c + LANES, acc[row][1]);
        }
    }
}

/* Of `cols` scores the row sees first .. end-1. What it does not see becomes -inf. */
static inline void hide_keys(float *S_r, int64_t first, int64_t end, int64_t cols)
{
    for (int64_t c = 0; c < smaller(first, cols); c++)
        S_r[c] = -INFINITY;
    for (int64_t c = end > 0 ? end : 0; c < cols; c++)
        S_r[c] = -INFINITY;
}

/* O = alpha O + P V of the strip that begins with row r, for keys first .. end-1. P [STRIP][S_ROW]
 * begins with key `first`. */
static inline void add_values(const Block *block, const Packed *packed, int64_t r,
                              const float *alpha, const float *P, int64_t first, int64_t end)
{
    for (int64_t x = 0; x < packed->channels; x += PANEL) {
        float *O = block->O_i + r * packed->channels + x;
        Vector acc[STRIP][2];
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            acc[row][0] = alpha[row] * load(O + row * packed->channels);
            acc[row][1] = alpha[row] * load(O + row * packed->channels + LANES);
        }
        add_products(acc, P, S_ROW, 1, packed->V + x * packed->keys + first * PANEL, end - first);
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            store(O + row * packed->channels, acc[row][0]);
            store(O + row * packed->channels + LANES, acc[row][1]);
        }
    }
}

/* The online update of stage 02: S becomes P relative to the new maximum, l follows. Returns alpha,
 * what the old O is worth now. */
static float update_row(const Block *block, float *S, int64_t r, int64_t cols)
{
    const float tile_max = row_max(S, cols);
    const float m_new = block->m_i[r] > tile_max ? block->m_i[r] : tile_max;
    const float shift = m_new == -INFINITY ? 0.0f : m_new; /* nothing seen: not -inf - -inf */
    const float alpha = expf(block->m_i[r] - shift);
    block->l_i[r] = alpha * block->l_i[r] + softmax_exp_row(S, S, cols, shift);
    block->m_i[r] = m_new;
    return alpha;
}

/* What a strip sees of keys j .. j+BLOCK_KEYS-1: S, P, and O = alpha O + P V. */
static void attend_strip(const Problem *p, const Block *block, const Packed *packed, int64_t i,
                         int64_t r, int64_t j)
{
    const int64_t from = first_key(p, (int)i), first = from > j ? from : j;
    const int64_t last = smaller(i + STRIP, p->Nq) - 1;
    const int64_t end = smaller(end_key(p, (int)last), j + BLOCK_KEYS);
    const int64_t start = first / PANEL * PANEL, cols = round_up(end - start, PANEL);
    float alpha[STRIP];
    if (first >= end)
        return;
    score_strip(block, packed, p->d, r, start, cols);
    for (int row = 0; row < STRIP; row++) { /* rows of a strip see different keys */
        const int q = (int)i + row;
        hide_keys(block->S + row * S_ROW, first_key(p, q) - start, end_key(p, q) - start, cols);
    }
    for (int row = 0; row < STRIP; row++)
        alpha[row] =
            update_row(block, block->S + row * S_ROW, r + row, round_up(end - start, LANES));
    add_values(block, packed, r, alpha, block->S + first - start, first, end);
}

static void attend_block(const Problem *p, const Block *block, const Packed *packed, int b, int h,
                         int64_t i)
{
    const int64_t rows = smaller(BLOCK_ROWS, p->Nq - i), ld = p->H * p->d;
    const int64_t query = query_row(p, b, h, (int)i);
    const int64_t end = end_key(p, (int)(i + rows - 1)); /* later queries see later keys */
    start_block(block, (const float *)p->Q + query, ld, rows, p->d, p->scale);
    for (int64_t j = first_key(p, (int)i) / BLOCK_KEYS * BLOCK_KEYS; j < end; j += BLOCK_KEYS)
        for (int64_t r = 0; r < rows; r += STRIP)
            attend_strip(p, block, packed, i + r, r, j);
    finish_block(block, (float *)p->O + query, ld, p->lse + lse_row(p, b, h, (int)i), rows, p->d,
                 1.0f);
}

/* --- all of it ---------------------------------------------------------------------------------*/

/* Keys j .. of kv head `kv` (batch * Hkv + head). */
static void pack_keys(const Problem *p, const Packed *to, int64_t kv, int64_t j)
{
    const int64_t key = key_row(p, (int)(kv / p->Hkv), (int)(kv % p->Hkv), (int)j);
    pack_panel(to, (const float *)p->K + key, (const float *)p->V + key, p->Hkv * p->d, p->d, j,
               p->Nk - j);
}

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
        const Block block =
            place_block(of_threads + thread * block_floats(p->d, PANEL, STRIP), p->d);
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
                                     p->threads * block_floats(p->d, MOST_PANEL, MOST_STRIP));
}

/* For the byte model: panels with AVX2. */
static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){BLOCK_ROWS, 16};
}

EACH_ISA(flash_forward_v3_register_tiles, attend, forward)

RUNG(flash_forward, v3_register_tiles, "6 x 2 or 12 x 2 vectors of sums in registers", F32, forward,
     NULL, work, tiles, 0);
