/* SPDX-License-Identifier: MIT
 *
 * backward_kernels.c: register tiles of the library for what only the backward pass does. Meson
 * compiles this file once for each instruction set, with -DFLASH_ISA=avx2 and the like.
 *
 * The product dQ += dS K wants a number of dS for each query and key. dS lies transposed, keys by
 * rows, and that is just right: the numbers of `strip` queries for one key are neighbours, and the
 * next key is one row further. No copy is needed to turn it round.
 *
 * Interface: backward_simd.h, as the table backward_simd_<FLASH_ISA>.
 */
#include "backward_simd.h"

#include <string.h>

#include "attention/forward/cpu/simd_vector.h"

static void simd_gradients(float *S, float *dP, const float *lse, const float *delta,
                           const float *slope, int64_t cols)
{
    for (int64_t r = 0; r < STRIP; r++)
        for (int64_t c = 0; c < cols; c += LANES) {
            float *S_rc = S + r * SIMD_ROW + c, *dP_rc = dP + r * SIMD_ROW + c;
            /* lse is rounded, and below a large S: P stays at most 1. NaN is second, and stays. */
            const Vector P = exp2_negative(-larger((Vector){0}, load(lse + c) - load(S_rc)));
            Vector dS = P * (load(dP_rc) - load(delta + c));
            if (slope)
                dS *= load(slope + r * SIMD_ROW + c);
            store(S_rc, P);
            store(dP_rc, dS);
        }
}

/* Number t of row r of the left operand stands at a[r * row_step + t * step]. */
static inline __attribute__((always_inline)) void
add_product(const float *a, const int64_t row_step, const int64_t step, const float *piece,
            int64_t steps, int begun, float *C, int64_t ld_C)
{
    Vector acc[STRIP][2];
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++)
        acc[r][0] = acc[r][1] = (Vector){0};
    if (begun) {
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            acc[r][0] = load(C + r * ld_C);
            acc[r][1] = load(C + r * ld_C + LANES);
        }
    }
    multiply(acc, a, row_step, step, piece, steps, 2);
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++) {
        store(C + r * ld_C, acc[r][0]);
        store(C + r * ld_C + LANES, acc[r][1]);
    }
}

static void simd_add_rows(const float *P, const float *piece, int64_t steps, int begun, float *C,
                          int64_t ld_C)
{
    add_product(P, SIMD_ROW, 1, piece, steps, begun, C, ld_C);
}

static void simd_add_columns(const float *dS, const float *piece, int64_t steps, int begun,
                             float *C, int64_t ld_C)
{
    add_product(dS, 1, SIMD_ROW, piece, steps, begun, C, ld_C);
}

/* Rows of the caller's tensors: not aligned, and nothing behind their last number may be read. A
 * row's sum is at first a vector of partial sums; those of a strip are added up together. */
static void simd_row_dots(const float *a, int64_t ld_a, const float *b, int64_t ld_b, int64_t count,
                          int64_t d, float *dots)
{
    float partial[STRIP * LANES] __attribute__((aligned(64))) = {0}, sums[STRIP + SIMD_MAX_LANES];
    for (int64_t r = 0; r < count; r++) {
        Vector sum = {0};
        for (int64_t x = 0; x < d; x += LANES) {
            const size_t bytes = (size_t)(d - x < LANES ? d - x : LANES) * sizeof(float);
            Vector a_x = {0}, b_x = {0};
            memcpy(&a_x, a + r * ld_a + x, bytes == sizeof a_x ? sizeof a_x : bytes);
            memcpy(&b_x, b + r * ld_b + x, bytes == sizeof b_x ? sizeof b_x : bytes);
            sum += a_x * b_x;
        }
        store(partial + r % STRIP * LANES, sum);
        if (r % STRIP == STRIP - 1 || r == count - 1) {
            OWN(simd_sums)(partial, sums);
            memcpy(dots + r - r % STRIP, sums, (size_t)(r % STRIP + 1) * sizeof(float));
        }
    }
}

const BackwardSimd OWN(backward_simd) = {simd_gradients, simd_add_rows, simd_add_columns,
                                         simd_row_dots};
