/* SPDX-License-Identifier: MIT
 *
 * v3_register_tiles: v2_packing with a tile of sums in registers instead of one row.
 *
 * As in the forward pass: STRIP rows x 2 vectors are 12 sums (24 with AVX-512), enough to keep both
 * multiply-add units busy, and one vector from the cache serves STRIP rows. All five products of
 * the backward pass are such tiles; they differ in where the single numbers stand:
 *
 *     product          rows of the tile   numbers                        from one step to the next
 *     S^T, dP^T        keys               K, V of a strip, [d][STRIP]    STRIP
 *     dV, dK           keys               P, dS along their rows         1
 *     dQ               queries            dS down its columns            S_ROW
 *
 * So the unit of work is a strip of keys. Its keys are seen by different queries: what is hidden of
 * a tile gets P = 0, and dS = 0 up to the ends of the block of queries, where dQ takes strips of
 * queries, too.
 *
 * Prediction: three times as fast. Nothing waits for its own sum, and the traffic with the L2 cache
 * falls to a sixth.
 *
 * Instruction sets: Meson compiles this file once for each (exp/vector.h). The copy for any
 * processor holds the choice, at the end of the file.
 *
 * Interface: flash_backward_v3_register_tiles (flash_backward.h). Float32.
 */
#include <math.h>
#include <string.h>

#include "attn_config.h"
#include "flash_backward.h"
#include "units/exp.h"
#include "units/vector.h"

#define STRIP        (LANES == 16 ? 12 : 6)        /* rows of a tile of sums in registers */
#define PANEL        (2 * LANES)                   /* its columns */
#define KEYS         FLASH_BACKWARD_PACKED_KEYS    /* of a block: whole strips */
#define QUERIES      FLASH_BACKWARD_PACKED_QUERIES /* of a block: whole strips and panels */
#define S_ROW        (QUERIES + 16)                /* no power of 2: rows would fight for L1 */
#define WANTED_TASKS 8                             /* (batch, kv head, part): for so many threads */

/* A query head, laid out. Rows from Nq on, up to whole panels, are zeros. */
typedef struct QueryHead {
    float *Q_panels, *dO_panels; /* [rows / PANEL][d][PANEL]; Q times the scale */
    float *Q_pieces, *dO_pieces; /* [channels / PANEL][rows][PANEL] */
    float *lse;                  /* [rows] +inf where a row sees no key, so that P = 0 */
    float *delta;                /* [rows] */
} QueryHead;

/* What one thread works in: a block of keys from key j on. */
typedef struct KeyBlock {
    int64_t j, count;
    float *K, *V;    /* [KEYS / STRIP][d][STRIP] */
    float *K_pieces; /* [channels / PANEL][KEYS][PANEL] */
    float *dK, *dV;  /* [KEYS][channels]; dK without the scale */
    float *S;        /* [STRIP][S_ROW] scores of a strip, then P */
    float *dS;       /* [KEYS][S_ROW] dP, then dS */
} KeyBlock;

/* Sizes that follow from the shape, and where things lie in the workspace. */
typedef struct Plan {
    int64_t rows, channels; /* Nq and d, rounded up to whole strips and panels */
    int64_t group, parts;   /* query heads of a kv head; dQ that its keys are dealt out to */
    float *heads;           /* [B * H][head_floats] QueryHead */
    float *dQ;              /* [B * Hkv][parts][group][rows][channels], without the scale */
    float *blocks;          /* [threads][block_floats] KeyBlock */
} Plan;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

/* --- who sees whom -------------------------------------------------------------------------------
 * Query i stands at key i + shift. With `own` = i + shift it sees keys own - left .. own + right,
 * and key j is seen by the queries j - shift - right .. j - shift + left. A limit may be as large
 * as an int64 can be, so nothing is added to it before it is known to be small. */

static int64_t first_seen(int64_t own, int64_t reach, int64_t count)
{
    return reach >= 0 && own > reach ? smaller(own - reach, count) : 0;
}

static int64_t end_seen(int64_t own, int64_t reach, int64_t count)
{
    if (reach < 0 || reach >= count - 1 - own)
        return count;
    return own + reach + 1 > 0 ? own + reach + 1 : 0;
}

