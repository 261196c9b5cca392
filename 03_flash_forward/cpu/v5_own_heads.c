/* SPDX-License-Identifier: MIT
 *
 * v5_own_heads: v4_exp2 with another division of labour among threads.
 *
 * v4 packs all kv heads, waits for all threads, and computes then. By that time the first
 * head's copy has left the caches of the core that made it, and the copies of all heads take as
 * much memory as K and V. Where the kv heads divide evenly among the threads, a thread here packs
 * one head, computes all that needs it, and packs the next one into the same place:
 *
 *     thread 0:   pack kv 0 | blocks of kv 0 | pack kv 2 | blocks of kv 2 ...
 *     thread 1:   pack kv 1 | blocks of kv 1 | pack kv 3 | blocks of kv 3 ...
 *
 * Nobody waits before the end, and `threads` copies are enough. Where the heads do not divide
 * evenly, blocks are shared as in v4, but each thread takes the next one when it is free, the last
 * block of a head first: under a causal mask that is from much work to little, so all threads end
 * together.
 *
 * Prediction: little time, since packing is 2 N d copies beside 4 N^2 d operations: one or two per
 * cent at N = 2048. Memory for the copies falls from B * Hkv heads to one a thread.
 *
 * Instruction sets: Meson compiles this file once for each (exp/vector.h). The copy for any
 * processor holds the choice, at the end of the file.
 *
 * Interface: flash_forward_v5_own_heads (flash_forward.h). Float32.
 */
#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn_config.h"
#include "exp/vector.h"
#include "flash_forward.h"

#define STRIP      (LANES == 16 ? 12 : 6) /* rows of a tile of sums in registers */
#define PANEL      (2 * LANES)            /* its columns */
#define BLOCK_KEYS 256                    /* whole panels */
#define S_ROW      (BLOCK_KEYS + 64)      /* no power of 2: rows a page apart fight for L1 */
#define BLOCK_ROWS 96                     /* whole strips */
#define ROOM       16                     /* at least STRIP, whole vectors */
#define LOG2E      0x1.715476p+0f
#define LN2        0x1.62e43p-1f

/* What one thread works in. */
typedef struct Block {
    float *Q_i;       /* [BLOCK_ROWS / STRIP][d][STRIP], times scale * log2(e) */
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

/* 2^x for x <= 0, NaN for NaN; from -126.5 down 0. The rounder has 127 added: what it leaves in the
 * low bits is the exponent field of 2^k, and 0, the field of the number 0, for k = -127. */
static inline Vector exp2_negative(Vector x)
{
    const float rounder = 0x1.8p23f + 127.0f;
    Vector z, r, q;
    x = larger((Vector){0} - 127.0f, x);
    z = x + rounder;
    r = x - (z - rounder); /* exact, |r| <= 1/2 */
    q = 0x1.4bc274p-13f * r + 0x1.5fc048p-10f;
    q = q * r + 0x1.3b21c6p-7f;
    q = q * r + 0x1.c6ada6p-5f;
    q = q * r + 0x1.ebfbe6p-3f;
    q = q * r + 0x1.62e432p-1f;
    return (q * r + 1.0f) * (Vector)((VectorBits)z << 23);
}

static float largest_lane(Vector v)
{
    float most = v[0];
    for (int t = 1; t < LANES; t++)
        most = v[t] > most ? v[t] : most;
    return most;
}

static float sum_of_lanes(Vector v)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int t = 0; t < half; t++)
            v[t] += v[t + half];
    return v[0];
}

/* The online update of a strip: S becomes P relative to the new maxima, l follows. alpha: what the
 * old O is worth now. Two vectors at a time, so that one does not wait for the other. */
static void update_strip(const Block *block, int64_t r, int64_t cols, float alpha[ROOM])
{
    float shift[ROOM];
    for (int row = 0; row < STRIP; row++) {
        const float *S_r = block->S + row * S_ROW;
        Vector a = load(S_r), b = load(S_r + LANES);
        for (int64_t c = PANEL; c < cols; c += PANEL) {
            a = larger(a, load(S_r + c));
            b = larger(b, load(S_r + c + LANES));
        }
        const float tile_max = largest_lane(larger(a, b)), m_old = block->m_i[r + row];
        const float m_new = m_old > tile_max ? m_old : tile_max;
        shift[row] = m_new == -INFINITY ? 0.0f : m_new; /* nothing seen: not -inf - -inf */
        alpha[row] = m_old - shift[row];
        block->m_i[r + row] = m_new;
    }
    for (int row = 0; row < STRIP; row += LANES) { /* alpha of several rows at once */
        Vector v;
        memcpy(&v, alpha + row, sizeof v);
        v = exp2_negative(v);
        memcpy(alpha + row, &v, sizeof v);
    }
    for (int row = 0; row < STRIP; row++) {
        float *P_r = block->S + row * S_ROW;
        Vector a = {0}, b = {0};
        for (int64_t c = 0; c < cols; c += PANEL) {
            const Vector p0 = exp2_negative(load(P_r + c) - shift[row]);
            const Vector p1 = exp2_negative(load(P_r + c + LANES) - shift[row]);
            store(P_r + c, p0);
            store(P_r + c + LANES, p1);
            a += p0;
            b += p1;
        }
        block->l_i[r + row] = alpha[row] * block->l_i[r + row] + sum_of_lanes(a + b);
    }
}

