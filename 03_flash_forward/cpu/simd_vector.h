/* SPDX-License-Identifier: MIT
 *
 * simd_vector.h: one vector of floats, its width, and the tile that fits the registers; for the
 * files that are compiled once for each instruction set.
 *
 * Interface:
 * - Vector, VectorInt, VectorBits, load, store; LANES, STRIP, PANEL.
 * - OWN(name): name_avx2 and the like, so that the copies of a function can stand in one program.
 */
#ifndef FLASH_SIMD_VECTOR_H
#define FLASH_SIMD_VECTOR_H

#include "simd.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

#ifndef FLASH_ISA
#define FLASH_ISA portable
#endif
#define OWN__(name, isa) name##_##isa
#define OWN_(name, isa)  OWN__(name, isa)
#define OWN(name)        OWN_(name, FLASH_ISA)
#define TEXT_(isa)       #isa
#define TEXT(isa)        TEXT_(isa)

#if defined(__AVX512F__)
#define LANES 16
#define STRIP 14
#elif defined(__AVX2__)
#define LANES 8
#define STRIP 6
#else
#define LANES 4
#define STRIP 6
#endif
#define PANEL (2 * LANES)

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

/* simd_layout.c; what they do stands at FlashSimd in simd.h */
void OWN(simd_hide)(float *S, const int32_t *from, const int32_t *to, int64_t cols);
void OWN(simd_transpose)(const float *rows, int64_t ld, int64_t count, int64_t d, float factor,
                         float *to, int64_t width);
void OWN(simd_sums)(const float *l, float *sums);
void OWN(simd_scale_rows)(const float *rows, int64_t ld, const float *factor, int64_t count,
                          int64_t d, float *to, int64_t ld_to);
void OWN(simd_split)(const float *rows, int64_t ld, int64_t count, int64_t d, float *to,
                     int64_t ld_to);

#endif
