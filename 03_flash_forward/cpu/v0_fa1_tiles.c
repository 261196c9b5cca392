/* SPDX-License-Identifier: MIT
 *
 * v0_fa1_tiles: FlashAttention, Algorithm 1 as published (Dao et al., arXiv 2205.14135).
 *
 *     O = 0, l = 0, m = -inf                                      in slow memory
 *     for each tile j of Bc keys:
 *         load K_j V_j
 *         for each tile i of Br queries:
 *             load Q_i O_i l_i m_i
 *             S     = scale * Q_i K_j^T
 *             m~    = rowmax(S)     P~ = exp(S - m~)     l~ = rowsum(P~)
 *             m_new = max(m_i, m~)
 *             l_new = exp(m_i - m_new) l_i + exp(m~ - m_new) l~
 *             O_i   = (l_i exp(m_i - m_new) O_i + exp(m~ - m_new) P~ V_j) / l_new
 *             store O_i l_new m_new
 *
 * K and V are read once. The price: Q, O, l and m pass through fast memory Tc times, and O is
 * divided by l every time, because after each step slow memory has to hold a finished answer for
 * the keys so far. Loads and stores together are about (3 Tc) N d elements, and Tc = 4 N d / M: the
 * paper's Theta(N^2 d^2 / M).
 *
 * One addition: a tile of which no pair is visible is not loaded. And one liberty: with 16-bit
 * tensors O stays in float32 until the end, or its rounding errors would add up tile by tile.
 *
 * Interface:
 * - flash_fa1: with M elements of fast memory, counted. flash_forward_v0_fa1_tiles: with --sram's.
 *   Threads take whole heads: in this loop order two tiles of queries share nothing, but two tiles
 *   of keys write the same O.
 */
#include <math.h>

#include "exp/exp.h"
#include "flash_forward.h"
#include "units/softmax_state.h"
#include "tiles.h"

/* Slow memory of one head, beside the tensors. */
typedef struct SlowState {
    Tensor O;  /* float32: args->O itself, or [1][Nq][1][d] when that has 16 bits */
    int64_t b; /* where the head stands in O */
    int64_t h;
    float *m, *l; /* [Nq] */
} SlowState;

/* S becomes the tile's share of P, O_i the old share of the answer; the product then adds them. */
static void update_rows(FastMemory *fast, int64_t rows, int64_t cols, int64_t d)
{
    for (int64_t r = 0; r < rows; r++) {
        float *P_r = fast->S + r * cols, *O_r = fast->O_i + r * d;
        float m_tile = row_max(P_r, cols);
        float l_tile = softmax_exp_row(P_r, P_r, cols, m_tile);
        float m_new = fast->m_i[r] > m_tile ? fast->m_i[r] : m_tile;
        float shift = softmax_shift(m_new); /* a row that saw nothing yet: not -inf - -inf */
        float alpha = expf(fast->m_i[r] - shift);
        float beta = expf(m_tile - shift);
        float l_new = alpha * fast->l_i[r] + beta * l_tile;
        float inverse = softmax_inverse((SoftmaxState){m_new, l_new});
        for (int64_t x = 0; x < d; x++)
            O_r[x] *= fast->l_i[r] * alpha * inverse;
        for (int64_t c = 0; c < cols; c++)
            P_r[c] *= beta * inverse;
        fast->m_i[r] = m_new;
        fast->l_i[r] = l_new;
    }
}

/* One step of the inner loop: tile (i, j), K_j and V_j are in fast memory. */
static void visit_tile(const AttnArgs *args, FastMemory *fast, const SlowState *slow, int64_t b,
                       int64_t h, int64_t i, int64_t rows, int64_t j, int64_t cols)
{
    int64_t d = args->shape.d;
    load_tile(fast, &args->Q, b, h, i, rows, fast->Q_i);
    load_tile(fast, &slow->O, slow->b, slow->h, i, rows, fast->O_i);
    load_floats(fast, fast->m_i, slow->m + i, rows);
    load_floats(fast, fast->l_i, slow->l + i, rows);

    attn_score_block(args, fast->Q_i, i, rows, fast->K_j, j, cols, fast->S, cols);
    update_rows(fast, rows, cols, d);
    attn_weighted_sum(fast->S, cols, rows, cols, fast->V_j, d, 1.0f, fast->O_i);

    store_tile(fast, &slow->O, slow->b, slow->h, i, rows, fast->O_i);
    store_floats(fast, slow->m + i, fast->m_i, rows);
    store_floats(fast, slow->l + i, fast->l_i, rows);
}

