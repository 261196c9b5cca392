/* SPDX-License-Identifier: MIT
 *
 * v1_fa2_backward: the backward pass of FlashAttention-2 (Dao, arXiv 2307.08691).
 *
 *     delta = rowsum(dO * O)                                      once, before everything else
 *     for each tile j of Bc keys:                                 these run side by side
 *         load K_j V_j                dK_j = 0, dV_j = 0          in fast memory
 *         for each tile i of Br queries:
 *             load Q_i dO_i lse_i delta_i dQ_i
 *             P     = exp(scale * Q_i K_j^T - lse_i)
 *             dS    = P * (dO_i V_j^T - delta_i)
 *             dV_j += P^T dO_i               dK_j += scale * dS^T Q_i
 *             dQ_i += scale * dS K_j         store dQ_i
 *         store dK_j dV_j
 *
 * Against v0: O is not read in the loops any more, and one number a row replaces m and l. And tiles
 * of keys may run at the same time, if they do not fall over each other in dQ. On a GPU they add
 * atomically, and the order of the additions, hence the last bits, is a matter of luck. Here the
 * keys are cut into a few parts that follow from the shape, not from the number of threads; each
 * part adds to a dQ of its own, tile after tile, and at the end the parts are added in order.
 *
 * Interface:
 * - flash_backward_v1_fa2_backward; flash_backward_fa2, the same with what was counted.
 */
#include "attention/backward/backward_library.h"
#include "gradient_tiles.h"
#include "tensor.h"

#define WANTED_TASKS 16 /* (batch, kv head, part): enough for the threads of a small machine */

static int64_t part_count(const AttnShape *n)
{
    const int64_t tiles = (n->Nk + TILE_KEYS - 1) / TILE_KEYS;
    const int64_t wanted = (WANTED_TASKS + n->B * n->Hkv - 1) / (n->B * n->Hkv);
    return smaller(tiles, wanted);
}

/* All queries of the group for one tile of keys. dQ [group][Nq][d] of this part. */
static void visit_keys(const AttnArgs *args, const float *delta, GradientTiles *t, float *dQ,
                       int64_t b, int64_t h_kv, int64_t j, int64_t cols)
{
    const AttnShape *n = &args->shape;
    const int64_t d = n->d, group = n->H / n->Hkv;
    for (int64_t g = 0; g < group; g++)
        for (int64_t i = 0; i < n->Nq; i += TILE_ROWS) {
            const int64_t rows = smaller(TILE_ROWS, n->Nq - i), h = h_kv * group + g;
            const int64_t row = (b * n->H + h) * n->Nq + i;
            if (attn_sees_nothing(args, i, rows, j, cols))
                continue;
            load_tile(&t->door, &args->Q, b, h, i, rows, t->Q_i);
            load_tile(&t->door, &args->dO, b, h, i, rows, t->dO_i);
            load_floats(&t->door, t->lse_i, args->lse + row, rows);
            attn_clear_empty(t->lse_i, rows, d, t->dO_i);
            load_floats(&t->door, t->delta_i, delta + row, rows);
            load_floats(&t->door, t->dQ_i, dQ + (g * n->Nq + i) * d, rows * d);
            gradient_scores(args, t, i, rows, j, cols);
            matmul(TRANSPOSED, AS_IS, cols, d, rows, 1.0f, t->P, cols, t->dO_i, d, 1.0f, t->dV_j,
                   d);
            matmul(TRANSPOSED, AS_IS, cols, d, rows, args->scale, t->dS, cols, t->Q_i, d, 1.0f,
                   t->dK_j, d);
            matmul(AS_IS, AS_IS, rows, d, cols, args->scale, t->dS, cols, t->K_j, d, 1.0f, t->dQ_i,
                   d);
            store_floats(&t->door, dQ + (g * n->Nq + i) * d, t->dQ_i, rows * d);
        }
}

/* Tiles part, part + parts, ... of one kv head: under a causal mask the early tiles of keys are
 * seen by many more queries than the late ones. */
static void backward_part(const AttnArgs *args, const float *delta, GradientTiles *t,
                          FlashSums sums, float *dQ, int64_t b, int64_t h_kv, int64_t part,
                          int64_t parts)
{
    const AttnShape *n = &args->shape;
    const int64_t d = n->d;
    start_floats(t, dQ, n->H / n->Hkv * n->Nq * d);
    for (int64_t j = part * TILE_KEYS; j < n->Nk; j += parts * TILE_KEYS) {
        const int64_t cols = smaller(TILE_KEYS, n->Nk - j);
        load_tile(&t->door, &args->K, b, h_kv, j, cols, t->K_j);
        load_tile(&t->door, &args->V, b, h_kv, j, cols, t->V_j);
        memset(t->dK_j, 0, (size_t)(cols * d) * sizeof *t->dK_j);
        memset(t->dV_j, 0, (size_t)(cols * d) * sizeof *t->dV_j);
        visit_keys(args, delta, t, dQ, b, h_kv, j, cols);
        count_loads(&t->door, 2 * cols * d, sizeof(float)); /* the sums below, and back */
        count_stores(&t->door, 2 * cols * d, sizeof(float));
        for (int64_t c = 0; c < cols; c++) { /* nobody else has these keys */
            float *dK = head_floats(sums.dK, b, j + c, h_kv, n->Nk, n->Hkv, d);
            float *dV = head_floats(sums.dV, b, j + c, h_kv, n->Nk, n->Hkv, d);
            for (int64_t x = 0; x < d; x++) {
                dK[x] += t->dK_j[c * d + x];
                dV[x] += t->dV_j[c * d + x];
            }
        }
    }
}

