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
 * Instruction sets: Meson compiles this file once for each (exp/vector.h). The copy for any
 * processor holds the choice, at the end of the file.
 *
 * Interface: flash_forward_v3_register_tiles (flash_forward.h). Float32.
 */
#include <math.h>
#include <string.h>

#include "attn_config.h"
#include "exp/exp.h"
#include "exp/vector.h"
#include "flash_forward.h"

#define STRIP      (LANES == 16 ? 12 : 6) /* rows of a tile of sums in registers */
#define PANEL      (2 * LANES)            /* its columns */
#define BLOCK_KEYS 256                    /* whole panels */
#define S_ROW      (BLOCK_KEYS + 64)      /* no power of 2: rows a page apart fight for L1 */
#define BLOCK_ROWS 96                     /* whole strips */

/* What one thread works in. */
typedef struct Block {
    float *Q_i;       /* [BLOCK_ROWS / STRIP][d][STRIP], times the scale */
    float *O_i;       /* [BLOCK_ROWS][channels], not yet divided by l_i */
    float *S;         /* [STRIP][S_ROW] scores of a strip, then P */
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

/* --- one strip of queries ----------------------------------------------------------------------*/

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

/* S of the strip that begins with row r (query i), for keys start .. end-1. What a row does not see
 * of them, up to the end of the last panel, becomes -inf. */
static void score_strip(const AttnArgs *args, const Block *block, const Packed *packed, int64_t i,
                        int64_t r, int64_t start, int64_t end)
{
    const int64_t d = args->shape.d, cols = round_up(end - start, PANEL);
    for (int64_t c = 0; c < cols; c += PANEL) {
        Vector acc[STRIP][2] = {{{0}}};
        add_products(acc, block->Q_i + r * d, 1, STRIP, packed->K + (start + c) * d, d);
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            store(block->S + row * S_ROW + c, acc[row][0]);
            store(block->S + row * S_ROW + c + LANES, acc[row][1]);
        }
    }
    for (int64_t row = 0; row < STRIP; row++) {
        const int64_t first = first_key(args, i + row) - start;
        const int64_t hidden = end_key(args, i + row) - start;
        for (int64_t c = 0; c < smaller(first, cols); c++)
            block->S[row * S_ROW + c] = -INFINITY;
        for (int64_t c = hidden > 0 ? hidden : 0; c < cols; c++)
            block->S[row * S_ROW + c] = -INFINITY;
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
static void attend_strip(const AttnArgs *args, const Block *block, const Packed *packed, int64_t i,
                         int64_t r, int64_t j)
{
    const int64_t from = first_key(args, i), first = from > j ? from : j;
    const int64_t last = smaller(i + STRIP, args->shape.Nq) - 1;
    const int64_t end = smaller(end_key(args, last), j + BLOCK_KEYS);
    const int64_t start = first / PANEL * PANEL;
    float alpha[STRIP];
    if (first >= end)
        return;
    score_strip(args, block, packed, i, r, start, end);
    for (int64_t row = 0; row < STRIP; row++)
        alpha[row] =
            update_row(block, block->S + row * S_ROW, r + row, round_up(end - start, LANES));
    for (int64_t x = 0; x < packed->channels; x += PANEL) {
        float *O = block->O_i + r * packed->channels + x;
        Vector acc[STRIP][2];
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            acc[row][0] = alpha[row] * load(O + row * packed->channels);
            acc[row][1] = alpha[row] * load(O + row * packed->channels + LANES);
        }
        add_products(acc, block->S + first - start, S_ROW, 1,
                     packed->V + x * packed->keys + first * PANEL, end - first);
#pragma GCC unroll 16
        for (int row = 0; row < STRIP; row++) {
            store(O + row * packed->channels, acc[row][0]);
            store(O + row * packed->channels + LANES, acc[row][1]);
        }
    }
}

/* --- one block of queries ----------------------------------------------------------------------*/

static void start_block(const AttnArgs *args, const Block *block, const Packed *packed, int64_t b,
                        int64_t h, int64_t i, int64_t rows)
{
    const int64_t d = args->shape.d;
    memset(block->O_i, 0, (size_t)(BLOCK_ROWS * packed->channels) * sizeof(float));
    memset(block->Q_i, 0, (size_t)(BLOCK_ROWS * d) * sizeof(float)); /* rows past the last query */
    for (int64_t r = 0; r < BLOCK_ROWS; r++) {
        block->m_i[r] = -INFINITY;
        block->l_i[r] = 0.0f;
    }
    for (int64_t r = 0; r < rows; r++) {
        const float *Q = (const float *)args->Q.data + tensor_offset(&args->Q, b, i + r, h);
        float *strip = block->Q_i + r / STRIP * STRIP * d + r % STRIP;
        for (int64_t x = 0; x < d; x++)
            strip[x * STRIP] = args->scale * Q[x];
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
        for (int64_t r = 0; r < rows; r += STRIP)
            attend_strip(args, block, packed, i + r, r, j);
    finish_block(args, block, packed, b, h, i, rows);
}

/* --- all of it ---------------------------------------------------------------------------------*/

/* Floats of a block. All parts are multiples of 16, so vectors in them are aligned. */
static int64_t block_floats(int64_t d, int64_t channels)
{
    return BLOCK_ROWS * (d + channels + 2) + STRIP * S_ROW;
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

AttnStatus OWN(v3_register_tiles)(const AttnArgs *args);

AttnStatus OWN(v3_register_tiles)(const AttnArgs *args)
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
AttnStatus v3_register_tiles_avx2(const AttnArgs *args);
AttnStatus v3_register_tiles_avx512(const AttnArgs *args);

AttnStatus flash_forward_v3_register_tiles(const AttnArgs *args)
{
#ifdef HAVE_ISA_AVX512
    if (strcmp(exp_isa(), "avx512") == 0)
        return v3_register_tiles_avx512(args);
#endif
#ifdef HAVE_ISA_AVX2
    if (strcmp(exp_isa(), "avx2") == 0)
        return v3_register_tiles_avx2(args);
#endif
    return v3_register_tiles_portable(args);
}
#endif
