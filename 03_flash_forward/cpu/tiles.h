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
 * - FlashTraffic: what moved between slow and fast memory. flash_tiles: tile sizes from M.
 * - flash_fa1, flash_fa2: v0 and v1 with a given fast memory, counted; flash_standard: stage 01's
 *   order of work in the same fast memory.
 * - FastMemory: one thread's tiles; fast_memory_floats, fast_memory_place.
 * - load_tile, store_tile: rows of a tensor. load_floats, store_floats: l, m, lse, float32 states.
 * - traffic_add: merges the counters of two threads.
 */
#ifndef FLASH_TILES_H
#define FLASH_TILES_H

#include <string.h>

#include "attention/rows.h"

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements and bytes that tiles moved. An element of Q, K, V and O has the tensor's size, one of
 * l, m, lse or a float32 state has 4 bytes. */
typedef struct FlashTraffic {
    int64_t loads, stores;           /* elements, slow -> fast and fast -> slow */
    int64_t load_bytes, store_bytes; /* the same in bytes */
    int64_t fast_peak;               /* most elements that one head's tiles, S, l, m really take */
} FlashTraffic;

#define FLASH_SRAM_DEFAULT 32768 /* elements: 128 KiB of float32 */

/* The paper's sizes for a fast memory of M elements: Bc = ceil(M / 4d), Br = min(Bc, d). No tile is
 * larger than the matrix. */
FlashTiles flash_tiles(const AttnShape *shape, int64_t M);
/* Elements that these tiles really take: Q_i, K_j, V_j and O_i, and with them S, m and l. Up to
 * 1.25 M (Br = Bc = d), m and l on top: the paper's sizes are an order, not a budget. */
int64_t flash_fast_elements(const AttnShape *shape, int64_t M);
/* M of the variants v0 and v1 (--sram). Set it before any of them runs. */
void flash_set_sram(int64_t elements);
int64_t flash_sram(void);

/* v0 and v1 with a fast memory of M elements. traffic, if not NULL, is overwritten. */
AttnStatus flash_fa1(const AttnArgs *args, int64_t M, FlashTraffic *traffic);
AttnStatus flash_fa2(const AttnArgs *args, int64_t M, FlashTraffic *traffic);

/* The papers' standard attention (Algorithm 0) with the same door between the two memories: S and P
 * are whole matrices in slow memory, and a row of them has to fit in fast memory beside M. */
AttnStatus flash_standard(const AttnArgs *args, int64_t M, FlashTraffic *traffic);

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
    attn_load_rows(t, b, h, first, count, tile);
    count_loads(fast, count * t->shape[3], t->dtype == ATTN_F32 ? 4 : 2);
}

static inline void store_tile(FastMemory *fast, const Tensor *t, int64_t b, int64_t h,
                              int64_t first, int64_t count, const float *tile)
{
    attn_store_rows(t, b, h, first, count, tile);
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

static inline void traffic_add(FlashTraffic *sum, const FlashTraffic *more)
{
    sum->loads += more->loads;
    sum->stores += more->stores;
    sum->load_bytes += more->load_bytes;
    sum->store_bytes += more->store_bytes;
    sum->fast_peak = sum->fast_peak > more->fast_peak ? sum->fast_peak : more->fast_peak;
}

#endif
