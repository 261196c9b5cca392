/* SPDX-License-Identifier: MIT
 *
 * exp.h: exp for softmax, as a branch-free polynomial that any compiler can turn into SIMD.
 *
 * Interface:
 * - exp_f32(x): e^x for any float. exp2_f32(x): 2^x. Written without branches or calls, so a loop
 *   over it vectorises for whatever instruction set the file is compiled for.
 *   The error is proved over all 2^32 floats by tests/unit/test_exp.c; the bounds stand below.
 * - softmax_exp_row(): p[c] = exp(s[c] - max), returns their sum: the inner loop of every softmax,
 *   compiled for portable C, AVX2 and AVX-512 and chosen once at run time.
 * - row_max(): the largest element, chosen the same way.
 */
#ifndef ATTN_EXP_H
#define ATTN_EXP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* helper A writes: static inline exp_f32, exp2_f32 */
float row_max(const float *s, int64_t n);                              /* -inf for n = 0 */
float softmax_exp_row(const float *s, float *p, int64_t n, float max); /* p may be s */
const char *exp_isa(void); /* "portable" "avx2" "avx512": which was chosen; ATTN_ISA forces one */

#ifdef __cplusplus
}
#endif
#endif
