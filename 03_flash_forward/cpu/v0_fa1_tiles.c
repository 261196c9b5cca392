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
 * One addition: a tile of which no pair is visible is not loaded.
 *
 * Interface: the rung of stage 03 with keys outside; tiles for --sram M elements of fast memory,
 * and what moves is counted. Threads take whole heads: in this loop order two tiles of queries
 * share nothing, but two tiles of keys write the same O.
 */
#include <math.h>

#include "problem.h"
#include "units/exp_rows.h"
#include "units/fast_memory.h"
#include "units/scores.h"
#include "units/softmax_state.h"

/* One head's rows in slow memory. */
typedef struct SlowMemory {
    const float *Q, *K, *V; /* [Nq][ld_q], [Nk][ld_k]: d channels of each row */
    float *O;               /* [Nq][ld_q] finished for the keys so far */
    float *m, *l;           /* [Nq] */
    int64_t ld_q, ld_k;
} SlowMemory;

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* S becomes the tile's share of P, O_i the old share of the answer; the product then adds them. */
static void update_rows(FastMemory *fast, int rows, int cols)
{
    for (int r = 0; r < rows; r++) {
        float *P_r = fast->S + r * cols, *O_r = fast->O_i + r * fast->d;
        float m_tile = row_max(P_r, cols);
        float l_tile = softmax_exp_row(P_r, P_r, cols, m_tile);
        float m_new = fast->m_i[r] > m_tile ? fast->m_i[r] : m_tile;
        float shift = softmax_shift(m_new); /* a row that saw nothing yet: not -inf - -inf */
        float alpha = expf(fast->m_i[r] - shift);
        float beta = expf(m_tile - shift);
        float l_new = alpha * fast->l_i[r] + beta * l_tile;
        float inverse = softmax_inverse((SoftmaxState){m_new, l_new});
        for (int x = 0; x < fast->d; x++)
            O_r[x] *= fast->l_i[r] * alpha * inverse;
        for (int c = 0; c < cols; c++)
            P_r[c] *= beta * inverse;
        fast->m_i[r] = m_new;
        fast->l_i[r] = l_new;
    }
}

/* One step of the inner loop: tile (i, j), K_j and V_j are in fast memory. */
static void visit_tile(const ScoreRule *rule, FastMemory *fast, const SlowMemory *slow, int i,
                       int rows, int j, int cols)
{
    const int d = fast->d;
    float *O_i = slow->O + i * slow->ld_q;
    load_tile(fast, fast->Q_i, slow->Q + i * slow->ld_q, slow->ld_q, rows);
    load_tile(fast, fast->O_i, O_i, slow->ld_q, rows);
    load_floats(fast, fast->m_i, slow->m + i, rows);
    load_floats(fast, fast->l_i, slow->l + i, rows);

    score_block(rule, fast->Q_i, d, i, rows, fast->K_j, d, j, cols, d, fast->S, cols);
    update_rows(fast, rows, cols);
    matmul(AS_IS, AS_IS, rows, d, cols, 1.0f, fast->S, cols, fast->V_j, d, 1.0f, fast->O_i, d);

    store_tile(fast, O_i, slow->ld_q, fast->O_i, rows);
    store_floats(fast, slow->m + i, fast->m_i, rows);
    store_floats(fast, slow->l + i, fast->l_i, rows);
}

/* O = 0, m = -inf, l = 0, tile by tile through fast memory like everything else. */
static void start_rows(FastMemory *fast, const SlowMemory *slow, int Nq)
{
    for (int i = 0; i < Nq; i += fast->Br) {
        const int rows = smaller(fast->Br, Nq - i);
        for (int e = 0; e < rows * fast->d; e++)
            fast->O_i[e] = 0.0f;
        for (int r = 0; r < rows; r++) {
            fast->m_i[r] = -INFINITY;
            fast->l_i[r] = 0.0f;
        }
        store_tile(fast, slow->O + i * slow->ld_q, slow->ld_q, fast->O_i, rows);
        store_floats(fast, slow->m + i, fast->m_i, rows);
        store_floats(fast, slow->l + i, fast->l_i, rows);
    }
}

/* lse = m + ln l */
static void finish_rows(FastMemory *fast, const SlowMemory *slow, float *lse, int Nq)
{
    for (int i = 0; i < Nq; i += fast->Br) {
        const int rows = smaller(fast->Br, Nq - i);
        load_floats(fast, fast->m_i, slow->m + i, rows);
        load_floats(fast, fast->l_i, slow->l + i, rows);
        for (int r = 0; r < rows; r++)
            fast->m_i[r] = softmax_lse((SoftmaxState){fast->m_i[r], fast->l_i[r]});
        store_floats(fast, lse + i, fast->m_i, rows);
    }
}

/* state [2][Nq]: m and l */
static void attend_head(const Problem *p, FastMemory *fast, float *state, int b, int h)
{
    const ScoreRule rule = {p->scale, p->softcap, p->from, p->to, p->mask, p->Nk};
    const int64_t query = query_row(p, b, h, 0), key = key_row(p, b, kv_head(p, h), 0);
    const SlowMemory slow = {.Q = (const float *)p->Q + query,
                             .K = (const float *)p->K + key,
                             .V = (const float *)p->V + key,
                             .O = (float *)p->O + query,
                             .m = state,
                             .l = state + p->Nq,
                             .ld_q = p->H * p->d,
                             .ld_k = p->Hkv * p->d};
    start_rows(fast, &slow, p->Nq);
    for (int j = 0; j < p->Nk; j += fast->Bc) {
        const int cols = smaller(fast->Bc, p->Nk - j);
        int loaded = 0;
        for (int i = 0; i < p->Nq; i += fast->Br) {
            const int rows = smaller(fast->Br, p->Nq - i);
            if (sees_nothing(&rule, i, rows, j, cols))
                continue;
            if (!loaded) { /* once for all queries: what this loop order is good at */
                load_tile(fast, fast->K_j, slow.K + j * slow.ld_k, slow.ld_k, cols);
                load_tile(fast, fast->V_j, slow.V + j * slow.ld_k, slow.ld_k, cols);
                loaded = 1;
            }
            visit_tile(&rule, fast, &slow, i, rows, j, cols);
        }
    }
    finish_rows(fast, &slow, p->lse + lse_row(p, b, h, 0), p->Nq);
}

static void forward(const Problem *p)
{
    const FastMemory sizes = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    const int64_t tiles = fast_elements(&sizes), floats = tiles + 2 * (int64_t)p->Nq;
    const int heads = p->B * p->H, threads = smaller(heads, p->threads);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        float *mine = (float *)p->work + thread * floats;
        FastMemory fast = sizes;
        place_tiles(&fast, mine);
        for (int head = thread; head < heads; head += threads)
            attend_head(p, &fast, mine + tiles, head / p->H, head % p->H);
        report_moved(&fast);
    }
}

static int64_t work(const Problem *p, int backward)
{
    const FastMemory sizes = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    (void)backward;
    return (int64_t)sizeof(float) * smaller(p->B * p->H, p->threads) *
           (fast_elements(&sizes) + 2 * (int64_t)p->Nq);
}

static Tiles tiles(const Problem *p)
{
    const FastMemory sizes = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    return (Tiles){sizes.Br, sizes.Bc};
}

RUNG(flash_forward, v0_fa1_tiles, "keys outside: O, m and l go back to slow memory each step", F32,
     forward, NULL, work, tiles, FULL);