/* dQ of one query row += the parts, first to last. parts_dQ [B][Hkv][parts][group][Nq][d] */
static void add_parts(const AttnShape *n, const float *parts_dQ, int64_t parts, FlashSums sums,
                      int64_t row)
{
    const int64_t d = n->d, group = n->H / n->Hkv;
    const int64_t b = row / (n->H * n->Nq), h = row / n->Nq % n->H, i = row % n->Nq;
    float *dQ = head_floats(sums.dQ, b, i, h, n->Nq, n->H, d);
    for (int64_t part = 0; part < parts; part++) {
        const int64_t task = (b * n->Hkv + h / group) * parts + part;
        const float *from = parts_dQ + ((task * group + h % group) * n->Nq + i) * d;
        for (int64_t x = 0; x < d; x++)
            dQ[x] += from[x];
    }
}

/* The loops. counted has the parts' counters in it afterwards. */
static AttnStatus add_block(const AttnArgs *args, const float *delta, FlashSums sums,
                            FastMemory *counted)
{
    const AttnShape *n = &args->shape;
    const int64_t parts = part_count(n), tasks = n->B * n->Hkv * parts;
    const int64_t tile_floats = gradient_tiles_floats(n->d);
    const int64_t dQ_floats = n->H / n->Hkv * n->Nq * n->d; /* of one task */
    const int64_t all_floats = n->B * n->H * n->Nq * n->d;
    const int threads = tasks < args->threads ? (int)tasks : args->threads;
    float *workspace =
        workspace_alloc((size_t)(threads * tile_floats + tasks * dQ_floats) * sizeof *workspace);
    if (!workspace)
        return ATTN_NO_MEMORY;
    float *parts_dQ = workspace + threads * tile_floats;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        GradientTiles tiles = gradient_tiles_place(workspace + thread * tile_floats, n->d);
        for (int64_t task = thread; task < tasks; task += threads)
            backward_part(args, delta, &tiles, sums, parts_dQ + task * dQ_floats,
                          task / parts / n->Hkv, task / parts % n->Hkv, task % parts, parts);
#pragma omp critical(fa2_backward_traffic)
        traffic_add(&counted->traffic, &tiles.door.traffic);
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t row = 0; row < n->B * n->H * n->Nq; row++)
        add_parts(n, parts_dQ, parts, sums, row);
    count_loads(counted, (parts + 1) * all_floats, sizeof(float));
    count_stores(counted, all_floats, sizeof(float));
    workspace_free(workspace);
    return ATTN_OK;
}

AttnStatus flash_backward_fa2(const AttnArgs *args, FlashTraffic *traffic)
{
    const AttnShape *n = &args->shape;
    const int64_t q = n->B * n->H * n->Nq * n->d, k = n->B * n->Hkv * n->Nk * n->d;
    const size_t element = dtype_size(args->Q.dtype);
    FastMemory counted;
    const float *delta;
    FlashSums sums;
    float *memory = flash_pass_start(args, &delta, &sums);
    AttnStatus status;
    if (!memory)
        return ATTN_NO_MEMORY;
    memset(&counted, 0, sizeof counted);
    count_loads(&counted, 2 * q, element);                                  /* O and dO for delta */
    count_stores(&counted, n->B * n->H * n->Nq + q + 2 * k, sizeof(float)); /* delta, zeros */
    status = add_block(args, delta, sums, &counted);
    if (status == ATTN_OK)
        flash_sums_store(args, sums);
    count_loads(&counted, q + 2 * k, sizeof(float));
    count_stores(&counted, q + 2 * k, element);
    workspace_free(memory);
    if (traffic)
        *traffic = counted.traffic;
    return status;
}

FlashTiles flash_backward_tiles_v1_fa2_backward(const AttnArgs *args)
{
    FlashTiles tiles = flash_tiles_of(&args->shape, TILE_ROWS, TILE_KEYS);
    tiles.splits = part_count(&args->shape);
    return tiles;
}

AttnStatus flash_backward_v1_fa2_backward(const AttnArgs *args)
{
    return flash_backward_fa2(args, NULL);
}
