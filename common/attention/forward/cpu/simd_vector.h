/* SPDX-License-Identifier: MIT
 *
 * simd_vector.h: the tile that fits the registers, and functions of a vector; for the files that
 * are compiled once for each instruction set (exp/vector.h).
 *
 * Interface:
 * - STRIP, PANEL: rows and columns of a register tile.
 * - tanh_of; multiply: a register tile gains a product. (exp2_negative: units/exp2_vector.h.)
 */
#ifndef FLASH_SIMD_VECTOR_H
#define FLASH_SIMD_VECTOR_H

#include "simd.h"
#include "units/exp2_vector.h"

#if LANES == 16
#define STRIP 14
#else
#define STRIP 6
#endif
#define PANEL (2 * LANES)

/* tanh x of any x, within 2 units in the last place. Far from 0 it is 1 - 2 e / (1 + e) with
 * e = e^(-2 |x|); near 0 that would be a small difference of large numbers, so there the odd series
 * x + x^3 p(x^2) takes its place, minimax on |x| < 0.55 with a relative error of 1.0e-9. */
static inline Vector tanh_of(Vector x)
{
    const VectorBits sign = (VectorBits)x & 0x80000000;
    const Vector a = (Vector)((VectorBits)x ^ sign), z = a * a;
    const Vector e = exp2_negative(-0x1.715476p+1f * a); /* 2 log2(e) */
    const Vector far = 1.0f - 2.0f * e / (1.0f + e);
    const VectorInt is_near = a < 0.55f;
    Vector near = -0x1.9b3be2p-8f * z + 0x1.593ef6p-6f;
    near = near * z - 0x1.b928b2p-5f;
    near = near * z + 0x1.110d28p-3f;
    near = near * z - 0x1.55554ap-2f;
    near = near * z * a + a;
    return (Vector)((VectorBits)((is_near & (VectorInt)near) | (~is_near & (VectorInt)far)) | sign);
}

/* A register tile gains a b: `steps` rows of b, `vectors` vectors of each, times one number a for
 * each row r of the tile. a[r * row_step] lie apart by row_step, the next step is `step` further.
 * All loops but that over the steps have constant bounds once this is inlined and are unrolled, so
 * that acc is registers, not memory. Four steps a turn: the branch at its end and the additions to
 * pointers share the ports of the multiply-adds. */
static inline __attribute__((always_inline)) void multiply(Vector acc[STRIP][2], const float *a,
                                                           const int64_t row_step,
                                                           const int64_t step, const float *b,
                                                           int64_t steps, const int vectors)
{
#pragma GCC unroll 4
    for (int64_t t = 0; t < steps; t++, a += step, b += PANEL) {
        const Vector b0 = load(b), b1 = vectors == 2 ? load(b + LANES) : b0;
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            acc[r][0] += a[r * row_step] * b0;
            if (vectors == 2)
                acc[r][1] += a[r * row_step] * b1;
        }
    }
}

/* simd_layout.c; what they do stands at FlashSimd in simd.h */
void OWN(simd_hide)(float *S, const int32_t *from, const int32_t *to, int64_t cols);
void OWN(simd_transpose)(const float *rows, int64_t ld, int64_t count, int64_t d, float factor,
                         float *to, int64_t width);
void OWN(simd_sums)(const float *l, float *sums);
void OWN(simd_scale_rows)(const float *rows, int64_t ld, const float *factor, int64_t count,
                          int64_t d, float *to, int64_t ld_to, int past_caches);
void OWN(simd_split)(const float *rows, int64_t ld, int64_t count, int64_t d, float *to,
                     int64_t ld_to);

#endif
