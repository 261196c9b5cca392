/* SPDX-License-Identifier: MIT
 *
 * gradient_tiles.h: the fast memory of v0 and v1, and what both do with one tile.
 *
 * Everything that a tile (i, j) needs fits in here; the N x N matrices exist only as the two small
 * ones below, and only until the next tile. As in stage 03 there is one door between slow memory
 * and these arrays, load_* and store_* of its cpu/tiles.h, and it counts.
 *
 * Interface:
 * - GradientTiles, gradient_tiles_floats, gradient_tiles_place: one thread's tiles.
 * - start_floats: zeros in slow memory, counted.
 * - gradient_scores: P and dS of a tile, from Q_i, K_j, dO_i, V_j, lse_i and delta_i.
 * - flash_pass_start: what a whole pass needs beside its tiles.
 * - head_floats: [N][heads][d] sums, one head of them.
 */
#ifndef GRADIENT_TILES_H
#define GRADIENT_TILES_H

#include <math.h>
#include <string.h>

#include "attention/rows.h"
#include "cpu/tiles.h"
#include "flash_backward.h"
#include "units/exp.h"

#define TILE_ROWS 64 /* Br */
#define TILE_KEYS 64 /* Bc */

typedef struct GradientTiles {
    float *Q_i, *O_i, *dO_i, *dQ_i; /* [Br][d] */
    float *K_j, *V_j, *dK_j, *dV_j; /* [Bc][d] */
    float *P, *dS;                  /* [Br][cols]: rows lie as far apart as the tile has keys */
    float *lse_i, *delta_i;         /* [Br] */
    FastMemory door;                /* its counters are all that is used of it */
} GradientTiles;

static inline int64_t gradient_tiles_floats(int64_t d)
{
    return 4 * (TILE_ROWS + TILE_KEYS) * d + 2 * TILE_ROWS * TILE_KEYS + 2 * TILE_ROWS;
}

static inline GradientTiles gradient_tiles_place(float *at, int64_t d)
{
    GradientTiles t;
    t.Q_i = at;
    t.O_i = t.Q_i + TILE_ROWS * d;
    t.dO_i = t.O_i + TILE_ROWS * d;
    t.dQ_i = t.dO_i + TILE_ROWS * d;
    t.K_j = t.dQ_i + TILE_ROWS * d;
    t.V_j = t.K_j + TILE_KEYS * d;
    t.dK_j = t.V_j + TILE_KEYS * d;
    t.dV_j = t.dK_j + TILE_KEYS * d;
    t.P = t.dV_j + TILE_KEYS * d;
    t.dS = t.P + TILE_ROWS * TILE_KEYS;
    t.lse_i = t.dS + TILE_ROWS * TILE_KEYS;
    t.delta_i = t.lse_i + TILE_ROWS;
    memset(&t.door, 0, sizeof t.door);
    t.door.traffic.fast_peak = gradient_tiles_floats(d);
    return t;
}

/* slow = 0: nothing to load, but slow memory is written. */
static inline void start_floats(GradientTiles *t, float *slow, int64_t count)
{
    memset(slow, 0, (size_t)count * sizeof *slow);
    count_stores(&t->door, count, sizeof *slow);
}

/* P and dS of queries i .. and keys j .. . */
static inline void gradient_scores(const AttnArgs *args, const GradientTiles *t, int64_t i,
                                   int64_t rows, int64_t j, int64_t cols)
{
    const int64_t d = args->shape.d;
    const float cap = args->softcap;
    attn_score_block(args, t->Q_i, i, rows, t->K_j, j, cols, t->P, cols); /* S, -inf where hidden */
    matmul(AS_IS, TRANSPOSED, rows, cols, d, 1.0f, t->dO_i, d, t->V_j, d, 0.0f, t->dS,
           cols); /* dP = dO_i V_j^T */
    for (int64_t r = 0; r < rows; r++) {
        float *S_r = t->P + r * cols, *dS_r = t->dS + r * cols;
        /* A row without keys has lse = -inf, and all its S are -inf: exp(-inf - 0) = 0. */
        const float lse = t->lse_i[r] == -INFINITY ? 0.0f : t->lse_i[r];
        for (int64_t c = 0; c < cols; c++)
            dS_r[c] -= t->delta_i[r];
        for (int64_t c = 0; cap > 0.0f && c < cols; c++) /* slope of cap * tanh(s / cap) */
            dS_r[c] *= S_r[c] == -INFINITY ? 0.0f : 1.0f - (S_r[c] / cap) * (S_r[c] / cap);
        softmax_exp_row(S_r, S_r, cols, lse); /* P, with no maximum and no division */
        for (int64_t c = 0; c < cols; c++) {
            S_r[c] = S_r[c] > 1.0f ? 1.0f : S_r[c]; /* lse is rounded: P stays at most 1 */
            dS_r[c] *= S_r[c];
        }
    }
}

struct FlashSums; /* attention/backward/backward_library.h */

/* Memory for delta and the sums of a whole pass, delta computed, the sums zero; NULL: it is short.
 * The caller frees it with workspace_free. */
float *flash_pass_start(const AttnArgs *args, const float **delta, struct FlashSums *sums);

/* Row n of head h in batch b of sums [B][N][heads][d]; the next row is heads * d further. */
static inline float *head_floats(float *sums, int64_t b, int64_t n, int64_t h, int64_t N,
                                 int64_t heads, int64_t d)
{
    return sums + ((b * N + n) * heads + h) * d;
}

#endif
