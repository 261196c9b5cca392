/* SPDX-License-Identifier: MIT
 *
 * vector.h: one vector of floats, as wide as the instruction set that a file is compiled for.
 *
 * GCC and clang know vectors as a type, with + and * on them, and turn a * b + c into one fused
 * multiply-add. So code for vectors needs hardly any intrinsics, only a width. Meson compiles such
 * a file once for each instruction set, with -DFLASH_ISA=avx2 and the like and that set's compiler
 * flags, and once without, for any processor. OWN gives the copies of a function different names,
 * so that all of them stand in one program, which asks exp_isa() which one to call.
 *
 * Interface:
 * - Vector, VectorInt, VectorBits: LANES numbers. load, store: at a multiple of their size.
 * - larger: the maximum in each lane.
 * - ANY_PROCESSOR: defined in the copy without -DFLASH_ISA, which is compiled for any processor.
 * - OWN(name): name_avx2 and the like. TEXT(FLASH_ISA): "avx2".
 * - exp_isa(): which of them this program uses on this processor.
 * - EACH_ISA: a rung's pass becomes one for each instruction set.
 * - MOST_LANES: of the widest one, for who makes room without knowing which it will be.
 */
#ifndef ATTN_VECTOR_H
#define ATTN_VECTOR_H

#include <stdint.h>
#include <string.h>

#include "attn_config.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

/* "portable", "avx2" or "avx512", found once when the program first asks; the environment variable
 * ATTN_ISA forces one. */
const char *exp_isa(void);

#ifndef FLASH_ISA
#define FLASH_ISA     portable
#define ANY_PROCESSOR 1
#endif
#define OWN__(name, isa) name##_##isa
#define OWN_(name, isa)  OWN__(name, isa)
#define OWN(name)        OWN_(name, FLASH_ISA)
#define TEXT_(isa)       #isa
#define TEXT(isa)        TEXT_(isa)

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define MOST_LANES 16

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t VectorInt __attribute__((vector_size(4 * LANES)));
typedef uint32_t VectorBits __attribute__((vector_size(4 * LANES)));

static inline Vector load(const float *p)
{
    return *(const Vector *)p;
}

static inline void store(float *p, Vector v)
{
    *(Vector *)p = v;
}

/* a > b ? a : b in each lane, so b wherever one of them is NaN: what x86's instruction does. A
 * builtin needs no header, whose thousands of functions take gcc a third of a second a file. */
static inline Vector larger(Vector a, Vector b)
{
#if defined(__AVX512F__)
    return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return __builtin_ia32_maxps256(a, b);
#elif defined(__SSE2__)
    return __builtin_ia32_maxps(a, b);
#else
    for (int t = 0; t < LANES; t++)
        a[t] = a[t] > b[t] ? a[t] : b[t];
    return a;
#endif
}

/* EACH_ISA(name, pass, chosen): `pass` is a function of a rung's problem. Each copy of the file
 * gives its own to the program, as name_avx2 and the like. In the copy for any processor `chosen`
 * calls the best one that this processor can run; that is the rung's pass. */
#define THIS_IS(isa) (strcmp(exp_isa(), isa) == 0)
#if defined(HAVE_ISA_AVX512)
#define BEST(name, pass) (THIS_IS("avx512") ? name##_avx512 : THIS_IS("avx2") ? name##_avx2 : pass)
#elif defined(HAVE_ISA_AVX2)
#define BEST(name, pass) (THIS_IS("avx2") ? name##_avx2 : pass)
#else
#define BEST(name, pass) pass
#endif

#ifdef ANY_PROCESSOR
#define EACH_ISA(name, pass, chosen)                                                               \
    void name##_avx2(const struct Problem *p), name##_avx512(const struct Problem *p);             \
    static void chosen(const struct Problem *p)                                                    \
    {                                                                                              \
        BEST(name, pass)(p);                                                                       \
    }
#else
#define EACH_ISA(name, pass, chosen)                                                               \
    void OWN(name)(const struct Problem *p);                                                       \
    void OWN(name)(const struct Problem *p)                                                        \
    {                                                                                              \
        pass(p);                                                                                   \
    }
#endif

#endif
