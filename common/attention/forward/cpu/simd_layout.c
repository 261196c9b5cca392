/* SPDX-License-Identifier: MIT
 *
 * simd_layout.c: what the library does to its operands beside computing with them: bring them into
 * the order of use and back, and hide scores.
 *
 * All of it is proportional to N d, or to the scores on the edge of the mask, beside products that
 * are proportional to N^2 d. That sounds negligible and is not: a product does 64 operations in a
 * cycle and a loop over elements one or two, so that at N = 1024 these functions, written that way,
 * took longer than the softmax. Hence vectors here too.
 *
 * Meson compiles this file once for each instruction set, like simd_kernels.c.
 *
 * Interface: simd_hide_<FLASH_ISA> and so on, for the table in simd_kernels.c.
 */
#include "simd_vector.h"

#include <math.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

/* A compare and a select for each vector, no branch: where a row's interval ends is different in
 * each row, so a processor could not foresee it. */
void OWN(simd_hide)(float *S, const int32_t *from, const int32_t *to, int64_t cols)
{
    const VectorInt nothing = (VectorInt)((Vector){0} - INFINITY);
    for (int64_t c = 0; c < cols; c += LANES) {
        VectorInt column;
        for (int t = 0; t < LANES; t++)
            column[t] = (int32_t)c + t;
        for (int r = 0; r < STRIP; r++) {
            float *S_r = S + r * SIMD_ROW + c;
            const VectorInt keep = (column >= from[r]) & (column < to[r]);
            store(S_r, (Vector)((keep & (VectorInt)load(S_r)) | (~keep & nothing)));
        }
    }
}

#if LANES == 16
#define LOW_HALVES  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define LOW_HALVES  0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW_HALVES  0, 4, 1, 5
#define HIGH_HALVES 2, 6, 3, 7
#endif

#define FULL(rows) ((rows) < LANES ? (rows) : LANES)

/* LANES vectors as a matrix, transposed: shuffle the upper and the lower half of the rows into each
 * other like a pack of cards, log2(LANES) times. */
static inline __attribute__((always_inline)) void transpose_square(Vector v[LANES])
{
#pragma GCC unroll 4
    for (int turn = 1; turn < LANES; turn *= 2) {
        Vector mixed[LANES];
#pragma GCC unroll 8
        for (int r = 0; r < LANES / 2; r++) {
            mixed[2 * r] = __builtin_shufflevector(v[r], v[r + LANES / 2], LOW_HALVES);
            mixed[2 * r + 1] = __builtin_shufflevector(v[r], v[r + LANES / 2], HIGH_HALVES);
        }
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++)
            v[r] = mixed[r];
    }
}

/* LANES numbers of each row, from row `first` on; rows from count on are zeros, and so are those
 * from first + full on, where `full` is all that whoever asks has use for. */
static inline __attribute__((always_inline)) void load_square(Vector v[LANES], const float *rows,
                                                              int64_t ld, int64_t first,
                                                              int64_t count, int64_t cols,
                                                              float factor, const int full)
{
    if (first + full <= count && cols == LANES) {
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++) {
            v[r] = (Vector){0};
            if (r < full)
                memcpy(&v[r], rows + (first + r) * ld, sizeof v[r]);
            v[r] *= factor;
        }
        return;
    }
    for (int64_t r = 0; r < LANES; r++) {
        v[r] = (Vector){0};
        if (first + r < count && cols == LANES)
            memcpy(&v[r], rows + (first + r) * ld, sizeof v[r]);
        else if (first + r < count) /* never a float behind the end of a row */
            memcpy(&v[r], rows + (first + r) * ld, (size_t)cols * sizeof(float));
        v[r] *= factor;
    }
}

/* A vector of each row goes through the square; what comes out is stored at distances of `width`. A
 * strip is not a whole number of vectors: the superfluous lanes of one x are overwritten by the
 * first ones of x + 1. So x runs upwards, and all vectors of one x come before those of the next.
 */
