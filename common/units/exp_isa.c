/* SPDX-License-Identifier: MIT
 *
 * exp_isa.c: row_max and softmax_exp_row in plain C that compilers turn into SIMD.
 *
 * Meson compiles this file once for each instruction set, with -DEXP_ISA=avx2 and the like; exp.c
 * includes it for the portable copy. No intrinsics are needed: the loops run over a constant
 * number of lanes without branches or calls, and each lane has its own accumulator. (A single
 * accumulator would forbid SIMD: float addition is not associative, and the compiler may not
 * reorder it without -ffast-math, which this project never uses.)
 *
 * Interface: exp_isa.h, as the table exp_isa_<EXP_ISA>.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* -O2 of gcc 12 leaves most loops scalar */
#endif

#include "units/exp_isa.h"

#include <math.h>

#include "units/exp2.h"

#ifndef EXP_ISA
#define EXP_ISA portable
#endif
#define TABLE_NAME_(isa) exp_isa_##isa
#define TABLE_NAME(isa)  TABLE_NAME_(isa)
#define TEXT_(isa)       #isa
#define TEXT(isa)        TEXT_(isa)

/* Four AVX-512 registers: enough independent maxima to hide the latency of one. */
#define MAX_LANES 64
#define SUM_LANES 32
/* Floats are summed in short runs and the runs in double, so that the error does not grow with n:
 * in one float accumulator 2^24 terms of 0.9 are off by more than a tenth. */
#define RUN 1024

static float isa_row_max(const float *s, int64_t n)
{
    float m[MAX_LANES], max = -INFINITY;
    int32_t is_nan[MAX_LANES], any_nan = 0;
    int64_t c = 0;
    int t;
    for (t = 0; t < MAX_LANES; t++) {
        m[t] = -INFINITY;
        is_nan[t] = 0;
    }
    for (; c + MAX_LANES <= n; c += MAX_LANES)
        for (t = 0; t < MAX_LANES; t++) {
            const float x = s[c + t];
            m[t] = x > m[t] ? x : m[t]; /* false for NaN, so NaN is looked for on its own */
            is_nan[t] |= x != x;
        }
    for (; c < n; c++) {
        max = s[c] > max ? s[c] : max;
        any_nan |= s[c] != s[c];
    }
    for (int half = MAX_LANES / 2; half > 0; half /= 2)
        for (t = 0; t < half; t++) {
            m[t] = m[t + half] > m[t] ? m[t + half] : m[t];
            is_nan[t] |= is_nan[t + half];
        }
    return any_nan | is_nan[0] ? NAN : m[0] > max ? m[0] : max;
}

/* p[c] = exp(s[c] - shift) for n <= RUN elements; returns their sum. The work is done in a local
 * buffer that nothing else can point into, so the compiler need not ask whether p is s. */
static float exp_run(const float *s, float *p, int64_t n, float shift)
{
    float e[RUN], lane[SUM_LANES] = {0.0f}, sum = 0.0f;
    const int64_t padded = (n + SUM_LANES - 1) / SUM_LANES * SUM_LANES;
    int64_t c;
    int t;
    memcpy(e, s, (size_t)n * sizeof(float));
    for (c = n; c < padded; c++)
        e[c] = -INFINITY; /* exp gives 0, which changes no sum */
    for (c = 0; c < padded; c++)
        e[c] = exp_f32(e[c] - shift);
    for (c = 0; c < padded; c += SUM_LANES)
        for (t = 0; t < SUM_LANES; t++)
            lane[t] += e[c + t];
    memcpy(p, e, (size_t)n * sizeof(float));
    for (t = 0; t < SUM_LANES; t++)
        sum += lane[t];
    return sum;
}

static float isa_exp_row(const float *s, float *p, int64_t n, float max)
{
    /* -inf - -inf is NaN. Where the whole row is -inf any finite shift gives the zeros we want. */
    const float shift = max == -INFINITY ? 0.0f : max;
    double total = 0.0;
    int64_t c;
    for (c = 0; c < n; c += RUN)
        total += exp_run(s + c, p + c, n - c < RUN ? n - c : RUN, shift);
    return (float)total;
}

static void isa_exp_all(const float *x, float *y, int64_t n)
{
    int64_t c;
    for (c = 0; c < n; c++)
        y[c] = exp_f32(x[c]);
}

static void isa_exp2_all(const float *x, float *y, int64_t n)
{
    int64_t c;
    for (c = 0; c < n; c++)
        y[c] = exp2_f32(x[c]);
}

const ExpIsa TABLE_NAME(EXP_ISA) = {
    TEXT(EXP_ISA), isa_row_max, isa_exp_row, isa_exp_all, isa_exp2_all,
};
