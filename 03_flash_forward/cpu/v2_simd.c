/* SPDX-License-Identifier: MIT
 *
 * v2_simd: v1's loops on packed operands, register tiles and a vector exp.
 *
 * The two products of attention have an inner length of d = 64 and an output width of d: thin
 * matrices, for which a BLAS call spends much of its time on copying operands into its own layout,
 * again for every tile. Here K and V of a kv head are laid out once, for all tiles of queries and
 * all query heads that share them (2 N d copies beside 4 N^2 d operations). Then, for a block of
 * queries:
 *
 *     for each block of BLOCK_KEYS keys:
 *         for each panel of keys, for each strip of rows:   S tile in registers, then to the block
 *             (mask it, but only if some of its pairs are hidden)
 *         for each strip:                                   m_new, alpha, P = 2^(S - m_new), l
 *         for each panel of channels, for each strip:       O = alpha O + P V, in registers
 *
 * A strip is as many rows as a register tile has. The panel stays in L1 while all strips use it;
 * the S block (about 100 KiB) stays in L2. Logarithms are to base 2: log2(e) * scale is multiplied
 * into Q once, and 2^x needs no multiplication by log2(e) for each score.
 *
 * Masks: a strip keeps the range of panels in which it sees anything; what is outside is neither
 * computed nor multiplied with V. Inside, attn_tile_class says which tiles have hidden pairs.
 *
 * Interface:
 * - flash_forward_v2_simd; flash_block_cpu resumes from (O, lse).
 * - flash_simd_run, flash_simd_workspace_bytes: both, in the caller's memory. flash_simd_isa.
 * Threads share blocks of queries of all heads; a result does not depend on their number.
 */
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "alloc.h"
#include "attn_config.h"
#include "exp.h"
#include "flash_forward.h"
#include "naive.h"
#include "simd.h"
#include "tensor.h"

#define BLOCK_KEYS 256 /* a multiple of every panel width */
#define BLOCK_ROWS 112 /* at most: as many whole strips as fit */
#define MAX_STRIPS 18
#define LOG2E      0x1.715476p+0f
#define LN2        0x1.62e43p-1f

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

const char *flash_simd_isa(void)
{
    return choose_simd()->name;
}

static int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Sizes that follow from the shape, and where things lie in the workspace. */
typedef struct Plan {
    const FlashSimd *simd;
    int64_t rows;     /* of a block of queries: whole strips */
    int64_t keys;     /* Nk, rounded up to whole panels */
    int64_t channels; /* d, rounded up to whole panels */
    int64_t slots;    /* packed heads that exist at a time */
    int64_t K_floats, V_floats, thread_floats;
    float *K_packed;   /* [slots][keys / panel][d][panel] */
    float *V_packed;   /* [slots][channels / panel][keys][panel] */
    AttnRange *ranges; /* [keys / panel] positions of a panel's keys */
    uint8_t *straight; /* [keys / panel] 1: one sequence, positions rise by 1 from key to key */
    float *thread;     /* [threads][thread_floats] */
} Plan;

/* What one thread works in. rows = plan->rows. */
typedef struct Block {
    float *Q_i;                   /* [rows][d], times scale * log2(e) */
    float *O_i;                   /* [rows][channels], not yet divided */
    float *S;                     /* [rows][BLOCK_KEYS], then P */
    float *l_i;                   /* [rows][lanes] parts of the sum */
    float *m_i;                   /* [rows], base 2 */
    float *alpha;                 /* [rows] */
    float *copy;                  /* [panel][d] rows on their way into a panel */
    AttnRange ranges[MAX_STRIPS]; /* of each strip's queries */
    int64_t first, last;          /* visible columns of the strip in the key block */
} Block;

static int64_t block_floats(const Plan *p, int64_t d)
{
    return round_up(p->rows * d, 16) + p->rows * (p->channels + BLOCK_KEYS) +
           round_up(p->rows * p->simd->lanes, 16) + 2 * (round_up(p->rows, 16) + SIMD_MAX_LANES) +
           round_up(p->simd->panel * d, 16);
}

