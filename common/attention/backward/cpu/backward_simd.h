/* SPDX-License-Identifier: MIT
 *
 * backward_simd.h: the inner loops of the library that stage 03 does not have, once for each
 * instruction set. The others (scores, hide, cap, transpose, split) are those of its
 * simd.h, which also says what a strip, a panel and the packed layouts are.
 *
 * Here rows are keys and columns are queries: S and all that follows from it are transposed.
 *
 * Interface:
 * - BackwardSimd: one compiled copy of backward_kernels.c, beside 03's FlashSimd of the same name.
 */
#ifndef BACKWARD_SIMD_H
#define BACKWARD_SIMD_H

#include "attention/forward/cpu/simd.h"

typedef struct BackwardSimd {
    /* S [strip][SIMD_ROW] -> P = 2^(S - lse), dP [strip][SIMD_ROW] -> dS = P * (dP - delta), in
     * place; columns 0 .. cols-1 (a multiple of lanes), lse and delta [cols] aligned like S. slope
     * [strip][SIMD_ROW] is one more factor of dS, NULL without a softcap. */
    void (*gradients)(float *S, float *dP, const float *lse, const float *delta, const float *slope,
                      int64_t cols);
    /* C [strip][ld_C], the first `panel` columns = begun * C + P [strip][SIMD_ROW] times
     * piece [steps][panel], over the first `steps` columns of P. With begun = 0 the old C is never
     * read: nobody has to fill it with zeros. */
    void (*add_rows)(const float *P, const float *piece, int64_t steps, int begun, float *C,
                     int64_t ld_C);
    /* The same with the transpose of the first `strip` columns of dS [steps][SIMD_ROW] for P. */
    void (*add_columns)(const float *dS, const float *piece, int64_t steps, int begun, float *C,
                        int64_t ld_C);
    /* dots [count] of row r of a [count][ld_a] and row r of b [count][ld_b], d numbers each */
    void (*row_dots)(const float *a, int64_t ld_a, const float *b, int64_t ld_b, int64_t count,
                     int64_t d, float *dots);
} BackwardSimd;

extern const BackwardSimd backward_simd_portable, backward_simd_avx2, backward_simd_avx512;

#endif
