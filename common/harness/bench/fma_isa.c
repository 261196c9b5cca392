/* SPDX-License-Identifier: MIT
 *
 * fma_isa.c: the register-only loop. Meson compiles it once for each instruction set, with
 * -DFMA_ISA=avx2 and the like.
 *
 * A multiply-add takes about four cycles, and a core starts two in each. So at least eight sums
 * must be under way at a time; here it is twelve, and with x and y they fit into 16 registers, the
 * number that every instruction set but AVX-512 has. Four steps a turn: the loop's own instructions
 * then take none of the time. Without a fused instruction (plain x86-64) a step is a multiplication
 * and an addition, as it is in that machine's sgemm.
 *
 * Interface: fma_isa.h, as the table fma_isa_<FMA_ISA>.
 */
#include "harness/bench/fma_isa.h"

#ifndef FMA_ISA
#define FMA_ISA portable
#endif
#define TABLE_NAME_(isa) fma_isa_##isa
#define TABLE_NAME(isa)  TABLE_NAME_(isa)
#define TEXT_(isa)       #isa
#define TEXT(isa)        TEXT_(isa)

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define CHAINS 12
#define STEPS  4

typedef float Vector __attribute__((vector_size(4 * LANES)));

/* Each sum tends to y / (1 - x): no overflow, no subnormal number, however many turns. */
static float run_chains(int64_t turns)
{
    const Vector x = (Vector){0} + 0.75f, y = (Vector){0} + 0.5f;
    Vector sum[CHAINS], all = {0};
    float result = 0.0f;
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        sum[c] = (Vector){0} + (float)c;
    for (int64_t t = 0; t < turns; t++) {
#pragma GCC unroll 4
        for (int step = 0; step < STEPS; step++) {
#pragma GCC unroll 12
            for (int c = 0; c < CHAINS; c++)
                sum[c] = sum[c] * x + y;
        }
    }
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        all += sum[c];
    for (int lane = 0; lane < LANES; lane++)
        result += all[lane];
    return result;
}

const FmaIsa TABLE_NAME(FMA_ISA) = {TEXT(FMA_ISA), 2 * LANES *CHAINS *STEPS, run_chains};