/* Everything starts at a multiple of 64 bytes. */
static Block block_place(const Plan *p, int64_t d, float *at)
{
    int64_t vector = round_up(p->rows, 16) + SIMD_MAX_LANES;
    Block block;
    block.Q_i = at;
    block.O_i = block.Q_i + round_up(p->rows * d, 16);
    block.S = block.O_i + p->rows * p->channels;
    block.l_i = block.S + p->rows * BLOCK_KEYS;
    block.m_i = block.l_i + round_up(p->rows * p->simd->lanes, 16);
    block.alpha = block.m_i + vector;
    block.copy = block.alpha + vector;
    return block;
}

static size_t make_plan(Plan *p, const AttnShape *n, int threads, char *workspace)
{
    int64_t panels, kv_heads = n->B * n->Hkv;
    size_t bytes[5], at = 0;
    p->simd = choose_simd();
    panels = (n->Nk + p->simd->panel - 1) / p->simd->panel;
    p->rows = BLOCK_ROWS / p->simd->strip * p->simd->strip;
    p->keys = panels * p->simd->panel;
    p->channels = round_up(n->d, p->simd->panel);
    p->K_floats = round_up(p->keys * n->d, 16);
    p->V_floats = round_up(p->keys * p->channels, 16);
    p->thread_floats = round_up(block_floats(p, n->d), 16);
    p->slots = kv_heads % threads == 0 ? threads : kv_heads;
    bytes[0] = (size_t)(p->slots * p->K_floats) * sizeof(float);
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
        at += bytes[part];
    return at;
}

size_t flash_simd_workspace_bytes(const AttnShape *shape, int threads)
{
    Plan plan;
    return make_plan(&plan, shape, threads, NULL);
}

/* --- rows of the caller's tensors --------------------------------------------------------------*/

#define ROWS_AHEAD 16

/* With many heads the rows of one head lie a page apart, and there the processor stops guessing
 * what will be read next. So it is told; without this the copies below cost ten per cent. */
static void fetch_row(const Tensor *t, int64_t b, int64_t h, int64_t row)
{
    size_t bytes = (size_t)t->shape[3] * dtype_size(t->dtype);
    const char *p =
        (const char *)t->data + tensor_offset(t, b, row, h) * (int64_t)dtype_size(t->dtype);
    for (size_t line = 0; row < t->shape[1] && line < bytes; line += 64)
        __builtin_prefetch(p + line);
}

/* rows [count][d] = tokens first .. of head h, as float */
static void load_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                      float *rows)
{
    for (int64_t r = 0; r < count; r++) {
        fetch_row(t, b, h, first + r + ROWS_AHEAD);
        tensor_read_row(t, b, first + r, h, rows + r * t->shape[3]);
    }
}

/* --- packing -----------------------------------------------------------------------------------*/

/* K and V of one panel of keys. Keys past the end become zeros: their scores are masked, but P = 0
 * times whatever else lies in memory might be NaN. */
static void pack_panel(const AttnArgs *args, const Plan *p, float *copy, int64_t kv, int64_t slot,
                       int64_t panel)
{
    const AttnShape *n = &args->shape;
    int64_t width = p->simd->panel, j = panel * width, count = smaller(width, n->Nk - j);
    int64_t b = kv / n->Hkv, kv_head = kv % n->Hkv, d = n->d;
    float *V_head = p->V_packed + slot * p->V_floats;

    memset(copy + count * d, 0, (size_t)((width - count) * d) * sizeof *copy);
    load_rows(&args->K, b, kv_head, j, count, copy);
    p->simd->transpose(copy, d, p->K_packed + slot * p->K_floats + j * d);
    load_rows(&args->V, b, kv_head, j, count, copy);
    for (int64_t x = 0; x < p->channels; x += width) {
        int64_t real = smaller(width, d - x);
        float *to = V_head + x * p->keys + j * width;
        for (int64_t c = 0; c < width; c++, to += width) {
            for (int64_t y = 0; y < real; y++)
                to[y] = copy[c * d + x + y];
            for (int64_t y = real; y < width; y++)
                to[y] = 0.0f;
        }
    }
}

