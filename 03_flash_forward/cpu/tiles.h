/* SPDX-License-Identifier: MIT
 *
 * tiles.h: the door between slow and fast memory for tensors of any stride and dtype: what v0 and
 * v1 of stage 04 have until they are asked the plain problem (units/fast_memory.h).
 *
 * Interface:
 * - FlashTraffic: what moved. FastMemory: its counters. count_loads, count_stores, traffic_add.
 * - load_tile, store_tile: rows of a tensor. load_floats, store_floats: float32 states.
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

typedef struct FastMemory {
    FlashTraffic traffic;
} FastMemory;

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
