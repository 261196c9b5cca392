/* SPDX-License-Identifier: MIT
 *
 * tiles.h: the fast memory of v0 and v1, and the only door into it.
 *
 * A CPU moves data into its caches without being asked, so nothing on it looks like the "SRAM" of
 * the papers. Here fast memory is a struct of small arrays. What computes, computes on them only;
 * load_* and store_* copy between them and slow memory (the tensors, and the state of each row) and
 * count every element that they copy.
 *
 * Interface:
 * - FastMemory: one thread's tiles; fast_memory_floats, fast_memory_place.
 * - load_tile, store_tile: rows of a tensor. load_floats, store_floats: l, m, lse, float32 states.
 * - flash_sees_nothing: may the whole tile (i, j) be skipped?
 * - traffic_add: merges the counters of two threads.
 */
#ifndef FLASH_TILES_H
#define FLASH_TILES_H

#include <string.h>

#include "flash_forward.h"
#include "naive.h"

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef struct FastMemory {
    float *Q_i; /* [Br][d] */
    float *O_i; /* [Br][d] */
    float *K_j; /* [Bc][d] */
    float *V_j; /* [Bc][d] */
    float *S;   /* [Br][Bc] scores, then probabilities */
    float *m_i; /* [Br] running maximum */
    float *l_i; /* [Br] running sum of exp(s - m_i) */
    FlashTraffic traffic;
} FastMemory;

/* All of the above: "M" is 2(Br + Bc)d of it, S and the two vectors come on top. */
static inline int64_t fast_memory_floats(FlashTiles tiles, int64_t d)
{
    return 2 * (tiles.Br + tiles.Bc) * d + tiles.Br * tiles.Bc + 2 * tiles.Br;
}

static inline FastMemory fast_memory_place(float *at, FlashTiles tiles, int64_t d)
{
    FastMemory fast;
    memset(&fast.traffic, 0, sizeof fast.traffic);
    fast.traffic.fast_peak = fast_memory_floats(tiles, d);
    fast.Q_i = at;
    fast.O_i = fast.Q_i + tiles.Br * d;
    fast.K_j = fast.O_i + tiles.Br * d;
    fast.V_j = fast.K_j + tiles.Bc * d;
    fast.S = fast.V_j + tiles.Bc * d;
    fast.m_i = fast.S + tiles.Br * tiles.Bc;
    fast.l_i = fast.m_i + tiles.Br;
    return fast;
}

static inline void count_loads(FastMemory *fast, int64_t elements, size_t element_bytes)
{
    fast->traffic.loads += elements;
    fast->traffic.load_bytes += elements * (int64_t)element_bytes;
}

static inline void count_stores(FastMemory *fast, int64_t elements, size_t element_bytes)
{
    fast->traffic.stores += elements;
    fast->traffic.store_bytes += elements * (int64_t)element_bytes;
}

/* tile [count][d] = tokens first .. of head h of THIS tensor, as float */
static inline void load_tile(FastMemory *fast, const Tensor *t, int64_t b, int64_t h, int64_t first,
                             int64_t count, float *tile)
{
    naive_load_rows(t, b, h, first, count, tile);
    count_loads(fast, count * t->shape[3], t->dtype == ATTN_F32 ? 4 : 2);
}

static inline void store_tile(FastMemory *fast, const Tensor *t, int64_t b, int64_t h,
                              int64_t first, int64_t count, const float *tile)
{
    naive_store_rows(t, b, h, first, count, tile);
    count_stores(fast, count * t->shape[3], t->dtype == ATTN_F32 ? 4 : 2);
}

static inline void load_floats(FastMemory *fast, float *tile, const float *slow, int64_t count)
{
    memcpy(tile, slow, (size_t)count * sizeof *tile);
    count_loads(fast, count, sizeof *tile);
}

static inline void store_floats(FastMemory *fast, float *slow, const float *tile, int64_t count)
{
    memcpy(slow, tile, (size_t)count * sizeof *tile);
    count_stores(fast, count, sizeof *tile);
}

/* No query of i .. i+rows-1 may see a key of j .. j+cols-1, known from extreme positions alone. */
int flash_sees_nothing(const AttnArgs *args, int64_t i, int64_t rows, int64_t j, int64_t cols);

static inline void traffic_add(FlashTraffic *sum, const FlashTraffic *more)
{
    sum->loads += more->loads;
    sum->stores += more->stores;
    sum->load_bytes += more->load_bytes;
    sum->store_bytes += more->store_bytes;
    sum->fast_peak = sum->fast_peak > more->fast_peak ? sum->fast_peak : more->fast_peak;
}

#endif