static void describe_panels(const AttnArgs *args, const Plan *p)
{
    int64_t width = p->simd->panel;
    for (int64_t j = 0; j < args->shape.Nk; j += width) {
        int64_t count = smaller(width, args->shape.Nk - j), panel = j / width;
        AttnRange range = attn_range(args->positions_k, j, count);
        int straight = range.sequence >= 0 && range.max - range.min == count - 1;
        for (int64_t c = 0; straight && c < count; c++)
            straight = attn_position(args->positions_k, j + c).position == range.min + c;
        p->ranges[panel] = range;
        p->straight[panel] = (uint8_t)straight;
    }
}

/* --- masks -------------------------------------------------------------------------------------*/

/* Hides pairs of S [rows][BLOCK_KEYS]: queries i .., the panel of keys. */
static void mask_tile(const AttnArgs *args, const Plan *p, int64_t i, int64_t rows, int64_t panel,
                      float *S)
{
    int64_t width = p->simd->panel, j = panel * width;
    int64_t cols = smaller(width, args->shape.Nk - j);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = cols; c < width; c++)
            S[r * BLOCK_KEYS + c] = -INFINITY;
    if (args->mask || !p->straight[panel]) {
        naive_mask_rows(args, i, rows, j, cols, S, BLOCK_KEYS);
        return;
    }
    /* The usual case: what a row sees is an interval of columns. */
    for (int64_t r = 0; r < rows; r++) {
        AttnPosition q = attn_position(args->positions_q, i + r);
        int64_t ahead =
            q.position - p->ranges[panel].min; /* the column with the query's position */
        int64_t from = 0, to = cols;           /* visible: from <= c < to */
        if (args->rule.left >= 0 && ahead > args->rule.left)
            from = smaller(ahead - args->rule.left, cols);
        if (args->rule.right >= 0 && args->rule.right < cols - 1 - ahead)
            to = ahead + args->rule.right + 1 > from ? ahead + args->rule.right + 1 : from;
        if (q.sequence != p->ranges[panel].sequence)
            to = from;
        for (int64_t c = 0; c < from; c++)
            S[r * BLOCK_KEYS + c] = -INFINITY;
        for (int64_t c = to; c < cols; c++)
            S[r * BLOCK_KEYS + c] = -INFINITY;
    }
}

/* Columns of the key block that strip s can see anything of: whole panels, first .. last-1. */
static void find_span(const AttnArgs *args, const Plan *p, Block *block, int64_t s, int64_t j,
                      int64_t keys)
{
    int64_t width = p->simd->panel, first = 0, last = keys / width;
    const AttnRange *ranges = p->ranges + j / width;
    while (first < last &&
           attn_tile_class(args->rule, block->ranges[s], ranges[first]) == ATTN_TILE_SKIP)
        first++;
    while (first < last &&
           attn_tile_class(args->rule, block->ranges[s], ranges[last - 1]) == ATTN_TILE_SKIP)
        last--;
    block->first = first * width;
    block->last = last * width;
}

/* --- one block of queries ----------------------------------------------------------------------*/

static void cap_scores(float *S, int64_t rows, int64_t cols, float cap)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            S[r * BLOCK_KEYS + c] = cap * LOG2E * tanhf(S[r * BLOCK_KEYS + c]);
}

/* S of strip s and its visible columns of the key block j .., masked. */
static void score_strip(const AttnArgs *args, const Plan *p, Block *block, const float *K_head,
                        int64_t i, int64_t s, int64_t j)
{
    int64_t d = args->shape.d, width = p->simd->panel, strip = p->simd->strip;
    int64_t row = i + s * strip, rows = smaller(strip, args->shape.Nq - row);
    for (int64_t c = block->first; c < block->last; c += width) {
        int64_t panel = (j + c) / width;
        float *S = block->S + c;
        p->simd->scores(block->Q_i + s * strip * d, d, K_head + (j + c) * d, d, S, BLOCK_KEYS);
        if (args->softcap > 0.0f)
            cap_scores(S, strip, width, args->softcap);
        if (args->mask || j + c + width > args->shape.Nk ||
            attn_tile_class(args->rule, block->ranges[s], p->ranges[panel]) != ATTN_TILE_CLEAN)
            mask_tile(args, p, row, rows, panel, S);
    }
}

