/* SPDX-License-Identifier: MIT
 *
 * simd_kernels.c: register tiles and the vector exp of v2_simd.
 *
 * Meson compiles this file once for each instruction set, with -DFLASH_ISA=avx2 and the like. There
 * are no intrinsics but one: GCC and clang know vectors as a type, with + and * on them, and turn
 * a * b + c into one fused multiply-add.
 *
 * Why tiles in registers? A core does two vector multiply-adds in a cycle and two vector loads. A
 * dot product loads two vectors for each multiply-add, so it runs at half speed at best, and waits
 * for its own sum besides. A tile of 14 x 2 vectors loads 2 vectors and 14 single numbers (each
 * copied to all lanes on its way in) for 28 multiply-adds, and has 28 independent sums. That is how
 * BLAS does it too. The number of registers sets the tile: 32 of them with AVX-512 (28 sums, 2
 * vectors of K, 1 broadcast), 16 otherwise (12 sums, 2, 1).
 *
 * The operands lie in memory in the order of use. K comes as panels [d][panel], V as panels
 * [keys][panel]; Q and P are walked along their rows.
 *
 * Interface: simd.h, as the table flash_simd_<FLASH_ISA>.
 */
#include "simd.h"

#include <math.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#ifndef FLASH_ISA
#define FLASH_ISA portable
#endif
#define TABLE_NAME_(isa) flash_simd_##isa
#define TABLE_NAME(isa)  TABLE_NAME_(isa)
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

/* a > b ? a : b in each lane, so b wherever one of them is NaN: what x86's instruction does. */
static inline Vector larger(Vector a, Vector b)
{
#if defined(__AVX512F__)
    return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (Vector)_mm_max_ps((__m128)a, (__m128)b);
#else
    for (int t = 0; t < LANES; t++)
        a[t] = a[t] > b[t] ? a[t] : b[t];
    return a;
#endif
}

/* 2^x for x <= 0, NaN for NaN: exp2_f32 of common/exp.h without what negative numbers do not need.
 * From -127 on the result is 0 (correct rounding would give a subnormal, below 2^-126). The
 * rounder has 127 added: what it leaves in the low bits is the exponent field of 2^k, and 0, the
 * field of the number 0, for k = -127. */
static inline Vector exp2_negative(Vector x)
{
    const float rounder = 0x1.8p23f + 127.0f;
    Vector z, r, q;
    x = larger((Vector){0} - 127.0f, x);
    z = x + rounder;
    r = x - (z - rounder); /* exact, |r| <= 1/2 */
    q = 0x1.4bc274p-13f * r + 0x1.5fc048p-10f;
    q = q * r + 0x1.3b21c6p-7f;
    q = q * r + 0x1.c6ada6p-5f;
    q = q * r + 0x1.ebfbe6p-3f;
    q = q * r + 0x1.62e432p-1f;
    return (q * r + 1.0f) * (Vector)((VectorBits)z << 23);
}

/* A register tile gains a b: `steps` rows of b, `vectors` vectors of each, times one number a for
 * each row r of the tile. a[r * row_step] lie apart by row_step, the next step is `step` further.
 * All loops but that over the steps have constant bounds once this is inlined and are unrolled, so
 * that acc is registers, not memory. Four steps a turn: the branch at its end and the additions to
 * pointers share the ports of the multiply-adds. */
static inline __attribute__((always_inline)) void multiply(Vector acc[STRIP][2], const float *a,
                                                           const int64_t row_step,
                                                           const int64_t step, const float *b,
                                                           int64_t steps, const int vectors)
{
#pragma GCC unroll 4
    for (int64_t t = 0; t < steps; t++, a += step, b += PANEL) {
        const Vector b0 = load(b), b1 = vectors == 2 ? load(b + LANES) : b0;
#pragma GCC unroll 16
        for (int r = 0; r < STRIP; r++) {
            acc[r][0] += a[r * row_step] * b0;
            if (vectors == 2)
                acc[r][1] += a[r * row_step] * b1;
        }
    }
}

