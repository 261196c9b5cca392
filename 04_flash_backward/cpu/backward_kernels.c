/* SPDX-License-Identifier: MIT
 *
 * backward_kernels.c: register tiles of v2_simd for what only the backward pass does. Meson
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

#include "cpu/simd_vector.h"

static void simd_gradients(float *S, float *dP, const float *lse, const float *delta,
                           const float *slope, int64_t cols)
{
    for (int64_t r = 0; r < STRIP; r++)
        for (int64_t c = 0; c < cols; c += LANES) {
            float *S_rc = S + r * SIMD_KEYS + c, *dP_rc = dP + r * SIMD_KEYS + c;
            const Vector P = exp2_negative(load(S_rc) - load(lse + c));
            Vector dS = P * (load(dP_rc) - load(delta + c));
            if (slope)
                dS *= load(slope + r * SIMD_KEYS + c);
            store(S_rc, P);
            store(dP_rc, dS);
        }
}

static void simd_add_product(const float *dS, const float *K_piece, int64_t steps, float *C,
                             int64_t ld_C)
{
    Vector acc[STRIP][2];
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++) {
        acc[r][0] = load(C + r * ld_C);
        acc[r][1] = load(C + r * ld_C + LANES);
    }
    multiply(acc, dS, 1, SIMD_KEYS, K_piece, steps, 2);
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++) {
        store(C + r * ld_C, acc[r][0]);
        store(C + r * ld_C + LANES, acc[r][1]);
    }
}

/* Rows of the caller's tensors: not aligned, and nothing behind their last number may be read. */
static void simd_row_dots(const float *a, int64_t ld_a, const float *b, int64_t ld_b, int64_t count,
                          int64_t d, float *dots)
{
    for (int64_t r = 0; r < count; r++) {
        Vector sum = {0};
        dots[r] = 0.0f;
        for (int64_t x = 0; x < d; x += LANES) {
            const size_t bytes = (size_t)(d - x < LANES ? d - x : LANES) * sizeof(float);
            Vector a_x = {0}, b_x = {0};
            memcpy(&a_x, a + r * ld_a + x, bytes == sizeof a_x ? sizeof a_x : bytes);
            memcpy(&b_x, b + r * ld_b + x, bytes == sizeof b_x ? sizeof b_x : bytes);
            sum += a_x * b_x;
        }
        for (int t = 0; t < LANES; t++)
            dots[r] += sum[t];
    }
}

const BackwardSimd OWN(backward_simd) = {simd_gradients, simd_add_product, simd_row_dots};