/* Q times what turns q.k into a power of two (or, with a cap, into the argument of tanh). Rows
 * behind the last query are zeros; so they have finite scores and are never stored. */
static void start_block(const AttnArgs *args, const Plan *p, Block *block, const float *O_state,
                        int64_t b, int64_t h, int64_t i, int64_t rows)
{
    const AttnShape *n = &args->shape;
    float factor = args->softcap > 0.0f ? args->scale / args->softcap : args->scale * LOG2E;
    int64_t strip = p->simd->strip, padded = round_up(rows, strip);
    load_rows(&args->Q, b, h, i, rows, block->Q_i);
    for (int64_t e = 0; e < rows * n->d; e++)
        block->Q_i[e] *= factor;
    memset(block->Q_i + rows * n->d, 0, (size_t)((padded - rows) * n->d) * sizeof(float));
    memset(block->O_i, 0, (size_t)(padded * p->channels) * sizeof(float));
    memset(block->l_i, 0, (size_t)(padded * p->simd->lanes) * sizeof(float));
    for (int64_t r = 0; r < padded + SIMD_MAX_LANES; r++)
        block->m_i[r] = -INFINITY;
    for (int64_t s = 0; s * strip < rows; s++)
        block->ranges[s] =
            attn_range(args->positions_q, i + s * strip, smaller(strip, rows - s * strip));
    for (int64_t r = 0; O_state && r < rows; r++) { /* resume: m = lse, l = 1 */
        float lse = args->lse[(b * n->H + h) * n->Nq + i + r];
        block->m_i[r] = lse * LOG2E;
        block->l_i[r * p->simd->lanes] = lse == -INFINITY ? 0.0f : 1.0f;
        memcpy(block->O_i + r * p->channels, O_state + ((b * n->Nq + i + r) * n->H + h) * n->d,
               (size_t)n->d * sizeof(float));
    }
}

static void finish_block(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                         int64_t b, int64_t h, int64_t i, int64_t rows)
{
    const AttnShape *n = &args->shape;
    for (int64_t r = 0; r < rows; r++) {
        float *O_r = block->O_i + r * p->channels, l_r, inverse;
        float *parts = block->l_i + r * p->simd->lanes;
        for (int64_t half = p->simd->lanes / 2; half > 0; half /= 2)
            for (int64_t t = 0; t < half; t++)
                parts[t] += parts[t + half];
        l_r = parts[0];
        inverse = l_r == 0.0f ? 0.0f : 1.0f / l_r;
        for (int64_t x = 0; x < n->d; x++)
            O_r[x] *= inverse;
        args->lse[(b * n->H + h) * n->Nq + i + r] =
            l_r == 0.0f ? -INFINITY : block->m_i[r] * LN2 + logf(l_r);
        if (!O_state)
            fetch_row(&args->O, b, h, i + r + ROWS_AHEAD);
        if (O_state)
            memcpy(O_state + ((b * n->Nq + i + r) * n->H + h) * n->d, O_r,
                   (size_t)n->d * sizeof(float));
        else
            tensor_write_row(&args->O, b, i + r, h, O_r);
    }
}