static inline __attribute__((always_inline)) void
score_tile(const float *Q_strip, const float *K_panel, int64_t d, float *S, const int vectors)
{
    Vector acc[STRIP][2];
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++)
        acc[r][0] = acc[r][1] = (Vector){0};
    multiply(acc, Q_strip, 1, STRIP, K_panel, d, vectors);
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++)
        for (int v = 0; v < vectors; v++)
            store(S + r * SIMD_KEYS + v * LANES, acc[r][v]);
}

static void simd_scores(const float *Q_strip, const float *K_panel, int64_t d, float *S,
                        int64_t cols)
{
    if (cols == PANEL)
        score_tile(Q_strip, K_panel, d, S, 2);
    else
        score_tile(Q_strip, K_panel, d, S, 1);
}

/* The rescaling of the online softmax costs nothing extra: the old O has to be loaded anyway. */
static void simd_weighted_sum(const float *P, int64_t cols, const float *V_panel,
                              const float *alpha, float *O, int64_t ld_O)
{
    Vector acc[STRIP][2];
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++) {
        acc[r][0] = alpha[r] * load(O + r * ld_O);
        acc[r][1] = alpha[r] * load(O + r * ld_O + LANES);
    }
    multiply(acc, P, SIMD_KEYS, 1, V_panel, cols, 2);
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++) {
        store(O + r * ld_O, acc[r][0]);
        store(O + r * ld_O + LANES, acc[r][1]);
    }
}

/* A compare and a select for each vector, no branch: where a row's interval ends is different in
 * each row, so a processor could not foresee it. */
static void simd_hide(float *S, const int32_t *from, const int32_t *to, int64_t cols)
{
    const VectorInt nothing = (VectorInt)((Vector){0} - INFINITY);
    for (int64_t c = 0; c < cols; c += LANES) {
        VectorInt column;
        for (int t = 0; t < LANES; t++)
            column[t] = (int32_t)c + t;
        for (int r = 0; r < STRIP; r++) {
            float *S_r = S + r * SIMD_KEYS + c;
            const VectorInt keep = (column >= from[r]) & (column < to[r]);
            store(S_r, (Vector)((keep & (VectorInt)load(S_r)) | (~keep & nothing)));
        }
    }
}

static float largest_lane(Vector v)
{
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int t = 0; t < half; t++)
            v[t] = v[t] > v[t + half] ? v[t] : v[t + half];
    return v[0];
#endif
}

static void simd_update(float *S, int64_t cols, float *m, float *l, float *alpha)
{
    float shift[STRIP + LANES];
    for (int r = 0; r < STRIP; r++) {
        const float *S_r = S + r * SIMD_KEYS;
        Vector a = load(S_r), b = load(S_r + cols - LANES);
        for (int64_t c = LANES; c + LANES < cols; c += 2 * LANES) {
            a = larger(a, load(S_r + c));
            b = larger(b, load(S_r + c + LANES));
        }
        shift[r] = largest_lane(larger(a, b));
    }
    /* The rows' states, as vectors over rows: no scalar exp. */
    for (int r = 0; r < STRIP; r++) {
        const float m_new = m[r] > shift[r] ? m[r] : shift[r];
        shift[r] = m_new == -INFINITY ? 0.0f : m_new; /* nothing seen yet: not -inf - -inf */
        alpha[r] = m[r] - shift[r];
        m[r] = m_new;
    }
    for (int r = 0; r < STRIP; r += LANES) {
        Vector v;
        memcpy(&v, alpha + r, sizeof v);
        v = exp2_negative(v);
        memcpy(alpha + r, &v, sizeof v);
    }
    for (int r = 0; r < STRIP; r++) {
        float *P_r = S + r * SIMD_KEYS;
        const float m_r = shift[r]; /* vector - float: the float is copied to all lanes */
        Vector a = alpha[r] * load(l + r * LANES), b = {0};
        int64_t c = 0;
        for (; c + PANEL <= cols; c += PANEL) {
            const Vector p0 = exp2_negative(load(P_r + c) - m_r);
            const Vector p1 = exp2_negative(load(P_r + c + LANES) - m_r);
            store(P_r + c, p0);
            store(P_r + c + LANES, p1);
            a += p0;
            b += p1;
        }
        if (c < cols) {
            const Vector p0 = exp2_negative(load(P_r + c) - m_r);
            store(P_r + c, p0);
            a += p0;
        }
        store(l + r * LANES, a + b);
    }
}