/* O = 0, m = -inf, l = 0, tile by tile through fast memory like everything else. */
static void start_rows(FastMemory *fast, const SlowState *slow, FlashTiles tiles, int64_t Nq,
                       int64_t d)
{
    for (int64_t i = 0; i < Nq; i += tiles.Br) {
        int64_t rows = smaller(tiles.Br, Nq - i);
        for (int64_t e = 0; e < rows * d; e++)
            fast->O_i[e] = 0.0f;
        for (int64_t r = 0; r < rows; r++) {
            fast->m_i[r] = -INFINITY;
            fast->l_i[r] = 0.0f;
        }
        store_tile(fast, &slow->O, slow->b, slow->h, i, rows, fast->O_i);
        store_floats(fast, slow->m + i, fast->m_i, rows);
        store_floats(fast, slow->l + i, fast->l_i, rows);
    }
}

/* lse = m + ln l, and O rounded to 16 bits where the caller's tensor has them. */
static void finish_rows(const AttnArgs *args, FastMemory *fast, const SlowState *slow,
                        FlashTiles tiles, int64_t b, int64_t h)
{
    const AttnShape *n = &args->shape;
    for (int64_t i = 0; i < n->Nq; i += tiles.Br) {
        int64_t rows = smaller(tiles.Br, n->Nq - i);
        load_floats(fast, fast->m_i, slow->m + i, rows);
        load_floats(fast, fast->l_i, slow->l + i, rows);
        for (int64_t r = 0; r < rows; r++)
            fast->m_i[r] = softmax_lse((SoftmaxState){fast->m_i[r], fast->l_i[r]});
        store_floats(fast, args->lse + (b * n->H + h) * n->Nq + i, fast->m_i, rows);
        if (slow->O.data != args->O.data) {
            load_tile(fast, &slow->O, slow->b, slow->h, i, rows, fast->O_i);
            store_tile(fast, &args->O, b, h, i, rows, fast->O_i);
        }
    }
}

static void attend_head(const AttnArgs *args, FastMemory *fast, FlashTiles tiles, float *state,
                        int64_t b, int64_t h)
{
    const AttnShape *n = &args->shape;
    int64_t kv_head = attn_kv_head(n, h);
    SlowState slow = {args->O, b, h, state, state + n->Nq};
    if (args->O.dtype != ATTN_F32) {
        int64_t shape[4] = {1, n->Nq, 1, n->d}, stride[4] = {n->Nq * n->d, n->d, n->d, 1};
        slow.O = (Tensor){.data = state + 2 * n->Nq, .dtype = ATTN_F32};
        memcpy(slow.O.shape, shape, sizeof shape);
        memcpy(slow.O.stride, stride, sizeof stride);
        slow.b = slow.h = 0;
    }
    start_rows(fast, &slow, tiles, n->Nq, n->d);
    for (int64_t j = 0; j < n->Nk; j += tiles.Bc) {
        int64_t cols = smaller(tiles.Bc, n->Nk - j), loaded = 0;
        for (int64_t i = 0; i < n->Nq; i += tiles.Br) {
            int64_t rows = smaller(tiles.Br, n->Nq - i);
            if (attn_sees_nothing(args, i, rows, j, cols))
                continue;
            if (!loaded) { /* once for all queries: what this loop order is good at */
                load_tile(fast, &args->K, b, kv_head, j, cols, fast->K_j);
                load_tile(fast, &args->V, b, kv_head, j, cols, fast->V_j);
                loaded = 1;
            }
            visit_tile(args, fast, &slow, b, h, i, rows, j, cols);
        }
    }
    finish_rows(args, fast, &slow, tiles, b, h);
}

AttnStatus flash_fa1(const AttnArgs *args, int64_t M, FlashTraffic *traffic)
{
    const AttnShape *n = &args->shape;
    FlashTiles tiles = flash_tiles(n, M);
    int64_t heads = n->B * n->H;
    int threads = heads < args->threads ? (int)heads : args->threads;
    int64_t fast_floats = fast_memory_floats(tiles, n->d);
    int64_t floats = fast_floats + 2 * n->Nq + (args->O.dtype == ATTN_F32 ? 0 : n->Nq * n->d);
    float *workspace = workspace_alloc((size_t)(threads * floats) * sizeof *workspace);
    FlashTraffic total = {0, 0, 0, 0, 0};
    if (!workspace)
        return ATTN_NO_MEMORY;

#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        float *mine = workspace + thread * floats;
        FastMemory fast = fast_memory_place(mine, tiles, n->d);
        for (int64_t head = thread; head < heads; head += threads)
            attend_head(args, &fast, tiles, mine + fast_floats, head / n->H, head % n->H);
#pragma omp critical(flash_fa1_traffic)
        traffic_add(&total, &fast.traffic);
    }
    workspace_free(workspace);
    if (traffic)
        *traffic = total;
    return ATTN_OK;
}

AttnStatus flash_forward_v0_fa1_tiles(const AttnArgs *args)
{
    return flash_fa1(args, flash_sram(), NULL);
}
