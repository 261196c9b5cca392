/* SPDX-License-Identifier: MIT
 *
 * exp_isa.h: the same two row functions, once for each instruction set (see exp_isa.c).
 *
 * Interface:
 * - ExpIsa: one compiled copy. exp_isa_table: copies in this program, best last; exp_isa_usable
 *   tells whether this CPU has the instructions. exp.c chooses one; test_exp.c tests them all.
 */
#ifndef ATTN_EXP_ISA_H
#define ATTN_EXP_ISA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ExpIsa {
    const char *name;
    float (*max)(const float *s, int64_t n);
    float (*exp_row)(const float *s, float *p, int64_t n, float max);
    /* y[c] = exp_f32(x[c]) and exp2_f32(x[c]) with this instruction set, for the proof */
    void (*exp_all)(const float *x, float *y, int64_t n);
    void (*exp2_all)(const float *x, float *y, int64_t n);
} ExpIsa;

extern const ExpIsa exp_isa_portable, exp_isa_avx2, exp_isa_avx512;

extern const ExpIsa *const exp_isa_table[];
extern const int exp_isa_count;
int exp_isa_usable(const ExpIsa *isa);
/* The copy with this name, or the best usable one below it; NULL or an unknown name: the best. */
const ExpIsa *exp_isa_choose(const char *name);

#ifdef __cplusplus
}
#endif
#endif
