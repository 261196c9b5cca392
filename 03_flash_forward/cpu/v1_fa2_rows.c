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
 * Interface: the rung of stage 03 with queries outside; tiles for --sram M elements of fast memory,
 * and what moves is counted.
 */
#include <math.h>

#include "problem.h"
#include "units/exp_rows.h"
#include "units/fast_memory.h"
#include "units/scores.h"
#include "units/softmax_state.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The state of rows i .. before the first tile: nothing seen. */
static void start_rows(FastMemory *fast, int rows)
{
    for (int e = 0; e < rows * fast->d; e++)
        fast->O_i[e] = 0.0f;
    for (int r = 0; r < rows; r++) {
        fast->m_i[r] = -INFINITY;
        fast->l_i[r] = 0.0f;
    }
}

/* The online update: S becomes P relative to the new maximum; l and O follow it. */
static void update_rows(FastMemory *fast, int rows, int cols)
{
    for (int r = 0; r < rows; r++) {
        float *P_r = fast->S + r * cols, *O_r = fast->O_i + r * fast->d;
        float tile_max = row_max(P_r, cols);
        float m_new = fast->m_i[r] > tile_max ? fast->m_i[r] : tile_max;
        float shift = softmax_shift(m_new);
        float alpha = expf(fast->m_i[r] - shift);
        fast->l_i[r] = alpha * fast->l_i[r] + softmax_exp_row(P_r, P_r, cols, shift);
        fast->m_i[r] = m_new;
        for (int x = 0; x < fast->d; x++)
            O_r[x] *= alpha;
    }
}

/* All keys for one tile of queries. */
static void attend_tile(const Problem *p, FastMemory *fast, int b, int h, int i)
{
    const ScoreRule rule = {p->scale, p->softcap, p->from, p->to, p->mask, p->Nk};
    const int d = p->d, h_kv = kv_head(p, h), rows = (int)smaller(fast->Br, p->Nq - i);
    const int64_t ld_q = p->H * d, ld_k = p->Hkv * d, query = query_row(p, b, h, i);

    load_tile(fast, fast->Q_i, (const float *)p->Q + query, ld_q, rows);
    start_rows(fast, rows);
    for (int j = 0; j < p->Nk; j += fast->Bc) {
        const int cols = (int)smaller(fast->Bc, p->Nk - j);
        if (sees_nothing(&rule, i, rows, j, cols))
            continue;
        load_tile(fast, fast->K_j, (const float *)p->K + key_row(p, b, h_kv, j), ld_k, cols);
        load_tile(fast, fast->V_j, (const float *)p->V + key_row(p, b, h_kv, j), ld_k, cols);
        score_block(&rule, fast->Q_i, d, i, rows, fast->K_j, d, j, cols, d, fast->S, cols);
        update_rows(fast, rows, cols);
        matmul(AS_IS, AS_IS, rows, d, cols, 1.0f, fast->S, cols, fast->V_j, d, 1.0f, fast->O_i, d);
    }

    for (int r = 0; r < rows; r++) {
        SoftmaxState row = {fast->m_i[r], fast->l_i[r]};
        float inverse = softmax_inverse(row);
        for (int x = 0; x < d; x++)
            fast->O_i[r * d + x] *= inverse;
        fast->m_i[r] = softmax_lse(row);
    }
    store_tile(fast, (float *)p->O + query, ld_q, fast->O_i, rows);
    store_floats(fast, p->lse + lse_row(p, b, h, i), fast->m_i, rows);
}

/* Tiles of queries, over all heads. */
static int64_t tasks(const Problem *p, const FastMemory *sizes)
{
    return (int64_t)p->B * p->H * ((p->Nq + sizes->Br - 1) / sizes->Br);
}

static void forward(const Problem *p)
{
    const FastMemory sizes = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    const int64_t Tr = (p->Nq + sizes.Br - 1) / sizes.Br, count = tasks(p, &sizes);
    const int threads = (int)smaller(count, p->threads);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        FastMemory fast = sizes;
        place_tiles(&fast, (float *)p->work + thread * fast_elements(&sizes));
        /* Neighbouring tiles go to different threads: under a causal mask the last tiles of a head
         * see many more keys than the first. */
        for (int64_t t = thread; t < count; t += threads)
            attend_tile(p, &fast, (int)(t / (p->H * Tr)), (int)(t / Tr % p->H),
                        (int)(t % Tr) * fast.Br);
        report_moved(&fast);
    }
}

static int64_t work(const Problem *p, int backward)
{
    const FastMemory sizes = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    (void)backward;
    return (int64_t)sizeof(float) * smaller(tasks(p, &sizes), p->threads) * fast_elements(&sizes);
}

static Tiles tiles(const Problem *p)
{
    const FastMemory sizes = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    return (Tiles){sizes.Br, sizes.Bc};
}

RUNG(flash_forward, v1_fa2_rows, "queries outside: O, m and l stay, one division at the end", F32,
     forward, NULL, work, tiles, FULL);
