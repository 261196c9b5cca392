/* SPDX-License-Identifier: MIT
 *
 * v1_fa2_rows: FlashAttention-2 (Dao, arXiv 2307.08691): queries outside, keys inside.
 *
 *     for each tile i of Br queries:
 *         load Q_i                   O_i = 0, l_i = 0, m_i = -inf       in fast memory
 *         for each tile j of Bc keys:
 *             load K_j V_j
 *             S     = scale * Q_i K_j^T
 *             m_new = max(m_i, rowmax(S))        alpha = exp(m_i - m_new)
 *             P     = exp(S - m_new)             l_i   = alpha l_i + rowsum(P)
 *             O_i   = alpha O_i + P V_j
 *         store O_i / l_i, m_i + ln l_i
 *
 * The loops of v0 swapped. O, l and m never leave fast memory, O is divided once, and only one
 * number a row is kept for later, lse. K and V are now read Tr times; but nothing is written before
 * the end, and tiles of queries are independent: any number of threads may share a head.
 * Elements moved: 2 N d (Q in, O out) + Tr * 2 N d + N, against v0's 3 Tc N d.
 *
 * Interface:
 * - flash_fa2: with M elements of fast memory, counted. flash_forward_v1_fa2_rows: with --sram's.
 */
#include <math.h>

#include "exp/exp.h"
#include "flash_forward.h"
#include "units/softmax_state.h"
#include "tiles.h"

/* The state of rows i .. before the first tile: nothing seen. */
static void start_rows(FastMemory *fast, int64_t rows, int64_t d)
{
    for (int64_t e = 0; e < rows * d; e++)
        fast->O_i[e] = 0.0f;
    for (int64_t r = 0; r < rows; r++) {
        fast->m_i[r] = -INFINITY;
        fast->l_i[r] = 0.0f;
    }
}

/* The online update: S becomes P relative to the new maximum; l and O follow it. */
static void update_rows(FastMemory *fast, int64_t rows, int64_t cols, int64_t d)
{
    for (int64_t r = 0; r < rows; r++) {
        float *P_r = fast->S + r * cols, *O_r = fast->O_i + r * d;
        float tile_max = row_max(P_r, cols);
        float m_new = fast->m_i[r] > tile_max ? fast->m_i[r] : tile_max;
        float shift = softmax_shift(m_new);
        float alpha = expf(fast->m_i[r] - shift);
        fast->l_i[r] = alpha * fast->l_i[r] + softmax_exp_row(P_r, P_r, cols, shift);
        fast->m_i[r] = m_new;
        for (int64_t x = 0; x < d; x++)
            O_r[x] *= alpha;
    }
}

/* All keys for one tile of queries. */
static void attend_tile(const AttnArgs *args, FastMemory *fast, FlashTiles tiles, int64_t b,
                        int64_t h, int64_t i)
{
    const AttnShape *n = &args->shape;
    int64_t d = n->d, kv_head = attn_kv_head(n, h), rows = smaller(tiles.Br, n->Nq - i);

    load_tile(fast, &args->Q, b, h, i, rows, fast->Q_i);
    start_rows(fast, rows, d);
    for (int64_t j = 0; j < n->Nk; j += tiles.Bc) {
        int64_t cols = smaller(tiles.Bc, n->Nk - j);
        if (attn_sees_nothing(args, i, rows, j, cols))
            continue;
        load_tile(fast, &args->K, b, kv_head, j, cols, fast->K_j);
        load_tile(fast, &args->V, b, kv_head, j, cols, fast->V_j);
        attn_score_block(args, fast->Q_i, i, rows, fast->K_j, j, cols, fast->S, cols);
        update_rows(fast, rows, cols, d);
        attn_weighted_sum(fast->S, cols, rows, cols, fast->V_j, d, 1.0f, fast->O_i);
    }

    for (int64_t r = 0; r < rows; r++) {
        SoftmaxState row = {fast->m_i[r], fast->l_i[r]};
        float inverse = softmax_inverse(row);
        for (int64_t x = 0; x < d; x++)
            fast->O_i[r * d + x] *= inverse;
        fast->m_i[r] = softmax_lse(row);
    }
    store_tile(fast, &args->O, b, h, i, rows, fast->O_i);
    store_floats(fast, args->lse + (b * n->H + h) * n->Nq + i, fast->m_i, rows);
}

AttnStatus flash_fa2(const AttnArgs *args, int64_t M, FlashTraffic *traffic)
{
    const AttnShape *n = &args->shape;
    FlashTiles tiles = flash_tiles(n, M);
    int64_t work = n->B * n->H * tiles.Tr;
    int threads = work < args->threads ? (int)work : args->threads;
    int64_t floats = fast_memory_floats(tiles, n->d); /* no N in it */
    float *workspace = workspace_alloc((size_t)(threads * floats) * sizeof *workspace);
    FlashTraffic total = {0, 0, 0, 0, 0};
    if (!workspace)
        return ATTN_NO_MEMORY;

#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        FastMemory fast = fast_memory_place(workspace + thread * floats, tiles, n->d);
        /* Neighbouring tiles go to different threads: under a causal mask the last tiles of a head
         * see many more keys than the first. */
        for (int64_t t = thread; t < work; t += threads)
            attend_tile(args, &fast, tiles, t / (n->H * tiles.Tr), t / tiles.Tr % n->H,
                        t % tiles.Tr * tiles.Br);
#pragma omp critical(flash_fa2_traffic)
        traffic_add(&total, &fast.traffic);
    }
    workspace_free(workspace);
    if (traffic)
        *traffic = total;
    return ATTN_OK;
}

AttnStatus flash_forward_v1_fa2_rows(const AttnArgs *args)
{
    return flash_fa2(args, flash_sram(), NULL);
}
