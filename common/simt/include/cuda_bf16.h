/* SPDX-License-Identifier: MIT
 *
 * cuda_bf16.h: bfloat16 on a CPU: the upper half of a float, rounded to nearest, ties to even.
 *
 * Interface: __nv_bfloat16, __nv_bfloat162 and their conversions.
 */
#pragma once
#ifdef __cplusplus
#include "simt.h"

static inline SIMT_QUIET unsigned short simt_to_bfloat16(float f)
{
    unsigned u;
    __builtin_memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline SIMT_QUIET float simt_from_bfloat16(unsigned short bits)
{
    unsigned u = (unsigned)bits << 16;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

SIMT_SIXTEEN_BITS(bfloat16, __nv_bfloat16, __nv_bfloat162)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
SIMT_HALVES(__nv_bfloat162, __nv_bfloat16)
#endif
