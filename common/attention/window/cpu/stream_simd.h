/* SPDX-License-Identifier: MIT
 *
 * stream_simd.h: one query against a rolling cache, once for each instruction set.
 *
 * Interface:
 * - StreamRow: the query, the cache, and what comes out. StreamSimd: one compiled copy of
 *   stream_simd.c. stream.c chooses one when the program runs.
 */
#ifndef SLIDING_WINDOW_STREAM_SIMD_H
#define SLIDING_WINDOW_STREAM_SIMD_H

#include <stdint.h>

#define STREAM_MAX_LANES 16

/* lanes: floats of a vector. Everything starts at a multiple of 64 bytes. */
typedef struct StreamRow {
    const float *q; /* [d], times scale * log2(e), or with a cap times scale / cap */
    const float *K; /* [ceil(count / lanes)][d][lanes]: keys, transposed by the vector */
    const float *V; /* [count][ld] */
    int64_t count;  /* slots with a key in them */
    int64_t d, ld;  /* ld: d, rounded up to whole vectors; what is behind d is 0 */
    float cap;      /* 0 = none, else cap * log2(e) */
    float *S;       /* [ceil(count / lanes)][lanes] scores, then P = 2^(S - m) */
    float *O;       /* [ld] sum of P V */
    float m, l;     /* largest score in units of log2, sum of P */
} StreamRow;

typedef struct StreamSimd {
    int lanes;
    void (*attend)(StreamRow *row);
} StreamSimd;

extern const StreamSimd stream_simd_portable, stream_simd_avx2, stream_simd_avx512;

#endif
