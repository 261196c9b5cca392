/* SPDX-License-Identifier: MIT
 *
 * counted.h: how the CPU variants touch x and y, so that the touches can be counted.
 *
 * Each variant's file is compiled twice: as it is, where LOAD and STORE are a plain read and a
 * plain write, and once more with -DCOUNT_ACCESSES, where they also increment a counter and the file
 * registers itself with the suffix _counted. So the numbers in the table come from running the
 * same source, not from a formula; a test compares them with the formula.
 *
 * A local array of a few kilobytes is the CPU's shared memory (it stays in L1): filling it from x
 * counts as reading x, working inside it counts as nothing.
 *
 * Interface:
 * - LOAD(p), STORE(p, v): one element of x or y.
 * - LOAD_BLOCK(block, p, n): n elements of x into a local array. STORE_BLOCK_SCALED(p, block, n,
 *   factor): n elements of a local array, times factor, to y.
 * - access_counts, access_counts_reset: reads and writes since the last reset.
 */
#ifndef UNITS_COUNTED_H
#define UNITS_COUNTED_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct AccessCounts {
    int64_t loads, stores; /* elements of x and y read and written */
} AccessCounts;

AccessCounts access_counts(void);
void access_counts_reset(void);
void access_counts_add(int64_t loads, int64_t stores); /* safe from any thread */

#ifdef COUNT_ACCESSES
#define COUNT_LOADS(n)  access_counts_add((n), 0)
#define COUNT_STORES(n) access_counts_add(0, (n))
#else
#define COUNT_LOADS(n)  ((void)0)
#define COUNT_STORES(n) ((void)0)
#endif

#ifndef __CUDACC__
#define LOAD(p)     (COUNT_LOADS(1), *(p))
#define STORE(p, v) (COUNT_STORES(1), (void)(*(p) = (v)))

static inline void LOAD_BLOCK(float *block, const float *p, int64_t n)
{
    COUNT_LOADS(n);
    memcpy(block, p, (size_t)n * sizeof *p);
}

static inline void STORE_BLOCK_SCALED(float *p, const float *block, int64_t n, float factor)
{
    COUNT_STORES(n);
    for (int64_t c = 0; c < n; c++)
        p[c] = block[c] * factor;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
