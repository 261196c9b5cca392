/* SPDX-License-Identifier: MIT
 *
 * v0_fa1_backward: FlashAttention's backward pass, Algorithm 4 as published (Dao et al., arXiv
 * 2205.14135).
 *
 *     dQ = 0                                                      in slow memory
 *     for each tile j of Bc keys:
 *         load K_j V_j                dK_j = 0, dV_j = 0          in fast memory
 *         for each tile i of Br queries:
 *             load Q_i O_i dO_i dQ_i l_i m_i
 *             S       = scale * Q_i K_j^T        P  = exp(S - m_i) / l_i
 *             dV_j   += P^T dO_i                 dP = dO_i V_j^T
 *             delta_i = rowsum(dO_i * O_i)       dS = P * (dP - delta_i)
 *             dQ_i   += scale * dS K_j           store dQ_i
 *             dK_j   += scale * dS^T Q_i
 *         store dK_j dV_j
 *
 * S and P are computed a second time, which costs one product of five, and in exchange nothing of
 * size N x N is ever kept. Two numbers of each row are enough to get P back, and even they can be
 * one: exp(S - m) / l = exp(S - (m + ln l)) = exp(S - lse).
 *
 * The prices of this form: dQ goes back to slow memory for every tile of keys, O is read as often
 * only to find delta again, and two tiles of keys may not run at the same time, because both add to
 * the same dQ. So threads take whole kv heads.
 *
 * Interface: flash_backward_v0_fa1_backward; flash_backward_fa1, the same with what was counted
 * (flash_backward.h).
 */
#include "gradient_tiles.h"

/* One step of the inner loop. dQ [Nq][d] is slow memory of this head. */
static void visit_tile(const AttnArgs *args, GradientTiles *t, float *dQ, int64_t b, int64_t h,
                       int64_t i, int64_t rows, int64_t j, int64_t cols)
{
    const AttnShape *n = &args->shape;
    const int64_t d = n->d;
    load_tile(&t->door, &args->Q, b, h, i, rows, t->Q_i);
    load_tile(&t->door, &args->O, b, h, i, rows, t->O_i);
    load_tile(&t->door, &args->dO, b, h, i, rows, t->dO_i);
    load_floats(&t->door, t->dQ_i, dQ + i * d, rows * d);
    load_floats(&t->door, t->lse_i, args->lse + (b * n->H + h) * n->Nq + i, rows);
    attn_clear_empty(t->lse_i, rows, d, t->dO_i);

    for (int64_t r = 0; r < rows; r++) {
        t->delta_i[r] = 0.0f;
        for (int64_t x = 0; x < d; x++)
            t->delta_i[r] += t->dO_i[r * d + x] * t->O_i[r * d + x];
    }
    gradient_scores(args, t, i, rows, j, cols);
    matmul(TRANSPOSED, AS_IS, cols, d, rows, 1.0f, t->P, cols, t->dO_i, d, 1.0f, t->dV_j, d);
    matmul(AS_IS, AS_IS, rows, d, cols, args->scale, t->dS, cols, t->K_j, d, 1.0f, t->dQ_i, d);
    matmul(TRANSPOSED, AS_IS, cols, d, rows, args->scale, t->dS, cols, t->Q_i, d, 1.0f, t->dK_j, d);

    store_floats(&t->door, dQ + i * d, t->dQ_i, rows * d);
}

/* dQ to its tensor at the end: through fast memory like everything else. */
static void finish_queries(const AttnArgs *args, GradientTiles *t, const float *dQ, int64_t b,
                           int64_t h)
{
    const int64_t d = args->shape.d, Nq = args->shape.Nq;
    for (int64_t i = 0; i < Nq; i += TILE_ROWS) {
        const int64_t rows = smaller(TILE_ROWS, Nq - i);
        load_floats(&t->door, t->dQ_i, dQ + i * d, rows * d);
        store_tile(&t->door, &args->dQ, b, h, i, rows, t->dQ_i);
    }
}

/* One kv head with the query heads of its group. dQ [group][Nq][d] float32: with 16-bit tensors,
 * adding in the tensor itself would round once for every tile of keys. */
static void backward_group(const AttnArgs *args, GradientTiles *t, float *dQ, int64_t b,
                           int64_t h_kv)
{
    const AttnShape *n = &args->shape;
    const int64_t d = n->d, group = n->H / n->Hkv;
    start_floats(t, dQ, group * n->Nq * d);
    for (int64_t j = 0; j < n->Nk; j += TILE_KEYS) {
        const int64_t cols = smaller(TILE_KEYS, n->Nk - j);
        load_tile(&t->door, &args->K, b, h_kv, j, cols, t->K_j);
        load_tile(&t->door, &args->V, b, h_kv, j, cols, t->V_j);
        memset(t->dK_j, 0, (size_t)(cols * d) * sizeof *t->dK_j);
        memset(t->dV_j, 0, (size_t)(cols * d) * sizeof *t->dV_j);
        for (int64_t g = 0; g < group; g++) /* all of them read K_j and V_j: they share the sums */
            for (int64_t i = 0; i < n->Nq; i += TILE_ROWS) {
                const int64_t rows = smaller(TILE_ROWS, n->Nq - i);
                if (!attn_sees_nothing(args, i, rows, j, cols))
                    visit_tile(args, t, dQ + g * n->Nq * d, b, h_kv * group + g, i, rows, j, cols);
            }
        store_tile(&t->door, &args->dK, b, h_kv, j, cols, t->dK_j);
        store_tile(&t->door, &args->dV, b, h_kv, j, cols, t->dV_j);
    }
    for (int64_t g = 0; g < group; g++)
        finish_queries(args, t, dQ + g * n->Nq * d, b, h_kv * group + g);
}

FlashTiles flash_backward_tiles_v0_fa1_backward(const AttnArgs *args)
{
    return flash_tiles_of(&args->shape, TILE_ROWS, TILE_KEYS);
}

AttnStatus flash_backward_v0_fa1_backward(const AttnArgs *args)
{
    return flash_backward_fa1(args, NULL);
}

AttnStatus flash_backward_fa1(const AttnArgs *args, FlashTraffic *traffic)
{
    const AttnShape *n = &args->shape;
    const int64_t heads = n->B * n->Hkv, tile_floats = gradient_tiles_floats(n->d);
    const int64_t floats = tile_floats + n->H / n->Hkv * n->Nq * n->d;
    const int threads = heads < args->threads ? (int)heads : args->threads;
    FlashTraffic sum = {0, 0, 0, 0, 0};
    float *workspace = workspace_alloc((size_t)(threads * floats) * sizeof *workspace);
    if (!workspace)
        return ATTN_NO_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        float *mine = workspace + thread * floats;
        GradientTiles tiles = gradient_tiles_place(mine, n->d);
        for (int64_t head = thread; head < heads; head += threads)
            backward_group(args, &tiles, mine + tile_floats, head / n->Hkv, head % n->Hkv);
#pragma omp critical(fa1_backward_traffic)
        traffic_add(&sum, &tiles.door.traffic);
    }
    if (traffic)
        *traffic = sum;
    workspace_free(workspace);
    return ATTN_OK;
}
