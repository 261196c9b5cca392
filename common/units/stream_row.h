/* SPDX-License-Identifier: MIT
 *
 * stream_row.h: one query against a cache of keys and values, in vectors.
 *
 * A single query has no tile to share a loaded key with: each number of K and V is loaded for one
 * multiply-add and then dropped, so the caches set the speed, and all there is to do is to read
 * them in a straight line.
 *
 *     S = K q:  the vector runs over keys, eight sums over every eighth channel: a chain of
 *               multiply-adds waits four cycles for each link, eight chains do not wait
 *     O = P V:  the vector runs over channels, the sums stay in registers over all keys
 *
 * Both are without a sum across a vector. That is why K is kept transposed and V is not.
 *
 * Interface:
 * - KeyCache: the slots of one head. score_keys: a vector of scores, in units of log2.
 * - weigh_values: S becomes P = 2^(S - m), and O their sum of V.
 * For files that are compiled once for each instruction set (units/vector.h).
 */
#ifndef UNITS_STREAM_ROW_H
#define UNITS_STREAM_ROW_H

#include "units/exp2_vector.h"

#define CHAINS 8

/* Everything starts at a multiple of 64 bytes. */
typedef struct KeyCache {
    float *K;      /* [ceil(slots / LANES)][d][LANES]: keys, transposed by the vector */
    float *V;      /* [slots][ld] */
    int64_t count; /* slots with a key in them */
    int64_t d, ld; /* ld: d, rounded up to whole vectors; what is behind d is 0 */
} KeyCache;

/* Scores of the LANES keys from slot t on. */
static inline __attribute__((always_inline)) Vector score_keys(const KeyCache *cache,
                                                               const float *q, int64_t t)
{
    const float *K = cache->K + t * cache->d;
    Vector sum[CHAINS] = {{0}};
    int64_t x = 0;
    for (; x + CHAINS <= cache->d; x += CHAINS)
#pragma GCC unroll 8
        for (int c = 0; c < CHAINS; c++)
            sum[c] += q[x + c] * load(K + (x + c) * LANES);
    for (; x < cache->d; x++)
        sum[0] += q[x] * load(K + x * LANES);
#pragma GCC unroll 3
    for (int half = CHAINS / 2; half > 0; half /= 2)
#pragma GCC unroll 4
        for (int c = 0; c < half; c++)
            sum[c] += sum[c + half];
    return sum[0];
}

/* `vectors` vectors of channels of O: constant once this is inlined, so the sums are registers. */
static inline __attribute__((always_inline)) void
add_channels(const KeyCache *cache, const float *P, float *O, int64_t x, const int vectors)
{
    const float *V = cache->V + x;
    Vector sum[CHAINS];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        sum[v] = (Vector){0};
    for (int64_t t = 0; t < cache->count; t++, V += cache->ld)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[v] += P[t] * load(V + v * LANES);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        store(O + x + v * LANES, sum[v]);
}

/* S [count, up to whole vectors] becomes P = 2^(S - m), O [ld] the sum of P V. The sum of P. */
static inline float weigh_values(const KeyCache *cache, float *S, float m, float *O)
{
    const float shift = m == -INFINITY ? 0.0f : m; /* nothing seen: not -inf - -inf */
    Vector sum = {0};
    int64_t x = 0;
    float l = 0.0f;
    for (int64_t t = 0; t < cache->count; t += LANES) {
        const Vector P = exp2_negative(load(S + t) - shift);
        store(S + t, P);
        sum += P;
    }
    for (int lane = 0; lane < LANES; lane++)
        l += sum[lane];
    for (; x + 8 * LANES <= cache->ld; x += 8 * LANES)
        add_channels(cache, S, O, x, 8);
    for (; x + 4 * LANES <= cache->ld; x += 4 * LANES)
        add_channels(cache, S, O, x, 4);
    for (; x < cache->ld; x += LANES)
        add_channels(cache, S, O, x, 1);
    return l;
}

#endif
