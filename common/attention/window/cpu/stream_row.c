/* SPDX-License-Identifier: MIT
 *
 * stream_row.c: one query against a rolling cache, in vectors.
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
 * Meson compiles this file once for each instruction set, with -DFLASH_ISA=avx2 and the like, as it
 * does with stage 03's kernels.
 *
 * Interface: stream_row.h, as the table stream_simd_<FLASH_ISA>.
 */
#include "stream_row.h"

#include <math.h>

#include "attention/forward/cpu/simd_vector.h"

#define CHAINS 8

/* Scores of the LANES keys of one vector. */
static inline __attribute__((always_inline)) Vector score_keys(const float *q, const float *K,
                                                               int64_t d)
{
    Vector sum[CHAINS] = {{0}};
    int64_t x = 0;
    for (; x + CHAINS <= d; x += CHAINS)
#pragma GCC unroll 8
        for (int c = 0; c < CHAINS; c++)
            sum[c] += q[x + c] * load(K + (x + c) * LANES);
    for (; x < d; x++)
        sum[0] += q[x] * load(K + x * LANES);
#pragma GCC unroll 3
    for (int half = CHAINS / 2; half > 0; half /= 2)
#pragma GCC unroll 4
        for (int c = 0; c < half; c++)
            sum[c] += sum[c + half];
    return sum[0];
}

/* `vectors` vectors of channels of O: constant once this is inlined, so the sums are registers. */
static inline __attribute__((always_inline)) void weigh_values(const StreamRow *row, int64_t x,
                                                               const int vectors)
{
    const float *V = row->V + x;
    Vector sum[CHAINS];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        sum[v] = (Vector){0};
    for (int64_t t = 0; t < row->count; t++, V += row->ld) {
        const float P = row->S[t];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[v] += P * load(V + v * LANES);
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        store(row->O + x + v * LANES, sum[v]);
}

static Vector score_all(StreamRow *row)
{
    Vector most = (Vector){0} - INFINITY;
    for (int64_t t = 0; t < row->count; t += LANES) {
        Vector s = score_keys(row->q, row->K + t * row->d, row->d);
        if (row->cap > 0.0f)
            s = row->cap * tanh_of(s);
        for (int64_t lane = row->count - t; lane < LANES; lane++)
            s[lane] = -INFINITY; /* empty slots of the last vector */
        store(row->S + t, s);
        most = larger(most, s);
    }
    return most;
}

static void stream_attend(StreamRow *row)
{
    Vector most = score_all(row), sum = {0};
    int64_t x = 0;
    float shift;
    row->m = most[0];
    for (int lane = 1; lane < LANES; lane++)
        row->m = most[lane] > row->m ? most[lane] : row->m;
    shift = row->m == -INFINITY ? 0.0f : row->m;
    for (int64_t t = 0; t < row->count; t += LANES) {
        const Vector P = exp2_negative(load(row->S + t) - shift);
        store(row->S + t, P);
        sum += P;
    }
    row->l = 0.0f;
    for (int lane = 0; lane < LANES; lane++)
        row->l += sum[lane];
    for (; x + 8 * LANES <= row->ld; x += 8 * LANES)
        weigh_values(row, x, 8);
    for (; x + 4 * LANES <= row->ld; x += 4 * LANES)
        weigh_values(row, x, 4);
    for (; x < row->ld; x += LANES)
        weigh_values(row, x, 1);
}

const StreamSimd OWN(stream_simd) = {LANES, stream_attend};
