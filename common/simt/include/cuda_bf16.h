/* SPDX-License-Identifier: MIT
 *
 * cuda_bf16.h: bfloat16 on a CPU: the upper half of a float, rounded to nearest, ties to even.
 *
 * Interface: __nv_bfloat16, __nv_bfloat162 and their conversions.
 */
#pragma once
#ifdef __cplusplus
#include "simt.h"

static inline SIMT_QUIET unsigned short simt_to_bf16(float f)
{
    unsigned u;
    __builtin_memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline SIMT_QUIET float simt_from_bf16(unsigned short bits)
{
    unsigned u = (unsigned)bits << 16;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    SIMT_QUIET __nv_bfloat16(float f) : bits(simt_to_bf16(f))
    {
    }
    SIMT_QUIET operator float() const
    {
        return simt_from_bf16(bits);
    }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline SIMT_QUIET float __bfloat162float(__nv_bfloat16 h)
{
    return (float)h;
}
static inline SIMT_QUIET __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __nv_bfloat16(f);
}
static inline SIMT_QUIET __nv_bfloat16 __float2bfloat16(float f)
{
    return __nv_bfloat16(f);
}
static inline SIMT_QUIET __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
static inline SIMT_QUIET __nv_bfloat162 __float2bfloat162_rn(float a)
{
    return {__nv_bfloat16(a), __nv_bfloat16(a)};
}
static inline SIMT_QUIET float2 __bfloat1622float2(__nv_bfloat162 h)
{
    return make_float2((float)h.x, (float)h.y);
}
static inline SIMT_QUIET __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return {a, b};
}
static inline SIMT_QUIET __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h)
{
    return h.x;
}
static inline SIMT_QUIET __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h)
{
    return h.y;
}
static inline SIMT_QUIET __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a)
{
    return {a, a};
}
static inline SIMT_QUIET __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    __nv_bfloat16 h;
    h.bits = u;
    return h;
}
static inline SIMT_QUIET unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.bits;
}
SIMT_HALVES(__nv_bfloat162, __nv_bfloat16)
#endif