static int64_t shift_of(const AttnArgs *args)
{
    return attn_position(args->positions_q, 0).position -
           attn_position(args->positions_k, 0).position;
}

/* --- packing -----------------------------------------------------------------------------------*/

static const float *row_of(const Tensor *t, int64_t b, int64_t n, int64_t h)
{
    return (const float *)t->data + tensor_offset(t, b, n, h);
}

/* Row r of [channels / PANEL][rows][PANEL]; from NULL: zeros. */
static void pack_piece(const float *from, int64_t d, int64_t rows, int64_t r, float *to)
{
    for (int64_t x = 0; x < d; x += PANEL) {
        const int64_t width = from ? smaller(PANEL, d - x) : 0;
        float *piece = to + x * rows + r * PANEL;
        memset(piece + width, 0, (size_t)(PANEL - width) * sizeof(float));
        if (width > 0)
            memcpy(piece, from + x, (size_t)width * sizeof(float));
    }
}

/* Row i of [rows / width][d][width]; from NULL: zeros. */
static void pack_column(const float *from, int64_t d, int64_t i, int64_t width, float factor,
                        float *to)
{
    float *column = to + i / width * width * d + i % width;
    for (int64_t x = 0; x < d; x++)
        column[x * width] = from ? factor * from[x] : 0.0f;
}

/* Query i of head h. A row without keys gives nothing, whatever stands in its Q and dO. */
static void pack_query(const AttnArgs *args, const Plan *p, const QueryHead *head, int64_t b,
                       int64_t h, int64_t i)
{
    const AttnShape *n = &args->shape;
    const float lse = i < n->Nq ? args->lse[(b * n->H + h) * n->Nq + i] : -INFINITY;
    const float *Q = NULL, *dO = NULL;
    head->lse[i] = lse == -INFINITY ? INFINITY : lse;
    head->delta[i] = 0.0f;
    if (lse != -INFINITY) {
        const float *O = row_of(&args->O, b, i, h);
        Q = row_of(&args->Q, b, i, h);
        dO = row_of(&args->dO, b, i, h);
        for (int64_t x = 0; x < n->d; x++)
            head->delta[i] += dO[x] * O[x];
    }
    pack_column(Q, n->d, i, PANEL, args->scale, head->Q_panels);
    pack_column(dO, n->d, i, PANEL, 1.0f, head->dO_panels);
    pack_piece(Q, n->d, p->rows, i, head->Q_pieces);
    pack_piece(dO, n->d, p->rows, i, head->dO_pieces);
}

/* Keys j .. of kv head h_kv, up to whole strips; their sums become 0. */
static void pack_keys(const AttnArgs *args, const Plan *p, KeyBlock *block, int64_t b, int64_t h_kv,
                      int64_t j)
{
    const int64_t d = args->shape.d;
    block->j = j;
    block->count = smaller(KEYS, args->shape.Nk - j);
    for (int64_t r = 0; r < round_up(block->count, STRIP); r++) {
        const float *K = r < block->count ? row_of(&args->K, b, j + r, h_kv) : NULL;
        const float *V = r < block->count ? row_of(&args->V, b, j + r, h_kv) : NULL;
        pack_column(K, d, r, STRIP, 1.0f, block->K);
        pack_column(V, d, r, STRIP, 1.0f, block->V);
        pack_piece(K, d, KEYS, r, block->K_pieces);
    }
    memset(block->dK, 0, (size_t)(KEYS * p->channels) * sizeof(float));
    memset(block->dV, 0, (size_t)(KEYS * p->channels) * sizeof(float));
}

/* --- one strip ---------------------------------------------------------------------------------*/

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

/* C [STRIP][channels] += a times rows first .. first+steps-1 of pieces
 * [channels / PANEL][rows][PANEL] */
static inline __attribute__((always_inline)) void
add_rows(const float *a, const int64_t row_step, const int64_t step, const float *pieces,
         int64_t rows, int64_t first, int64_t steps, float *C, int64_t channels)
{
    for (int64_t x = 0; x < channels; x += PANEL) {
        Vector acc[STRIP][2];
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            acc[r][0] = load(C + r * channels + x);
            acc[r][1] = load(C + r * channels + x + LANES);
        }
        add_products(acc, a, row_step, step, pieces + x * rows + first * PANEL, steps);
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            store(C + r * channels + x, acc[r][0]);
            store(C + r * channels + x + LANES, acc[r][1]);
        }
    }
}

