/* SPDX-License-Identifier: MIT
 *
 * cuda_fp16.h: half precision on a CPU: clang's own 16-bit storage type does the rounding.
 *
 * Interface: half, half2 and their conversions.
 */
#pragma once
#ifdef __cplusplus
#include "simt.h"

static inline SIMT_QUIET unsigned short simt_to_half(float f)
{
    __fp16 h = (__fp16)f;
    unsigned short bits;
    __builtin_memcpy(&bits, &h, 2);
    return bits;
}

static inline SIMT_QUIET float simt_from_half(unsigned short bits)
{
    __fp16 h;
    __builtin_memcpy(&h, &bits, 2);
    return (float)h;
}

SIMT_SIXTEEN_BITS(half, __half, __half2)
typedef __half half;
typedef __half2 half2;
SIMT_HALVES(__half2, __half)
#endif
