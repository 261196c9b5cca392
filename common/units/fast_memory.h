/* SPDX-License-Identifier: MIT
 *
 * fast_memory.h: the fast memory of the papers, on a CPU, and the only door into it.
 *
 * A CPU moves data into its caches without being asked, so nothing on it looks like the "SRAM" of
 * the papers. Here fast memory is a struct of small arrays. What computes, computes on them only;
 * load_* and store_* copy between them and slow memory (the tensors, and the state of each row) and
 * count every element that they copy.
 *
 * The paper divides a fast memory of M elements among four tiles of equal size, Q_i, K_j, V_j and
 * O_i, hence M / 4d rows each. Br is capped at d, so that the scores Br x Bc take no more than
 * another M / 4. So M is the order of what is needed, not a budget: with S it is up to 1.25 M
 * (Br = Bc = d), and the vectors m and l come on top (fast_elements has the exact number).
 *
 * Interface:
 * - FastMemory: one thread's tiles. fast_memory: their sizes, from M. fast_elements: what they
 *   take. place_tiles: where they lie.
 * - load_tile, store_tile: rows of a tensor. load_floats, store_floats: l, m, lse.
 * - report_moved: a thread's counters, for the harness's rung_count.
 */
#ifndef UNITS_FAST_MEMORY_H
#define UNITS_FAST_MEMORY_H

#include <stdint.h>
#include <string.h>

#define FAST_ELEMENTS 32768 /* M unless the user asks for another one: 128 KiB of float32 */

typedef struct FastMemory {
    int Br, Bc, d;  /* queries and keys of a tile, channels */
    float *Q_i;     /* [Br][d] */
    float *O_i;     /* [Br][d] */
    float *K_j;     /* [Bc][d] */
    float *V_j;     /* [Bc][d] */
    float *S;       /* [Br][Bc] scores, then probabilities */
    float *m_i;     /* [Br] running maximum */
    float *l_i;     /* [Br] running sum of exp(s - m_i) */
    int64_t loads;  /* elements, slow -> fast */
    int64_t stores; /* elements, fast -> slow */
} FastMemory;

/* The paper's sizes for M elements (0: the default): Bc = ceil(M / 4d), Br = min(Bc, d). No tile is
 * larger than the matrix. Ceilings: a division that rounds down gives tiles of no row at all. */
static inline FastMemory fast_memory(int64_t M, int Nq, int Nk, int d)
{
    FastMemory fast;
    const int64_t rows = ((M > 0 ? M : FAST_ELEMENTS) + 4 * d - 1) / (4 * d);
    memset(&fast, 0, sizeof fast);
    fast.d = d;
    fast.Bc = rows < Nk ? (int)rows : Nk;
    fast.Br = rows < d ? (int)rows : d;
    fast.Br = fast.Br < Nq ? fast.Br : Nq;
    return fast;
}

/* "M" is 2(Br + Bc)d of it, S and the two vectors come on top. There is no N in it. */
static inline int64_t fast_elements(const FastMemory *fast)
{
    const int64_t Br = fast->Br, Bc = fast->Bc;
    return 2 * (Br + Bc) * fast->d + Br * Bc + 2 * Br;
}

static inline void place_tiles(FastMemory *fast, float *at)
{
    const int64_t Br = fast->Br, Bc = fast->Bc;
    fast->Q_i = at;
    fast->O_i = fast->Q_i + Br * fast->d;
    fast->K_j = fast->O_i + Br * fast->d;
    fast->V_j = fast->K_j + Bc * fast->d;
    fast->S = fast->V_j + Bc * fast->d;
    fast->m_i = fast->S + Br * Bc;
    fast->l_i = fast->m_i + Br;
}

/* tile [count][d] = `count` rows of a tensor, ld floats apart */
static inline void load_tile(FastMemory *fast, float *tile, const float *rows, int64_t ld,
                             int64_t count)
{
    for (int64_t r = 0; r < count; r++)
        memcpy(tile + r * fast->d, rows + r * ld, (size_t)fast->d * sizeof *tile);
    fast->loads += count * fast->d;
}

static inline void store_tile(FastMemory *fast, float *rows, int64_t ld, const float *tile,
                              int64_t count)
{
    for (int64_t r = 0; r < count; r++)
        memcpy(rows + r * ld, tile + r * fast->d, (size_t)fast->d * sizeof *tile);
    fast->stores += count * fast->d;
}

static inline void load_floats(FastMemory *fast, float *tile, const float *slow, int64_t count)
{
    memcpy(tile, slow, (size_t)count * sizeof *tile);
    fast->loads += count;
}

static inline void store_floats(FastMemory *fast, float *slow, const float *tile, int64_t count)
{
    memcpy(slow, tile, (size_t)count * sizeof *tile);
    fast->stores += count;
}

void access_counts_add(int64_t loads, int64_t stores); /* the harness counts, for all threads */

static inline void report_moved(const FastMemory *fast)
{
    access_counts_add(fast->loads, fast->stores);
}

#endif
