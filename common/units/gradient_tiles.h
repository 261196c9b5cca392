/* SPDX-License-Identifier: MIT
 *
 * gradient_tiles.h: the fast memory of a backward pass on a CPU, tile by tile.
 *
 * Everything that a tile (i, j) needs fits in here; the N x N matrices exist only as the two small
 * ones below, and only until the next tile. The door between slow memory and these arrays is that
 * of fast_memory.h, and it counts.
 *
 * Interface:
 * - TILE_ROWS, TILE_KEYS: Br and Bc.
 * - GradientTiles: one thread's tiles. gradient_floats: what they take. place_gradients.
 * - clear_empty: dO of rows that see no key becomes 0. start_floats: zeros in slow memory, counted.
 */
#ifndef UNITS_GRADIENT_TILES_H
#define UNITS_GRADIENT_TILES_H

#include <math.h>

#include "units/fast_memory.h"

#define TILE_ROWS 64 /* Br */
#define TILE_KEYS 64 /* Bc */

typedef struct GradientTiles {
    float *Q_i, *O_i, *dO_i, *dQ_i; /* [Br][d] */
    float *K_j, *V_j, *dK_j, *dV_j; /* [Bc][d] */
    float *P, *dS;                  /* [Br][cols]: rows lie as far apart as the tile has keys */
    float *lse_i, *delta_i;         /* [Br] */
    FastMemory door;                /* d and the counters are all that is used of it */
} GradientTiles;

static inline int64_t gradient_floats(int64_t d)
{
    return 4 * (TILE_ROWS + TILE_KEYS) * d + 2 * TILE_ROWS * TILE_KEYS + 2 * TILE_ROWS;
}

static inline GradientTiles place_gradients(float *at, int d)
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
    t.door.d = d;
    return t;
}

/* A row without keys gives nothing to any gradient, so its dO must not: P = 0 times NaN is NaN. */
static inline void clear_empty(const GradientTiles *t, int rows)
{
    for (int r = 0; r < rows; r++)
        if (t->lse_i[r] == -INFINITY)
            memset(t->dO_i + r * t->door.d, 0, (size_t)t->door.d * sizeof *t->dO_i);
}

/* slow = 0: nothing to load, but slow memory is written. */
static inline void start_floats(GradientTiles *t, float *slow, int64_t count)
{
    memset(slow, 0, (size_t)count * sizeof *slow);
    t->door.stores += count;
}

#endif
