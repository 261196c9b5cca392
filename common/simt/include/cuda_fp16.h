/* SPDX-License-Identifier: MIT
 *
 * cuda_fp16.h: half precision on a CPU: clang's own 16-bit storage type does the rounding.
 *
 * Interface: half, half2 and their conversions.
 */
#pragma once
#ifdef __cplusplus
#include "simt.h"

static inline SIMT_QUIET unsigned short simt_to_f16(float f)
{
    __fp16 h = (__fp16)f;
    unsigned short bits;
    __builtin_memcpy(&bits, &h, 2);
    return bits;
}

static inline SIMT_QUIET float simt_from_f16(unsigned short bits)
{
    __fp16 h;
    __builtin_memcpy(&h, &bits, 2);
    return (float)h;
}

struct __half {
    unsigned short bits;
    __half() = default;
    SIMT_QUIET __half(float f) : bits(simt_to_f16(f))
    {
    }
    SIMT_QUIET operator float() const
    {
        return simt_from_f16(bits);
    }
};
struct alignas(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

static inline SIMT_QUIET float __half2float(__half h)
{
    return (float)h;
}
static inline SIMT_QUIET __half __float2half_rn(float f)
{
    return __half(f);
}
static inline SIMT_QUIET __half __float2half(float f)
{
    return __half(f);
}
static inline SIMT_QUIET __half2 __floats2half2_rn(float a, float b)
{
    return {__half(a), __half(b)};
}
static inline SIMT_QUIET __half2 __float2half2_rn(float a)
{
    return {__half(a), __half(a)};
}
static inline SIMT_QUIET float2 __half22float2(__half2 h)
{
    return make_float2((float)h.x, (float)h.y);
}
static inline SIMT_QUIET __half2 __halves2half2(__half a, __half b)
{
    return {a, b};
}
static inline SIMT_QUIET __half __low2half(__half2 h)
{
    return h.x;
}
static inline SIMT_QUIET __half __high2half(__half2 h)
{
    return h.y;
}
static inline SIMT_QUIET __half2 __half2half2(__half a)
{
    return {a, a};
}
static inline SIMT_QUIET __half __ushort_as_half(unsigned short u)
{
    __half h;
    h.bits = u;
    return h;
}
static inline SIMT_QUIET unsigned short __half_as_ushort(__half h)
{
    return h.bits;
}
SIMT_HALVES(__half2, __half)
#endif