#if LANES == 16
#define LOW_HALVES  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define LOW_HALVES  0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW_HALVES  0, 4, 1, 5
#define HIGH_HALVES 2, 6, 3, 7
#endif

/* LANES vectors as a matrix, transposed: shuffle the upper and the lower half of the rows into each
 * other like a pack of cards, log2(LANES) times. */
static inline void transpose_square(Vector v[LANES])
{
    for (int turn = 1; turn < LANES; turn *= 2) {
        Vector mixed[LANES];
#pragma GCC unroll 8
        for (int r = 0; r < LANES / 2; r++) {
            mixed[2 * r] = __builtin_shufflevector(v[r], v[r + LANES / 2], LOW_HALVES);
            mixed[2 * r + 1] = __builtin_shufflevector(v[r], v[r + LANES / 2], HIGH_HALVES);
        }
        memcpy(v, mixed, sizeof mixed);
    }
}

/* A vector of each row goes through the square; what comes out is stored at distances of `width`. A
 * strip is not a whole number of vectors: the superfluous lanes of one x are overwritten by the
 * first ones of x + 1. So x runs upwards, and all vectors of one x come before those of the next.
 */
static void simd_transpose(const float *rows, int64_t ld, int64_t count, int64_t d, float factor,
                           float *to, int64_t width)
{
    enum { MOST = 2 };
    for (int64_t x = 0; x < d; x += LANES) {
        const int64_t cols = d - x < LANES ? d - x : LANES;
        Vector v[MOST][LANES];
        for (int64_t r = 0; r < width; r++) {
            Vector row = {0};
            if (r < count && cols == LANES)
                memcpy(&row, rows + r * ld + x, sizeof row);
            else if (r < count) /* never a float behind the end of a row */
                memcpy(&row, rows + r * ld + x, (size_t)cols * sizeof(float));
            v[r / LANES][r % LANES] = factor * row;
        }
        for (int64_t r = width; r < (width + LANES - 1) / LANES * LANES; r++)
            v[r / LANES][r % LANES] = (Vector){0};
        for (int64_t part = 0; part * LANES < width; part++)
            transpose_square(v[part]);
        for (int64_t c = 0; c < cols; c++)
            for (int64_t part = 0; part * LANES < width; part++)
                memcpy(to + (x + c) * width + part * LANES, &v[part][c], sizeof(Vector));
    }
}

static void simd_split(const float *rows, int64_t ld, int64_t count, int64_t d, float *to,
                       int64_t ld_to)
{
    for (int64_t r = 0; r < count; r++)
        for (int64_t x = 0; x < d; x += PANEL) {
            float *piece = to + x / PANEL * ld_to + r * PANEL;
            if (d - x >= PANEL) {
                memcpy(piece, rows + r * ld + x, PANEL * sizeof(float));
            } else {
                memset(piece, 0, PANEL * sizeof(float));
                memcpy(piece, rows + r * ld + x, (size_t)(d - x) * sizeof(float));
            }
        }
}

static void simd_exp2_all(const float *x, float *y, int64_t n)
{
    for (int64_t c = 0; c < n; c += LANES)
        store(y + c, exp2_negative(load(x + c)));
}

const FlashSimd TABLE_NAME(FLASH_ISA) = {
    TEXT(FLASH_ISA), STRIP,      PANEL,         LANES,
    simd_scores,     simd_hide,  simd_update,   simd_weighted_sum,
    simd_transpose,  simd_split, simd_exp2_all,
};
