/* SPDX-License-Identifier: MIT
 *
 * simt.h: what CUDA C++ calls without an include, on a CPU. Included before every .cu file.
 *
 * A thread of a block is a fiber: it runs until it has to wait for others. Words that say where a
 * function runs mean nothing here, as all runs on the CPU.
 *
 * Interface: CUDA's own names; namespace simt for translate.py.
 */
#pragma once
#ifdef __cplusplus
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS /* Bessel's and others: half of what clang would have to read */

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>

#include "cuda_runtime_api.h"

/* Not the student's access to memory: no call before it. */
#define SIMT_QUIET __attribute__((always_inline, no_sanitize("thread", "array-bounds")))

#define __device__
#define __host__
#define __global__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#ifndef SIMT_RUNTIME
#define __noinline__ __attribute__((noinline))
#endif
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __shared__   __simt_shared

/* --- vectors -----------------------------------------------------------------------------------*/

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef long long longlong;
typedef unsigned long long ulonglong;

/* Two and four: clang's own vectors, so that a float4 is one access of 16 bytes. Three have no
 * padding in CUDA, so they are a structure. */
#define SIMT_VECTORS(T)                                                                            \
    typedef T T##2 __attribute__((ext_vector_type(2)));                                            \
    typedef T T##4 __attribute__((ext_vector_type(4)));                                            \
    struct T##1                                                                                    \
    {                                                                                              \
        T x;                                                                                       \
    };                                                                                             \
    struct T##3                                                                                    \
    {                                                                                              \
        T x, y, z;                                                                                 \
    };                                                                                             \
    static inline SIMT_QUIET T##1 make_##T##1(T a)                                                 \
    {                                                                                              \
        return {a};                                                                                \
    }                                                                                              \
    static inline SIMT_QUIET T##2 make_##T##2(T a, T b)                                            \
    {                                                                                              \
        return (T##2){a, b};                                                                       \
    }                                                                                              \
    static inline SIMT_QUIET T##3 make_##T##3(T a, T b, T c)                                       \
    {                                                                                              \
        return {a, b, c};                                                                          \
    }                                                                                              \
    static inline SIMT_QUIET T##4 make_##T##4(T a, T b, T c, T d)                                  \
    {                                                                                              \
        return (T##4){a, b, c, d};                                                                 \
    }
SIMT_VECTORS(char)
SIMT_VECTORS(uchar)
SIMT_VECTORS(short)
SIMT_VECTORS(ushort)
SIMT_VECTORS(int)
SIMT_VECTORS(uint)
SIMT_VECTORS(float)
SIMT_VECTORS(double)
SIMT_VECTORS(longlong)
SIMT_VECTORS(ulonglong)

/* The two types and their conversions, NAME being half or bfloat16. */
#define SIMT_SIXTEEN_BITS(NAME, ONE, PAIR)                                                         \
    struct ONE {                                                                                   \
        unsigned short bits;                                                                       \
        ONE() = default;                                                                           \
        SIMT_QUIET ONE(float f) : bits(simt_to_##NAME(f))                                          \
        {                                                                                          \
        }                                                                                          \
        SIMT_QUIET operator float() const                                                          \
        {                                                                                          \
            return simt_from_##NAME(bits);                                                         \
        }                                                                                          \
    };                                                                                             \
    struct alignas(4) PAIR {                                                                       \
        ONE x, y;                                                                                  \
    };                                                                                             \
    static inline SIMT_QUIET float __##NAME##2float(ONE h)                                         \
    {                                                                                              \
        return (float)h;                                                                           \
    }                                                                                              \
    static inline SIMT_QUIET ONE __float2##NAME##_rn(float f)                                      \
    {                                                                                              \
        return ONE(f);                                                                             \
    }                                                                                              \
    static inline SIMT_QUIET ONE __float2##NAME(float f)                                           \
    {                                                                                              \
        return ONE(f);                                                                             \
    }                                                                                              \
    static inline SIMT_QUIET PAIR __floats2##NAME##2_rn(float a, float b)                          \
    {                                                                                              \
        return {ONE(a), ONE(b)};                                                                   \
    }                                                                                              \
    static inline SIMT_QUIET PAIR __float2##NAME##2_rn(float a)                                    \
    {                                                                                              \
        return {ONE(a), ONE(a)};                                                                   \
    }                                                                                              \
    static inline SIMT_QUIET float2 __##NAME##22float2(PAIR h)                                     \
    {                                                                                              \
        return make_float2((float)h.x, (float)h.y);                                                \
    }                                                                                              \
    static inline SIMT_QUIET PAIR __halves2##NAME##2(ONE a, ONE b)                                 \
    {                                                                                              \
        return {a, b};                                                                             \
    }                                                                                              \
    static inline SIMT_QUIET ONE __low2##NAME(PAIR h)                                              \
    {                                                                                              \
        return h.x;                                                                                \
    }                                                                                              \
    static inline SIMT_QUIET ONE __high2##NAME(PAIR h)                                             \
    {                                                                                              \
        return h.y;                                                                                \
    }                                                                                              \
    static inline SIMT_QUIET PAIR __##NAME##2##NAME##2(ONE a)                                      \
    {                                                                                              \
        return {a, a};                                                                             \
    }                                                                                              \
    static inline SIMT_QUIET ONE __ushort_as_##NAME(unsigned short u)                              \
    {                                                                                              \
        ONE h;                                                                                     \
        h.bits = u;                                                                                \
        return h;                                                                                  \
    }                                                                                              \
    static inline SIMT_QUIET unsigned short __##NAME##_as_ushort(ONE h)                            \
    {                                                                                              \
        return h.bits;                                                                             \
    }

/* half, bfloat16 and pairs of them: each number by itself, in float, rounded once. */
#define SIMT_UNARY(PAIR, ONE, NAME, NAME2, VALUE)                                                  \
    static inline SIMT_QUIET ONE NAME(ONE p)                                                       \
    {                                                                                              \
        const float a = p;                                                                         \
        return ONE(VALUE);                                                                         \
    }                                                                                              \
    static inline SIMT_QUIET PAIR NAME2(PAIR p)                                                    \
    {                                                                                              \
        return {NAME(p.x), NAME(p.y)};                                                             \
    }
#define SIMT_BINARY(PAIR, ONE, NAME, NAME2, VALUE)                                                 \
    static inline SIMT_QUIET ONE NAME(ONE p, ONE q)                                                \
    {                                                                                              \
        const float a = p, b = q;                                                                  \
        return ONE(VALUE);                                                                         \
    }                                                                                              \
    static inline SIMT_QUIET PAIR NAME2(PAIR p, PAIR q)                                            \
    {                                                                                              \
        return {NAME(p.x, q.x), NAME(p.y, q.y)};                                                   \
    }
#define SIMT_OPERATOR(T, SIGN, NAME)                                                               \
    static inline SIMT_QUIET T operator SIGN(T p, T q)                                             \
    {                                                                                              \
        return NAME(p, q);                                                                         \
    }                                                                                              \
    static inline SIMT_QUIET T &operator SIGN##=(T &p, T q)                                        \
    {                                                                                              \
        return p = NAME(p, q);                                                                     \
    }
#define SIMT_HALVES(PAIR, ONE)                                                                     \
    SIMT_BINARY(PAIR, ONE, __hadd, __hadd2, a + b)                                                 \
    SIMT_BINARY(PAIR, ONE, __hsub, __hsub2, a - b)                                                 \
    SIMT_BINARY(PAIR, ONE, __hmul, __hmul2, a *b)                                                  \
    SIMT_BINARY(PAIR, ONE, __hdiv, __h2div, a / b)                                                 \
    SIMT_BINARY(PAIR, ONE, __hmax, __hmax2, fmaxf(a, b))                                           \
    SIMT_BINARY(PAIR, ONE, __hmin, __hmin2, fminf(a, b))                                           \
    SIMT_UNARY(PAIR, ONE, __hneg, __hneg2, -a)                                                     \
    SIMT_UNARY(PAIR, ONE, __habs, __habs2, fabsf(a))                                               \
    SIMT_UNARY(PAIR, ONE, hexp, h2exp, (simt::count_exp(), expf(a)))                               \
    SIMT_UNARY(PAIR, ONE, hlog, h2log, logf(a))                                                    \
    SIMT_UNARY(PAIR, ONE, hsqrt, h2sqrt, sqrtf(a))                                                 \
    SIMT_UNARY(PAIR, ONE, hrsqrt, h2rsqrt, 1.0f / sqrtf(a))                                        \
    SIMT_OPERATOR(ONE, +, __hadd)                                                                  \
    SIMT_OPERATOR(ONE, -, __hsub)                                                                  \
    SIMT_OPERATOR(ONE, *, __hmul)                                                                  \
    SIMT_OPERATOR(ONE, /, __hdiv)                                                                  \
    SIMT_OPERATOR(PAIR, +, __hadd2)                                                                \
    SIMT_OPERATOR(PAIR, -, __hsub2)                                                                \
    SIMT_OPERATOR(PAIR, *, __hmul2)                                                                \
    SIMT_OPERATOR(PAIR, /, __h2div)                                                                \
    static inline SIMT_QUIET ONE __hfma(ONE a, ONE b, ONE c)                                       \
    {                                                                                              \
        return ONE(fmaf((float)a, (float)b, (float)c));                                            \
    }                                                                                              \
    static inline SIMT_QUIET PAIR __hfma2(PAIR a, PAIR b, PAIR c)                                  \
    {                                                                                              \
        return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                     \
    }                                                                                              \
    static inline SIMT_QUIET ONE operator-(ONE a)                                                  \
    {                                                                                              \
        return __hneg(a);                                                                          \
    }                                                                                              \
    static inline SIMT_QUIET PAIR operator-(PAIR a)                                                \
    {                                                                                              \
        return __hneg2(a);                                                                         \
    }                                                                                              \
    static inline SIMT_QUIET float __low2float(PAIR h)                                             \
    {                                                                                              \
        return (float)h.x;                                                                         \
    }                                                                                              \
    static inline SIMT_QUIET float __high2float(PAIR h)                                            \
    {                                                                                              \
        return (float)h.y;                                                                         \
    }

/* --- what the runtime offers -------------------------------------------------------------------*/

namespace simt
{
typedef unsigned long long u64;

struct Config {
    dim3 grid, block, cluster;
    size_t smem;
    Config(dim3 grid, dim3 block, size_t smem = 0, cudaStream_t = 0)
        : grid(grid), block(block), smem(smem)
    {
    }
};

enum Index { threadIdx_, blockIdx_, blockDim_, gridDim_ };
uint3 index_of(Index of) __attribute__((const));
void *dynamic_smem(void) __attribute__((const));
void *static_smem(const void *key, size_t bytes, size_t align);

/* line: a barrier is known by it. kind of the vote: 0 count, 1 and, 2 or */
int syncthreads(int line, int kind = 0, int predicate = 0);
void syncwarp(unsigned mask);
enum Collective {
    SHFL = 1,
    SHFL_XOR,
    SHFL_UP,
    SHFL_DOWN,
    BALLOT,
    ANY,
    ALL,
    MAX_U,
    MAX_I,
    MIN_U,
    MIN_I,
    ADD,
    OR,
    AND,
    XOR
};
u64 collect(Collective kind, unsigned mask, u64 value, int argument, int width);
unsigned active_mask(void);

uint32_t shared_address(uintptr_t a); /* 0: not shared memory */
char *shared_at(uint32_t address);
void fence(void);
void count_exp(void);
long long clock_now(void);
[[noreturn]] void trap(void);
void device_assert(const char *expression, const char *file, int line);

float atomic_add(float *p, float v);
double atomic_add(double *p, double v);
int atomic_add(int *p, int v);
unsigned atomic_add(unsigned *p, unsigned v);
u64 atomic_add(u64 *p, u64 v);
int atomic_max(int *p, int v);
unsigned atomic_max(unsigned *p, unsigned v);
int atomic_min(int *p, int v);
unsigned atomic_min(unsigned *p, unsigned v);
int atomic_exch(int *p, int v);
unsigned atomic_exch(unsigned *p, unsigned v);
float atomic_exch(float *p, float v);
int atomic_cas(int *p, int compare, int v);
unsigned atomic_cas(unsigned *p, unsigned compare, unsigned v);
u64 atomic_cas(u64 *p, u64 compare, u64 v);
unsigned atomic_inc(unsigned *p, unsigned limit);
int atomic_or(int *p, int v);
unsigned atomic_or(unsigned *p, unsigned v);

void run(const Config &c, const char *name, void (*body)(void *), void *args);

/* kernel: a lambda that calls it, or the function itself. Arguments are copied, as into a GPU. */
template <class K, class... A> SIMT_QUIET void launch(Config c, const char *name, K kernel, A... a)
{
    auto call = [=]() __attribute__((no_sanitize("thread")))
    {
        kernel(a...);
    };
    run(
        c, name, [](void *p) __attribute__((no_sanitize("thread"))) { (*(decltype(call) *)p)(); },
        &call);
}
} // namespace simt

/* --- CUDA's names ------------------------------------------------------------------------------*/

#define SIMT_INDEX(NAME)                                                                           \
    static const struct simt_##NAME {                                                              \
        __declspec(property(get = get_x)) unsigned x;                                              \
        __declspec(property(get = get_y)) unsigned y;                                              \
        __declspec(property(get = get_z)) unsigned z;                                              \
        SIMT_QUIET unsigned get_x() const                                                          \
        {                                                                                          \
            return simt::index_of(simt::NAME##_).x;                                                \
        }                                                                                          \
        SIMT_QUIET unsigned get_y() const                                                          \
        {                                                                                          \
            return simt::index_of(simt::NAME##_).y;                                                \
        }                                                                                          \
        SIMT_QUIET unsigned get_z() const                                                          \
        {                                                                                          \
            return simt::index_of(simt::NAME##_).z;                                                \
        }                                                                                          \
    } NAME = {};
SIMT_INDEX(threadIdx)
SIMT_INDEX(blockIdx)
SIMT_INDEX(blockDim)
SIMT_INDEX(gridDim)

#define warpSize               32
#define __syncthreads()        ((void)simt::syncthreads(__LINE__))
#define __syncthreads_count(p) simt::syncthreads(__LINE__, 0, p)
#define __syncthreads_and(p)   simt::syncthreads(__LINE__, 1, p)
#define __syncthreads_or(p)    simt::syncthreads(__LINE__, 2, p)
#define __activemask()         simt::active_mask()
#define __trap()               simt::trap()
#ifndef SIMT_RUNTIME
#define clock64() simt::clock_now()
#define clock()   simt::clock_now()
#undef assert
#define assert(e) ((e) ? (void)0 : simt::device_assert(#e, __FILE__, __LINE__))
#endif

static inline SIMT_QUIET void __syncwarp(unsigned mask = ~0u)
{
    simt::syncwarp(mask);
}

template <class T>
static inline SIMT_QUIET T simt_collect(simt::Collective kind, unsigned mask, T v, int argument,
                                        int width)
{
    static_assert(sizeof(T) <= 8, "a shuffle takes at most 8 bytes");
    simt::u64 u = 0;
    T r;
    __builtin_memcpy(&u, &v, sizeof v);
    u = simt::collect(kind, mask, u, argument, width);
    __builtin_memcpy(&r, &u, sizeof r);
    return r;
}
#define SIMT_SHUFFLE(NAME, KIND)                                                                   \
    template <class T>                                                                             \
    static inline SIMT_QUIET T NAME(unsigned mask, T v, int argument, int width = 32)              \
    {                                                                                              \
        return simt_collect(simt::KIND, mask, v, argument, width);                                 \
    }
SIMT_SHUFFLE(__shfl_sync, SHFL)
SIMT_SHUFFLE(__shfl_xor_sync, SHFL_XOR)
SIMT_SHUFFLE(__shfl_up_sync, SHFL_UP)
SIMT_SHUFFLE(__shfl_down_sync, SHFL_DOWN)
#define SIMT_VOTE(NAME, KIND, R, T)                                                                \
    static inline SIMT_QUIET R NAME(unsigned mask, T v)                                            \
    {                                                                                              \
        return (R)simt_collect<T>(simt::KIND, mask, v, 0, 32);                                     \
    }
SIMT_VOTE(__ballot_sync, BALLOT, unsigned, int)
SIMT_VOTE(__any_sync, ANY, int, int)
SIMT_VOTE(__all_sync, ALL, int, int)
SIMT_VOTE(__reduce_max_sync, MAX_U, unsigned, unsigned)
SIMT_VOTE(__reduce_max_sync, MAX_I, int, int)
SIMT_VOTE(__reduce_min_sync, MIN_U, unsigned, unsigned)
SIMT_VOTE(__reduce_min_sync, MIN_I, int, int)
SIMT_VOTE(__reduce_add_sync, ADD, unsigned, unsigned)
SIMT_VOTE(__reduce_add_sync, ADD, int, int)
SIMT_VOTE(__reduce_or_sync, OR, unsigned, unsigned)
SIMT_VOTE(__reduce_and_sync, AND, unsigned, unsigned)
SIMT_VOTE(__reduce_xor_sync, XOR, unsigned, unsigned)

#define __cvta_generic_to_shared(p) ((size_t)simt::shared_address((uintptr_t)(p)))
#define __cvta_shared_to_generic(a) ((void *)simt::shared_at((uint32_t)(a)))
#define __cvta_generic_to_global(p) ((size_t)(p))
#define atomicAdd(p, v)             simt::atomic_add(p, v)
#define atomicSub(p, v)             simt::atomic_add(p, -(v))
#define atomicMax(p, v)             simt::atomic_max(p, v)
#define atomicMin(p, v)             simt::atomic_min(p, v)
#define atomicExch(p, v)            simt::atomic_exch(p, v)
#define atomicCAS(p, a, b)          simt::atomic_cas(p, a, b)
#define atomicInc(p, v)             simt::atomic_inc(p, v)
#define atomicOr(p, v)              simt::atomic_or(p, v)
#define __threadfence()             simt::fence()
#define __threadfence_system()      simt::fence()
#define __threadfence_block()       simt::fence()

/* With their own calls before the access: these are the student's. */
#define SIMT_SEEN static inline __attribute__((always_inline))
template <class T> SIMT_SEEN T __ldg(const T *p)
{
    return *p;
}
template <class T> SIMT_SEEN T __ldcg(const T *p)
{
    return *p;
}
template <class T> SIMT_SEEN T __ldcs(const T *p)
{
    return *p;
}
template <class T> SIMT_SEEN void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> SIMT_SEEN void __stcg(T *p, T v)
{
    *p = v;
}

#define SIMT_MATH(RESULT, NAME, PARAMETERS, VALUE)                                                 \
    static inline SIMT_QUIET RESULT NAME PARAMETERS                                                \
    {                                                                                              \
        return VALUE;                                                                              \
    }
/* Names that the C library has as well. */
#define __expf(x) (simt::count_exp(), expf(x))
#define __logf(x) logf(x)
static inline SIMT_QUIET float __uint_as_float(unsigned u)
{
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}
static inline SIMT_QUIET unsigned __float_as_uint(float f)
{
    unsigned u;
    __builtin_memcpy(&u, &f, 4);
    return u;
}
SIMT_MATH(int, __float_as_int, (float f), (int)__float_as_uint(f))
SIMT_MATH(float, __int_as_float, (int i), __uint_as_float((unsigned)i))
SIMT_MATH(float, rsqrtf, (float x), 1.0f / sqrtf(x))
SIMT_MATH(float, __fdividef, (float a, float b), a / b)
SIMT_MATH(float, __frcp_rn, (float a), 1.0f / a)
SIMT_MATH(float, __fmaf_rn, (float a, float b, float c), fmaf(a, b, c))
SIMT_MATH(float, __fadd_rn, (float a, float b), a + b)
SIMT_MATH(float, __fmul_rn, (float a, float b), a *b)
SIMT_MATH(int, __ffs, (int x), __builtin_ffs(x))
SIMT_MATH(int, __clz, (int x), x ? __builtin_clz((unsigned)x) : 32)
SIMT_MATH(int, __popc, (unsigned x), __builtin_popcount(x))
SIMT_MATH(unsigned, __umulhi, (unsigned a, unsigned b), (unsigned)((simt::u64)a *b >> 32))
template <class A, class B> static inline SIMT_QUIET constexpr auto min(A a, B b) -> decltype(a + b)
{
    return a < b ? a : b;
}
template <class A, class B> static inline SIMT_QUIET constexpr auto max(A a, B b) -> decltype(a + b)
{
    return a < b ? b : a;
}

/* --- the runtime's functions that are templates ------------------------------------------------*/

template <class T> static inline cudaError_t cudaMemcpyToSymbol(T &to, const void *from, size_t n)
{
    memcpy((void *)&to, from, n);
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaMemcpyFromSymbol(void *to, const T &from, size_t n)
{
    memcpy(to, (const void *)&from, n);
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaGetSymbolAddress(void **p, T &s)
{
    *p = (void *)&s;
    return cudaSuccess;
}
template <class K>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, K, int, size_t)
{
    *n = 1;
    return cudaSuccess;
}
template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*k)(P...), cudaFuncAttribute a, int v)
{
    return cudaFuncSetAttribute((const void *)k, a, v);
}
template <class... P>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, void (*k)(P...))
{
    return cudaFuncGetAttributes(a, (const void *)k);
}
enum { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
    int id;
    union {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
/* The model has four multiprocessors, and a block on each. */
static inline cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *,
                                                         const cudaLaunchConfig_t *c)
{
    *n = 4;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            *n = 4 / (int)c->attrs[i].val.clusterDim.x;
    return cudaSuccess;
}
template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...),
                                             A &&...a)
{
    simt::Config config(c->gridDim, c->blockDim, c->dynamicSmemBytes);
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            config.cluster = dim3(c->attrs[i].val.clusterDim.x, c->attrs[i].val.clusterDim.y,
                                  c->attrs[i].val.clusterDim.z);
    simt::launch(config, "cudaLaunchKernelEx", kernel, (std::remove_const_t<P>)(a)...);
    return cudaSuccess;
}

#include "simt_ptx.h"
#endif