/* A tile [STRIP][PANEL] of S or dP: a strip of K or V with a panel of Q or dO. */
static inline __attribute__((always_inline)) void
multiply_panel(const float *strip, const float *panel, int64_t d, float *to)
{
    Vector acc[STRIP][2] = {{{0}}};
    add_products(acc, strip, 1, STRIP, panel, d);
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++) {
        store(to + r * S_ROW, acc[r][0]);
        store(to + r * S_ROW + LANES, acc[r][1]);
    }
}

/* S and dP of the strip from row r on, columns start .. end-1 of the block of queries i .. . What
 * is hidden becomes S = -inf. */
static void score_strip(const AttnArgs *args, const KeyBlock *block, const QueryHead *head,
                        int64_t r, int64_t i, int64_t start, int64_t end)
{
    const int64_t d = args->shape.d, Nq = args->shape.Nq;
    for (int64_t c = start; c < end; c += PANEL) {
        multiply_panel(block->K + r * d, head->Q_panels + (i + c) * d, d, block->S + c);
        multiply_panel(block->V + r * d, head->dO_panels + (i + c) * d, d,
                       block->dS + r * S_ROW + c);
    }
    for (int64_t row = 0; row < STRIP; row++) {
        const int64_t own = block->j + r + row - shift_of(args);
        const int64_t first = smaller(first_seen(own, args->rule.right, Nq) - i, end);
        const int64_t hidden = end_seen(own, args->rule.left, Nq) - i;
        for (int64_t c = start; c < first; c++)
            block->S[row * S_ROW + c] = -INFINITY;
        for (int64_t c = hidden > start ? hidden : start; c < end; c++)
            block->S[row * S_ROW + c] = -INFINITY;
    }
}

/* S becomes P, dP becomes dS. lse and delta [QUERIES] of the block of queries. */
static void update_row(float *S, float *dS, const float *lse, const float *delta, int64_t start,
                       int64_t end)
{
    for (int64_t c = start; c < end; c++)
        S[c] = S[c] > lse[c] ? 0.0f : S[c] - lse[c]; /* lse is rounded: P stays at most 1 */
    softmax_exp_row(S + start, S + start, end - start, 0.0f);
    for (int64_t c = start; c < end; c++)
        dS[c] = S[c] * (dS[c] - delta[c]);
}

/* The strip from row r on, keys block->j + r .., with queries i .. i+QUERIES-1. */
static void visit_strip(const AttnArgs *args, const Plan *p, const KeyBlock *block,
                        const QueryHead *head, int64_t r, int64_t i)
{
    const int64_t own = block->j + r - shift_of(args), Nq = args->shape.Nq;
    const int64_t last = own + smaller(STRIP, block->count - r) - 1;
    const int64_t from = first_seen(own, args->rule.right, Nq) - i, first = from > 0 ? from : 0;
    const int64_t seen = smaller(end_seen(last, args->rule.left, Nq) - i, QUERIES);
    const int64_t start = first / PANEL * PANEL, end = round_up(seen > 0 ? seen : 0, PANEL);
    float *dS = block->dS + r * S_ROW;
    for (int64_t row = 0; row < STRIP && first >= seen; row++)
        memset(dS + row * S_ROW, 0, QUERIES * sizeof *dS);
    if (first >= seen)
        return;
    score_strip(args, block, head, r, i, start, end);
    for (int64_t row = 0; row < STRIP; row++) {
        update_row(block->S + row * S_ROW, dS + row * S_ROW, head->lse + i, head->delta + i, start,
                   end);
        memset(dS + row * S_ROW, 0, (size_t)start * sizeof *dS); /* add_strip reads a bit further */
        memset(dS + row * S_ROW + end, 0, (size_t)(QUERIES - end) * sizeof *dS);
    }
    add_rows(block->S + first, S_ROW, 1, head->dO_pieces, p->rows, i + first, seen - first,
             block->dV + r * p->channels, p->channels);
    add_rows(dS + first, S_ROW, 1, head->Q_pieces, p->rows, i + first, seen - first,
             block->dK + r * p->channels, p->channels);
}