static void attend_block(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                         int64_t b, int64_t h, int64_t i, int64_t slot)
{
    const AttnShape *n = &args->shape;
    int64_t strip = p->simd->strip, width = p->simd->panel;
    int64_t rows = smaller(p->rows, n->Nq - i), strips = (rows + strip - 1) / strip;
    const float *K_head = p->K_packed + slot * p->K_floats;
    const float *V_head = p->V_packed + slot * p->V_floats;

    start_block(args, p, block, O_state, b, h, i, rows);
    for (int64_t j = 0; j < n->Nk; j += BLOCK_KEYS)
        for (int64_t s = 0; s < strips; s++) {
            find_span(args, p, block, s, j, smaller(BLOCK_KEYS, p->keys - j));
            if (block->first == block->last)
                continue;
            int64_t first = block->first, cols = block->last - first;
            score_strip(args, p, block, K_head, i, s, j);
            p->simd->update(block->S + first, BLOCK_KEYS, cols, block->m_i + s * strip,
                            block->l_i + s * strip * p->simd->lanes, block->alpha);
            for (int64_t x = 0; x < p->channels; x += width)
                p->simd->weighted_sum(block->S + first, BLOCK_KEYS, cols,
                                      V_head + x * p->keys + (j + first) * width, block->alpha,
                                      block->O_i + s * strip * p->channels + x, p->channels);
        }
    finish_block(args, p, block, O_state, b, h, i, rows);
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
            pack_panel(args, p, block->copy, kv, thread, panel);
        for (int64_t h = kv % n->Hkv * group; h < (kv % n->Hkv + 1) * group; h++)
            for (int64_t i = 0; i < n->Nq; i += p->rows)
                attend_block(args, p, block, O_state, kv / n->Hkv, h, i, thread);
    }
}

/* They do not: all threads pack all heads, then share the blocks of queries. Called by each thread
 * of a parallel region. */
static void attend_shared_heads(const AttnArgs *args, const Plan *p, Block *block, float *O_state)
{
    const AttnShape *n = &args->shape;
    int64_t panels = p->keys / p->simd->panel, blocks = (n->Nq + p->rows - 1) / p->rows;
#pragma omp for schedule(static)
    for (int64_t t = 0; t < n->B * n->Hkv * panels; t++)
        pack_panel(args, p, block->copy, t / panels, t / panels, t % panels);
        /* From the last block of a head to its first: under a causal mask that is from much work to
     * little, and the threads finish together. */
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < n->B * n->H * blocks; t++) {
        int64_t b = t / (n->H * blocks), h = t / blocks % n->H;
        attend_block(args, p, block, O_state, b, h, (blocks - 1 - t % blocks) * p->rows,
                     b * n->Hkv + naive_kv_head(n, h));
    }
}

AttnStatus flash_simd_run(const AttnArgs *args, float *O_state, void *workspace)
{
    int threads = args->threads;
    Plan plan;
    make_plan(&plan, &args->shape, threads, workspace);
    describe_panels(args, &plan);

    if (threads == 1) { /* OpenMP allocates memory for a region, even of one thread */
        Block block = block_place(&plan, args->shape.d, plan.thread);
        attend_own_heads(args, &plan, &block, O_state, 0);
        return ATTN_OK;
    }
#pragma omp parallel num_threads(threads)
    {
        int thread = 0, team = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num();
        team = omp_get_num_threads();
#endif
        Block block = block_place(&plan, args->shape.d, plan.thread + thread * plan.thread_floats);
        if (plan.slots != threads)
            attend_shared_heads(args, &plan, &block, O_state);
        else /* a team may be smaller than asked for */
            for (int slot = thread; slot < threads; slot += team)
                attend_own_heads(args, &plan, &block, O_state, slot);
    }
    return ATTN_OK;
}

FlashTiles flash_tiles_v2_simd(const AttnArgs *args)
{
    Plan plan;
    make_plan(&plan, &args->shape, args->threads, NULL);
    return flash_tiles_of(&args->shape, plan.rows, plan.simd->panel);
}

AttnStatus flash_block_cpu(const AttnArgs *args, float *O_state)
{
    void *workspace = workspace_alloc(flash_simd_workspace_bytes(&args->shape, args->threads));
    AttnStatus status;
    if (!workspace)
        return ATTN_NO_MEMORY;
    status = flash_simd_run(args, O_state, workspace);
    workspace_free(workspace);
    return status;
}

AttnStatus flash_forward_v2_simd(const AttnArgs *args)
{
    return flash_block_cpu(args, NULL);
}