static inline __attribute__((always_inline)) void transpose_rows(const float *rows, int64_t ld,
                                                                 int64_t count, int64_t d,
                                                                 float factor, float *to,
                                                                 const int width)
{
    for (int64_t x = 0; x < d; x += LANES) {
        const int64_t cols = d - x < LANES ? d - x : LANES;
        Vector v[(PANEL > STRIP ? PANEL : STRIP + LANES) / LANES][LANES];
#pragma GCC unroll 2
        for (int part = 0; part * LANES < width; part++) {
            load_square(v[part], rows + x, ld, part * LANES, count, cols, factor,
                        FULL(width - part * LANES));
            transpose_square(v[part]);
        }
        for (int64_t c = 0; c < cols; c++)
            for (int part = 0; part * LANES < width; part++)
                memcpy(to + (x + c) * width + part * LANES, &v[part][c], sizeof(Vector));
    }
}

void OWN(simd_transpose)(const float *rows, int64_t ld, int64_t count, int64_t d, float factor,
                         float *to, int64_t width)
{
    if (width == PANEL)
        transpose_rows(rows, ld, count, d, factor, to, PANEL);
    else
        transpose_rows(rows, ld, count, d, factor, to, STRIP);
}

/* The sum of a row's lanes is, after a transposition, a sum of vectors. */
void OWN(simd_sums)(const float *l, float *sums)
{
    for (int64_t r = 0; r < STRIP; r += LANES) {
        Vector v[LANES];
        load_square(v, l, LANES, r, STRIP, LANES, 1.0f, FULL(STRIP - r));
        transpose_square(v);
#pragma GCC unroll 4
        for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
            for (int t = 0; t < half; t++)
                v[t] += v[t + half];
        memcpy(sums + r, &v[0], sizeof(Vector));
    }
}

/* A store into a line that is not in a cache first reads it, from where it may be far, to change a
 * part of it. Where whole lines are written one can say so: then they are collected beside the
 * caches and go straight to memory. */
#if defined(__AVX512F__)
#define STORE_PAST_CACHES(p, v) _mm512_stream_ps(p, (__m512)(v))
#elif defined(__AVX2__)
#define STORE_PAST_CACHES(p, v) _mm256_stream_ps(p, (__m256)(v))
#elif defined(__SSE2__)
#define STORE_PAST_CACHES(p, v) _mm_stream_ps(p, (__m128)(v))
#endif

#ifdef STORE_PAST_CACHES
static void scale_past_caches(const float *rows, int64_t ld, const float *factor, int64_t count,
                              int64_t d, float *to, int64_t ld_to)
{
    for (int64_t r = 0; r < count; r++)
        for (int64_t x = 0; x < d; x += LANES)
            STORE_PAST_CACHES(to + r * ld_to + x, factor[r] * load(rows + r * ld + x));
    _mm_sfence(); /* such stores keep no order with others, like that of a barrier */
}
#endif

void OWN(simd_scale_rows)(const float *rows, int64_t ld, const float *factor, int64_t count,
                          int64_t d, float *to, int64_t ld_to, int past_caches)
{
#ifdef STORE_PAST_CACHES
    if (past_caches) {
        scale_past_caches(rows, ld, factor, count, d, to, ld_to);
        return;
    }
#else
    (void)past_caches;
#endif
    for (int64_t r = 0; r < count; r++)
        for (int64_t x = 0; x < d; x += LANES) {
            const Vector v = factor[r] * load(rows + r * ld + x);
            if (d - x >= LANES)
                memcpy(to + r * ld_to + x, &v, sizeof v);
            else
                memcpy(to + r * ld_to + x, &v, (size_t)(d - x) * sizeof(float));
        }
}

void OWN(simd_split)(const float *rows, int64_t ld, int64_t count, int64_t d, float *to,
                     int64_t ld_to)
{
    for (int64_t r = 0; r < count; r++)
        for (int64_t x = 0; x < d; x += PANEL) {
            float *piece = to + x / PANEL * ld_to + r * PANEL;
            if (d - x >= PANEL) {
                memcpy(piece, rows + r * ld + x, PANEL * sizeof(float));
            } else {
                memset(piece, 0, PANEL * sizeof(float));
                memcpy(piece, rows + r * ld + x, (size_t)(d - x) * sizeof(float));
            }
        }
}
