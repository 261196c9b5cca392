/* SPDX-License-Identifier: MIT
 *
 * simd_kernels.c: register tiles and the vector exp of the library.
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
 * [keys][panel], Q as strips [d][strip]; P is walked along its rows.
 *
 * Moving and masking is in simd_layout.c.
 *
 * Interface: simd.h, as the table flash_simd_<FLASH_ISA>.
 */
#include "simd_vector.h"

#include <math.h>
#include <string.h>

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
            store(S + r * SIMD_ROW + v * LANES, acc[r][v]);
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
    multiply(acc, P, SIMD_ROW, 1, V_panel, cols, 2);
#pragma GCC unroll 16
    for (int r = 0; r < STRIP; r++) {
        store(O + r * ld_O, acc[r][0]);
        store(O + r * ld_O + LANES, acc[r][1]);
    }
}

static void simd_cap(float *S, float *slope, float factor, int64_t cols)
{
    for (int64_t r = 0; r < STRIP; r++)
        for (int64_t c = r * SIMD_ROW; c < r * SIMD_ROW + cols; c += LANES) {
            const Vector t = tanh_of(load(S + c));
            store(S + c, factor * t);
            if (slope)
                store(slope + c, 1.0f - t * t);
        }
}

static float largest_of_lanes(Vector v)
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
        const float *S_r = S + r * SIMD_ROW;
        Vector a = load(S_r), b = load(S_r + cols - LANES);
        for (int64_t c = LANES; c + LANES < cols; c += 2 * LANES) {
            a = larger(a, load(S_r + c));
            b = larger(b, load(S_r + c + LANES));
        }
        shift[r] = largest_of_lanes(larger(a, b));
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
        float *P_r = S + r * SIMD_ROW;
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

static void simd_exp2_all(const float *x, float *y, int64_t n)
{
    for (int64_t c = 0; c < n; c += LANES)
        store(y + c, exp2_negative(load(x + c)));
}

const FlashSimd OWN(flash_simd) = {
    TEXT(FLASH_ISA),
    STRIP,
    PANEL,
    LANES,
    simd_scores,
    OWN(simd_hide),
    simd_cap,
    simd_update,
    simd_weighted_sum,
    OWN(simd_transpose),
    OWN(simd_split),
    OWN(simd_sums),
    OWN(simd_scale_rows),
    simd_exp2_all,
};
