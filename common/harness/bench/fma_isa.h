/* SPDX-License-Identifier: MIT
 *
 * fma_isa.h: multiply-adds on registers and nothing else, once for each instruction set: the most
 * that a core can do, beside which sgemm shows how undisturbed the machine is.
 *
 * Interface:
 * - FmaIsa: one compiled copy of fma_isa.c. flops_per_turn operations a turn; the result only keeps
 *   the compiler from leaving the work out.
 */
#ifndef ATTN_FMA_ISA_H
#define ATTN_FMA_ISA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct FmaIsa {
    const char *name;
    int flops_per_turn;
    float (*run)(int64_t turns);
} FmaIsa;

extern const FmaIsa fma_isa_portable, fma_isa_avx2, fma_isa_avx512;

#ifdef __cplusplus
}
#endif
#endif
