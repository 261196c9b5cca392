/* SPDX-License-Identifier: MIT
 *
 * simd.h: the three inner loops of v2_simd, once for each instruction set.
 *
 * Interface:
 * - FlashSimd: one compiled copy of simd_kernels.c. v2_simd.c chooses one when the program runs.
 * - flash_simd_portable, flash_simd_avx2, flash_simd_avx512: the copies that this build has.
 * All pointers are 64-byte aligned, all row lengths (ld_*) multiples of `panel`, except ld_Q.
 */
#ifndef FLASH_SIMD_H
#define FLASH_SIMD_H

#include <stdint.h>

#define SIMD_MAX_LANES 16

typedef struct FlashSimd {
    const char *name;
    int strip; /* rows of a register tile */
    int panel; /* its columns: two vectors */
    int lanes; /* floats of a vector */

    /* S [strip][ld_S], the first `panel` columns = Q [strip][ld_Q] K_panel [d][panel] */
    void (*scores)(const float *Q, int64_t ld_Q, const float *K_panel, int64_t d, float *S,
                   int64_t ld_S);
    /* The online update of `strip` rows, all in units of log2: S [strip][ld_S], cols of it, becomes
     * P = 2^(S - m_new); m [strip] becomes m_new, l [strip][lanes] (a row's sum in `lanes` parts)
     * follows, alpha [strip] = 2^(m_old - m_new) is left for weighted_sum. alpha and m have room
     * for SIMD_MAX_LANES more. */
    void (*update)(float *S, int64_t ld_S, int64_t cols, float *m, float *l, float *alpha);
    /* O [strip][ld_O], the first `panel` columns = alpha * O + P [strip][ld_P] V_panel
     * [cols][panel] */
    void (*weighted_sum)(const float *P, int64_t ld_P, int64_t cols, const float *V_panel,
                         const float *alpha, float *O, int64_t ld_O);
    /* K_panel [d][panel] = the transpose of rows [panel][d] */
    void (*transpose)(const float *rows, int64_t d, float *K_panel);
    /* y = 2^x for x <= 0, below 2^-126.5 exactly 0: for the test of its error. n % lanes == 0 */
    void (*exp2_all)(const float *x, float *y, int64_t n);
} FlashSimd;

extern const FlashSimd flash_simd_portable, flash_simd_avx2, flash_simd_avx512;

#endif