/* dQ of the strip of queries i + c .., from the keys of the block that it sees anything of. */
static void add_strip(const AttnArgs *args, const Plan *p, const KeyBlock *block, float *dQ,
                      int64_t i, int64_t c)
{
    const int64_t own = i + c + shift_of(args), Nk = args->shape.Nk;
    const int64_t from = first_seen(own, args->rule.left, Nk) - block->j;
    const int64_t first = from > 0 ? from : 0;
    const int64_t seen = end_seen(own + STRIP - 1, args->rule.right, Nk) - block->j;
    const int64_t end = smaller(seen, block->count);
    if (first < end)
        add_rows(block->dS + first * S_ROW + c, 1, S_ROW, block->K_pieces, KEYS, first, end - first,
                 dQ + (i + c) * p->channels, p->channels);
}

/* --- one block of keys -------------------------------------------------------------------------*/

/* With all queries of one head; dQ [rows][channels]. */
static void visit_head(const AttnArgs *args, const Plan *p, const KeyBlock *block,
                       const QueryHead *head, float *dQ)
{
    const int64_t shift = shift_of(args), Nq = args->shape.Nq, last = block->j + block->count - 1;
    const int64_t first = first_seen(block->j - shift, args->rule.right, Nq);
    const int64_t end = end_seen(last - shift, args->rule.left, Nq);
    for (int64_t i = first / QUERIES * QUERIES; i < end; i += QUERIES) {
        for (int64_t r = 0; r < block->count; r += STRIP)
            visit_strip(args, p, block, head, r, i);
        for (int64_t c = 0; c < smaller(QUERIES, Nq - i); c += STRIP)
            add_strip(args, p, block, dQ, i, c);
    }
}

/* Nobody else has these keys: their dK and dV are done. */
static void finish_keys(const AttnArgs *args, const Plan *p, const KeyBlock *block, int64_t b,
                        int64_t h_kv)
{
    for (int64_t r = 0; r < block->count; r++) {
        float *dK = (float *)args->dK.data + tensor_offset(&args->dK, b, block->j + r, h_kv);
        float *dV = (float *)args->dV.data + tensor_offset(&args->dV, b, block->j + r, h_kv);
        for (int64_t x = 0; x < args->shape.d; x++) {
            dK[x] = args->scale * block->dK[r * p->channels + x];
            dV[x] = block->dV[r * p->channels + x];
        }
    }
}

/* --- all of it ---------------------------------------------------------------------------------*/

static int64_t head_floats(const Plan *p, int64_t d)
{
    return 2 * p->rows * (d + p->channels + 1);
}

static QueryHead query_head(const Plan *p, int64_t d, int64_t head)
{
    QueryHead q;
    q.Q_panels = p->heads + head * head_floats(p, d);
    q.dO_panels = q.Q_panels + p->rows * d;
    q.Q_pieces = q.dO_panels + p->rows * d;
    q.dO_pieces = q.Q_pieces + p->rows * p->channels;
    q.lse = q.dO_pieces + p->rows * p->channels;
    q.delta = q.lse + p->rows;
    return q;
}

static int64_t block_floats(const Plan *p, int64_t d)
{
    return 2 * round_up(KEYS * d, 16) + KEYS * (3 * p->channels + S_ROW) + STRIP * S_ROW;
}

static KeyBlock key_block(const Plan *p, int64_t d, int thread)
{
    KeyBlock block = {0};
    block.K = p->blocks + thread * block_floats(p, d);
    block.V = block.K + round_up(KEYS * d, 16);
    block.K_pieces = block.V + round_up(KEYS * d, 16);
    block.dK = block.K_pieces + KEYS * p->channels;
    block.dV = block.dK + KEYS * p->channels;
    block.S = block.dV + KEYS * p->channels;
    block.dS = block.S + STRIP * S_ROW;
    return block;
}

/* The dQ that a part of the keys adds up, of query head g of kv head kv. */
static float *part_dQ(const Plan *p, int64_t kv, int64_t part, int64_t g)
{
    return p->dQ + ((kv * p->parts + part) * p->group + g) * p->rows * p->channels;
}