/* What a strip sees of keys j .. j+BLOCK_KEYS-1: S, P, and O = alpha O + P V. */
static void attend_strip(const AttnArgs *args, const Block *block, const Packed *packed, int64_t i,
                         int64_t r, int64_t j)
{
    const int64_t from = first_key(args, i), first = from > j ? from : j;
    const int64_t last = smaller(i + STRIP, args->shape.Nq) - 1;
    const int64_t end = smaller(end_key(args, last), j + BLOCK_KEYS);
    const int64_t start = first / PANEL * PANEL;
    float alpha[ROOM] = {0};
    if (first >= end)
        return;
    score_strip(args, block, packed, i, r, start, end);
    update_strip(block, r, round_up(end - start, PANEL), alpha);
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
            strip[x * STRIP] = args->scale * LOG2E * Q[x];
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
        args->lse[(b * n->H + h) * n->Nq + i + r] =
            l == 0.0f ? -INFINITY : block->m_i[r] * LN2 + logf(l);
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

AttnStatus OWN(v5_own_heads)(const AttnArgs *args);

/* Kv heads of one thread, one after the other, in one place. */
static void own_heads(const AttnArgs *args, const Block *block, const Packed *packed, int thread)
{
    const AttnShape *n = &args->shape;
    const int64_t group = n->H / n->Hkv;
    for (int64_t kv = thread; kv < n->B * n->Hkv; kv += args->threads) {
        for (int64_t j = 0; j < n->Nk; j += PANEL)
            pack_panel(args, packed, kv, j);
        for (int64_t head = kv * group; head < (kv + 1) * group; head++) /* batch * H + h */
            for (int64_t i = 0; i < n->Nq; i += BLOCK_ROWS)
                attend_block(args, block, packed, head / n->H, head % n->H, i);
    }
}

/* All threads of a team pack all heads, then share the blocks. */
static void shared_heads(const AttnArgs *args, const Block *block, float *heads)
{
    const AttnShape *n = &args->shape;
    const int64_t panels = (n->Nk + PANEL - 1) / PANEL, group = n->H / n->Hkv;
    const int64_t blocks = (n->Nq + BLOCK_ROWS - 1) / BLOCK_ROWS;
#pragma omp for schedule(static)
    for (int64_t t = 0; t < n->B * n->Hkv * panels; t++) {
        const Packed packed = packed_head(n, heads, t / panels);
        pack_panel(args, &packed, t / panels, t % panels * PANEL);
    }
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < n->B * n->H * blocks; t++) {
        const int64_t head = t / blocks;
        const Packed packed = packed_head(n, heads, head / group);
        attend_block(args, block, &packed, head / n->H, head % n->H,
                     (blocks - 1 - t % blocks) * BLOCK_ROWS);
    }
}

AttnStatus OWN(v5_own_heads)(const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    const int threads = args->threads, own = n->B * n->Hkv % threads == 0;
    const int64_t keys = round_up(n->Nk, PANEL), channels = round_up(n->d, PANEL);
    const int64_t head_floats = (own ? threads : n->B * n->Hkv) * keys * (n->d + channels);
    const int64_t thread_floats = block_floats(n->d, channels);
    float *heads = workspace_alloc((size_t)(head_floats + threads * thread_floats) * sizeof *heads);
    if (!heads)
        return ATTN_NO_MEMORY;
#pragma omp parallel num_threads(threads)
    {
        int thread = 0, team = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num();
        team = omp_get_num_threads();
#endif
        const Block block =
            place_block(heads + head_floats + thread * thread_floats, n->d, channels);
        for (; own && thread < threads; thread += team) { /* a team may be smaller than asked for */
            const Packed packed = packed_head(n, heads, thread);
            own_heads(args, &block, &packed, thread);
        }
        if (!own)
            shared_heads(args, &block, heads);
    }
    workspace_free(heads);
    return ATTN_OK;
}

/* --- which instruction set ---------------------------------------------------------------------*/

#ifdef ANY_PROCESSOR
AttnStatus v5_own_heads_avx2(const AttnArgs *args);
AttnStatus v5_own_heads_avx512(const AttnArgs *args);

AttnStatus flash_forward_v5_own_heads(const AttnArgs *args)
{
#ifdef HAVE_ISA_AVX512
    if (strcmp(exp_isa(), "avx512") == 0)
        return v5_own_heads_avx512(args);
#endif
#ifdef HAVE_ISA_AVX2
    if (strcmp(exp_isa(), "avx2") == 0)
        return v5_own_heads_avx2(args);
#endif
    return v5_own_heads_portable(args);
}
#endif
