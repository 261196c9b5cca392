/* SPDX-License-Identifier: MIT
 *
 * standard: what stage 01 does, through the door of units/fast_memory.h, so that its traffic can be
 * counted.
 *
 *     for each tile of queries, for each tile of keys:   load Q_i once, K_j     store S_ij
 *     for each row:                                      load S_i               store P_i
 *     for each tile of queries, for each tile of keys:   load P_ij, V_j         store O_i last
 *
 * This is Algorithm 0 of the FlashAttention paper. It is no variant of the stage: it exists to
 * stand beside v0 and v1 in the figure of traffic (count_traffic.c). S and P are whole matrices in
 * slow memory, each written once and read once: 4 Nq Nk elements, whatever M is. The products
 * themselves have the same tiles as v0.
 *
 * A row of S has to fit in fast memory as a whole, beside the M elements of the tiles; how softmax
 * gets by without that is the subject of stage 02.
 *
 * Interface: a rung that count_traffic lists. One thread.
 */
#include "problem.h"
#include "units/exp_rows.h"
#include "units/fast_memory.h"
#include "units/scores.h"
#include "units/softmax_state.h"

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* S_ij = scale * Q_i K_j^T for all tiles of one head, masked. S [Nq][Nk] is slow memory. */
static void store_scores(const Problem *p, FastMemory *fast, float *S, int b, int h)
{
    const ScoreRule rule = {p->scale, p->softcap, p->from, p->to, p->mask, p->Nk};
    const float *Q = p->Q, *K = p->K;
    const int64_t ld_q = p->H * p->d, ld_k = p->Hkv * p->d;
    for (int i = 0; i < p->Nq; i += fast->Br) {
        const int rows = smaller(fast->Br, p->Nq - i);
        load_tile(fast, fast->Q_i, Q + query_row(p, b, h, i), ld_q, rows);
        for (int j = 0; j < p->Nk; j += fast->Bc) {
            const int cols = smaller(fast->Bc, p->Nk - j);
            load_tile(fast, fast->K_j, K + key_row(p, b, kv_head(p, h), j), ld_k, cols);
            score_block(&rule, fast->Q_i, p->d, i, rows, fast->K_j, p->d, j, cols, p->d, fast->S,
                        cols);
            for (int r = 0; r < rows; r++)
                store_floats(fast, S + (int64_t)(i + r) * p->Nk + j, fast->S + r * cols, cols);
        }
    }
}

/* Each row of S becomes a row of P in its place. row [Nk] is fast memory. */
static void replace_by_softmax(const Problem *p, FastMemory *fast, float *row, float *S, float *lse)
{
    for (int64_t i = 0; i < p->Nq; i++) {
        SoftmaxState state;
        load_floats(fast, row, S + i * p->Nk, p->Nk);
        state.m = row_max(row, p->Nk);
        state.l = softmax_exp_row(row, row, p->Nk, softmax_shift(state.m));
        for (int j = 0; j < p->Nk; j++)
            row[j] *= softmax_inverse(state);
        store_floats(fast, S + i * p->Nk, row, p->Nk);
        fast->m_i[0] = softmax_lse(state);
        store_floats(fast, lse + i, fast->m_i, 1);
    }
}

/* O_i = sum over j of P_ij V_j */
static void store_outputs(const Problem *p, FastMemory *fast, const float *P, int b, int h)
{
    const int64_t ld_q = p->H * p->d, ld_k = p->Hkv * p->d;
    for (int i = 0; i < p->Nq; i += fast->Br) {
        const int rows = smaller(fast->Br, p->Nq - i);
        for (int j = 0; j < p->Nk; j += fast->Bc) {
            const int cols = smaller(fast->Bc, p->Nk - j);
            load_tile(fast, fast->V_j, (const float *)p->V + key_row(p, b, kv_head(p, h), j), ld_k,
                      cols);
            for (int r = 0; r < rows; r++)
                load_floats(fast, fast->S + r * cols, P + (int64_t)(i + r) * p->Nk + j, cols);
            matmul(AS_IS, AS_IS, rows, p->d, cols, 1.0f, fast->S, cols, fast->V_j, p->d,
                   j == 0 ? 0.0f : 1.0f, fast->O_i, p->d);
        }
        store_tile(fast, (float *)p->O + query_row(p, b, h, i), ld_q, fast->O_i, rows);
    }
}

static void forward(const Problem *p)
{
    FastMemory fast = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    float *row = (float *)p->work + fast_elements(&fast), *S = row + p->Nk;
    place_tiles(&fast, p->work);
    for (int head = 0; head < p->B * p->H; head++) {
        const int b = head / p->H, h = head % p->H;
        store_scores(p, &fast, S, b, h);
        replace_by_softmax(p, &fast, row, S, p->lse + lse_row(p, b, h, 0));
        store_outputs(p, &fast, S, b, h);
    }
    report_moved(&fast);
}

static int64_t work(const Problem *p, int backward)
{
    const FastMemory sizes = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    (void)backward;
    return (int64_t)sizeof(float) * (fast_elements(&sizes) + (int64_t)p->Nk * (p->Nq + 1));
}

static Tiles tiles(const Problem *p)
{
    const FastMemory sizes = fast_memory(p->sram, p->Nq, p->Nk, p->d);
    return (Tiles){sizes.Br, sizes.Bc};
}

RUNG(flash_forward, standard, "S and P through slow memory", F32, forward, NULL, work, tiles, FULL);
