/* SPDX-License-Identifier: MIT
 *
 * simd.h: the inner loops of the library, once for each instruction set.
 *
 * Interface:
 * - FlashSimd: one compiled copy of simd_kernels.c. simd_run.c chooses one when the program runs.
 * - flash_simd_portable, flash_simd_avx2, flash_simd_avx512: the copies that this build has.
 *
 * A strip is as many rows as a register tile has, a panel as many columns. Three layouts, each in
 * the order in which its loop walks through it:
 *     Q_strip  [d][strip]                rows of Q, transposed
 *     K_panel  [d][panel]                keys, transposed
 *     V_panel  [keys][panel]             `panel` channels of V
 * S, then P, is [strip][SIMD_ROW]. All of them start at a multiple of 64 bytes.
 */
#ifndef FLASH_SIMD_H
#define FLASH_SIMD_H

#include <stdint.h>

#define SIMD_MAX_LANES 16
#define SIMD_MAX_STRIP 14
#define SIMD_KEYS      256 /* keys of a block, which all strips use before the next one comes */
#define SIMD_ROW       320 /* columns of S: room for what a strip sees in a window of 256 */

typedef struct FlashSimd {
    const char *name;
    int strip; /* rows of a register tile */
    int panel; /* its columns: two vectors */
    int lanes; /* floats of a vector */

    /* S [strip][SIMD_ROW], the first `cols` columns = Q_strip K_panel; cols is panel or lanes */
    void (*scores)(const float *Q_strip, const float *K_panel, int64_t d, float *S, int64_t cols);
    /* S [strip][SIMD_ROW], the first `cols` columns: row r keeps from[r] <= c < to[r] */
    void (*hide)(float *S, const int32_t *from, const int32_t *to, int64_t cols);
    /* The softcap: S [strip][SIMD_ROW], the first `cols` columns (a multiple of lanes), becomes
     * factor * tanh(S); slope [strip][SIMD_ROW], unless it is NULL, becomes 1 - tanh(S)^2 */
    void (*cap)(float *S, float *slope, float factor, int64_t cols);
    /* The online update of `strip` rows, all in units of log2: S [strip][SIMD_ROW], cols of it (a
     * multiple of lanes), becomes P = 2^(S - m_new); m [strip] becomes m_new, l [strip][lanes] (a
     * row's sum in `lanes` parts) follows, alpha [strip] = 2^(m_old - m_new) is left for
     * weighted_sum. alpha and m have room for SIMD_MAX_LANES more. */
    void (*update)(float *S, int64_t cols, float *m, float *l, float *alpha);
    /* O [strip][ld_O], the first `panel` columns = alpha * O + P [strip][SIMD_ROW] V_panel, over
     * the first `cols` keys */
    void (*weighted_sum)(const float *P, int64_t cols, const float *V_panel, const float *alpha,
                         float *O, int64_t ld_O);
    /* to [d][width] = factor * the transpose of rows [count][ld]; columns from count on are zeros.
     * width: panel or strip. Writes up to SIMD_MAX_LANES floats behind the end. */
    void (*transpose)(const float *rows, int64_t ld, int64_t count, int64_t d, float factor,
                      float *to, int64_t width);
    /* to [d / panel, up][ld_to / panel][panel]: rows [count][ld] cut into pieces of `panel`
     * channels, the last one filled up with zeros */
    void (*split)(const float *rows, int64_t ld, int64_t count, int64_t d, float *to,
                  int64_t ld_to);
    /* sums [strip] of l [strip][lanes]; sums has room for SIMD_MAX_LANES more */
    void (*sums)(const float *l, float *sums);
    /* to [count][ld_to] = factor[r] * rows [count][ld], d columns; rows are aligned, to need not.
     * past_caches: nobody will read it soon; `to` starts at a multiple of 64 bytes then, and d and
     * ld_to are multiples of 16 */
    void (*scale_rows)(const float *rows, int64_t ld, const float *factor, int64_t count, int64_t d,
                       float *to, int64_t ld_to, int past_caches);
    /* y = 2^x for x <= 0, below 2^-126.5 exactly 0: for the test of its error. n % lanes == 0 */
    void (*exp2_all)(const float *x, float *y, int64_t n);
} FlashSimd;

extern const FlashSimd flash_simd_portable, flash_simd_avx2, flash_simd_avx512;

#endif
