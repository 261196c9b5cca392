/* SPDX-License-Identifier: MIT
 *
 * standard.c: what stage 01 does, through the door of tiles.h, so that its traffic can be counted.
 *
 *     for each tile of queries, for each tile of keys:   load Q_i once, K_j     store S_ij
 *     for each row:                                      load S_i               store P_i
 *     for each tile of queries, for each tile of keys:   load P_ij, V_j         store O_i last
 *
 * This is Algorithm 0 of the FlashAttention paper. It is no variant: it exists to stand beside v0
 * and v1 in the figure of traffic. S and P are whole matrices in slow memory, each written once and
 * read once: 4 Nq Nk elements, whatever M is. The products themselves have the same tiles as v0.
 *
 * A row of S has to fit in fast memory as a whole, beside the M elements of the tiles; how softmax
 * gets by without that is the subject of stage 02.
 *
 * Interface:
 * - flash_standard (tiles.h). One thread.
 */
#include "exp/exp.h"
#include "units/softmax_state.h"
#include "tiles.h"

/* S_ij = scale * Q_i K_j^T for all tiles of one head, masked. S [Nq][Nk] is slow memory. */
static void store_scores(const AttnArgs *args, FastMemory *fast, FlashTiles tiles, float *S,
                         int64_t b, int64_t h)
{
    const AttnShape *n = &args->shape;
    for (int64_t i = 0; i < n->Nq; i += tiles.Br) {
        int64_t rows = smaller(tiles.Br, n->Nq - i);
        load_tile(fast, &args->Q, b, h, i, rows, fast->Q_i);
        for (int64_t j = 0; j < n->Nk; j += tiles.Bc) {
            int64_t cols = smaller(tiles.Bc, n->Nk - j);
            load_tile(fast, &args->K, b, attn_kv_head(n, h), j, cols, fast->K_j);
            attn_score_block(args, fast->Q_i, i, rows, fast->K_j, j, cols, fast->S, cols);
            for (int64_t r = 0; r < rows; r++)
                store_floats(fast, S + (i + r) * n->Nk + j, fast->S + r * cols, cols);
        }
    }
}

/* Each row of S becomes a row of P in its place. row [Nk] is fast memory. */
static void replace_by_softmax(const AttnArgs *args, FastMemory *fast, float *row, float *S,
                               float *lse)
{
    const AttnShape *n = &args->shape;
    for (int64_t i = 0; i < n->Nq; i++) {
        SoftmaxState state;
        load_floats(fast, row, S + i * n->Nk, n->Nk);
        state.m = row_max(row, n->Nk);
        state.l = softmax_exp_row(row, row, n->Nk, softmax_shift(state.m));
        for (int64_t j = 0; j < n->Nk; j++)
            row[j] *= softmax_inverse(state);
        store_floats(fast, S + i * n->Nk, row, n->Nk);
        fast->m_i[0] = softmax_lse(state);
        store_floats(fast, lse + i, fast->m_i, 1);
    }
}

/* O_i = sum over j of P_ij V_j */
static void store_outputs(const AttnArgs *args, FastMemory *fast, FlashTiles tiles, const float *P,
                          int64_t b, int64_t h)
{
    const AttnShape *n = &args->shape;
    for (int64_t i = 0; i < n->Nq; i += tiles.Br) {
        int64_t rows = smaller(tiles.Br, n->Nq - i);
        for (int64_t j = 0; j < n->Nk; j += tiles.Bc) {
            int64_t cols = smaller(tiles.Bc, n->Nk - j);
            load_tile(fast, &args->V, b, attn_kv_head(n, h), j, cols, fast->V_j);
            for (int64_t r = 0; r < rows; r++)
                load_floats(fast, fast->S + r * cols, P + (i + r) * n->Nk + j, cols);
            attn_weighted_sum(fast->S, cols, rows, cols, fast->V_j, n->d, j == 0 ? 0.0f : 1.0f,
                               fast->O_i);
        }
        store_tile(fast, &args->O, b, h, i, rows, fast->O_i);
    }
}

AttnStatus flash_standard(const AttnArgs *args, int64_t M, FlashTraffic *traffic)
{
    const AttnShape *n = &args->shape;
    FlashTiles tiles = flash_tiles(n, M);
    int64_t fast_floats = fast_memory_floats(tiles, n->d) + n->Nk;
    float *workspace = workspace_alloc((size_t)(fast_floats + n->Nq * n->Nk) * sizeof *workspace);
    if (!workspace)
        return ATTN_NO_MEMORY;
    FastMemory fast = fast_memory_place(workspace, tiles, n->d);
    float *row = workspace + fast_floats - n->Nk, *S = workspace + fast_floats;
    fast.traffic.fast_peak = fast_floats;
    for (int64_t head = 0; head < n->B * n->H; head++) {
        int64_t b = head / n->H, h = head % n->H;
        store_scores(args, &fast, tiles, S, b, h);
        replace_by_softmax(args, &fast, row, S, args->lse + head * n->Nq);
        store_outputs(args, &fast, tiles, S, b, h);
    }
    workspace_free(workspace);
    *traffic = fast.traffic;
    return ATTN_OK;
}