/* Blocks part, part + parts, ... of the keys of a kv head. */
static void backward_part(const AttnArgs *args, const Plan *p, KeyBlock *block, int64_t kv,
                          int64_t part)
{
    const AttnShape *n = &args->shape;
    const int64_t b = kv / n->Hkv, h_kv = kv % n->Hkv;
    memset(part_dQ(p, kv, part, 0), 0, (size_t)(p->group * p->rows * p->channels) * sizeof(float));
    for (int64_t j = part * KEYS; j < n->Nk; j += p->parts * KEYS) {
        pack_keys(args, p, block, b, h_kv, j);
        for (int64_t g = 0; g < p->group; g++) {
            const QueryHead head = query_head(p, n->d, kv * p->group + g);
            visit_head(args, p, block, &head, part_dQ(p, kv, part, g));
        }
        finish_keys(args, p, block, b, h_kv);
    }
}

/* dQ of query i, head `head` of all batches = scale * the parts, first to last. */
static void add_parts(const AttnArgs *args, const Plan *p, int64_t head, int64_t i)
{
    const AttnShape *n = &args->shape;
    float *dQ = (float *)args->dQ.data + tensor_offset(&args->dQ, head / n->H, i, head % n->H);
    for (int64_t x = 0; x < n->d; x++) {
        float sum = 0.0f;
        for (int64_t part = 0; part < p->parts; part++)
            sum += part_dQ(p, head / p->group, part, head % p->group)[i * p->channels + x];
        dQ[x] = args->scale * sum;
    }
}

/* Floats of the workspace. */
static int64_t make_plan(Plan *p, const AttnShape *n, int threads)
{
    const int64_t kv_heads = n->B * n->Hkv, wanted = (WANTED_TASKS + kv_heads - 1) / kv_heads;
    p->rows = round_up(round_up(n->Nq, STRIP), PANEL);
    p->channels = round_up(n->d, PANEL);
    p->group = n->H / n->Hkv;
    p->parts = smaller((n->Nk + KEYS - 1) / KEYS, wanted);
    return n->B * n->H * (head_floats(p, n->d) + p->parts * p->rows * p->channels) +
           threads * block_floats(p, n->d);
}

AttnStatus OWN(backward_v3_register_tiles)(const AttnArgs *args);

AttnStatus OWN(backward_v3_register_tiles)(const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    const int threads = args->threads;
    Plan plan;
    const int64_t floats = make_plan(&plan, n, threads), heads = n->B * n->H;
    const int64_t tasks = n->B * n->Hkv * plan.parts;
    plan.heads = workspace_alloc((size_t)floats * sizeof(float));
    if (!plan.heads)
        return ATTN_NO_MEMORY;
    plan.dQ = plan.heads + heads * head_floats(&plan, n->d);
    plan.blocks = plan.dQ + heads * plan.parts * plan.rows * plan.channels;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < heads * plan.rows; t++) {
        const QueryHead head = query_head(&plan, n->d, t / plan.rows);
        pack_query(args, &plan, &head, t / plan.rows / n->H, t / plan.rows % n->H, t % plan.rows);
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        KeyBlock block = key_block(&plan, n->d, thread);
        for (int64_t t = thread; t < tasks; t += threads)
            backward_part(args, &plan, &block, t / plan.parts, t % plan.parts);
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < heads * n->Nq; t++)
        add_parts(args, &plan, t / n->Nq, t % n->Nq);
    workspace_free(plan.heads);
    return ATTN_OK;
}

/* --- which instruction set ---------------------------------------------------------------------*/

#ifdef ANY_PROCESSOR
AttnStatus backward_v3_register_tiles_avx2(const AttnArgs *args);
AttnStatus backward_v3_register_tiles_avx512(const AttnArgs *args);

AttnStatus flash_backward_v3_register_tiles(const AttnArgs *args)
{
#ifdef HAVE_ISA_AVX512
    if (strcmp(exp_isa(), "avx512") == 0)
        return backward_v3_register_tiles_avx512(args);
#endif
#ifdef HAVE_ISA_AVX2
    if (strcmp(exp_isa(), "avx2") == 0)
        return backward_v3_register_tiles_avx2(args);
#endif
    return backward_v3_register_tiles_portable(args);
}
#endif
