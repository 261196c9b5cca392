/* SPDX-License-Identifier: MIT
 *
 * transpose_quad.cuh: four neighbouring lanes exchange what they have of a row, so that each can
 * store 16 bytes of its own.
 *
 * In the layout of an accumulator a lane has two neighbouring channels of every eight: a register
 * of two 16-bit elements. Of 32 channels lane t of four has registers 0 to 3, channels 8 k + 2 t;
 * afterwards it has all eight channels from 8 t on.
 *
 * Interface:
 * - transpose_quad.
 */
#ifndef UNITS_TRANSPOSE_QUAD_CUH
#define UNITS_TRANSPOSE_QUAD_CUH

#include <stdint.h>

/* w of lane t of four neighbours becomes element t of each of them: what lane k had as w[t], lane t
 * has as w[k]. All lanes of the warp take part. */
static __device__ __forceinline__ void transpose_quad(uint32_t (&w)[4])
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[k] : w[k + 1], 1);
        w[k] = odd ? got : w[k];
        w[k + 1] = odd ? w[k + 1] : got;
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? w[k] : w[k + 2], 2);
        w[k] = high ? got : w[k];
        w[k + 2] = high ? w[k + 2] : got;
    }
}

#endif
