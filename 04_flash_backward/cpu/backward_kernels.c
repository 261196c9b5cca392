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
#include "cpu/simd_vector.h"

static void simd_gradients(float *S, float *dP, const float *lse, const float *delta, int64_t cols)
{
    for (int64_t r = 0; r < STRIP; r++)
        for (int64_t c = 0; c < cols; c += LANES) {
            float *S_rc = S + r * SIMD_KEYS + c, *dP_rc = dP + r * SIMD_KEYS + c;
            const Vector P = exp2_negative(load(S_rc) - load(lse + c));
            store(S_rc, P);
            store(dP_rc, P * (load(dP_rc) - load(delta + c)));
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

const BackwardSimd OWN(backward_simd) = {simd_gradients, simd_add_product};
