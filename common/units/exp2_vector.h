/* SPDX-License-Identifier: MIT
 *
 * exp2_vector.h: powers of 2 in vectors, and the softmax of several rows by them; v4_exp2 of stage
 * 03 is the rung that brings them, in the same words.
 *
 * A softmax asks for less than e^x of any x. Its arguments are s - m <= 0, and
 *
 *     e^(s - m) = 2^(s log2(e) - m log2(e))
 *
 * so log2(e) goes into the factor that multiplies Q anyway. 2^x then takes three steps: x = k + r
 * with k an integer and |r| <= 1/2, a polynomial of degree 6 for 2^r, and k into the exponent bits.
 *
 * Interface:
 * - exp2_negative, largest_lane, sum_of_lanes. LOG2E, LN2.
 * - update_rows: the online update of at most ROOM rows.
 * For files that are compiled once for each instruction set (units/vector.h).
 */
#ifndef UNITS_EXP2_VECTOR_H
#define UNITS_EXP2_VECTOR_H

#include <math.h>
#include <string.h>

#include "units/vector.h"

#define ROOM  16 /* whole vectors */
#define LOG2E 0x1.715476p+0f
#define LN2   0x1.62e43p-1f

/* 2^x for x <= 0, NaN for NaN; from -126.5 down 0. The rounder has 127 added: what it leaves in the
 * low bits is the exponent field of 2^k, and 0, the field of the number 0, for k = -127. */
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

static inline float largest_lane(Vector v)
{
    float most = v[0];
    for (int t = 1; t < LANES; t++)
        most = v[t] > most ? v[t] : most;
    return most;
}

static inline float sum_of_lanes(Vector v)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int t = 0; t < half; t++)
            v[t] += v[t + half];
    return v[0];
}

/* The online update of `rows` rows (at most ROOM): S [rows][ld], cols of it (pairs of vectors),
 * becomes P relative to the new maxima m [rows], l [rows] follows. alpha: what the old O is worth
 * now. Two vectors at a time, so that one does not wait for the other. */
static inline void update_rows(float *S, const int64_t ld, const int rows, int64_t cols, float *m,
                               float *l, float alpha[ROOM])
{
    float shift[ROOM];
    for (int row = 0; row < rows; row++) {
        const float *S_r = S + row * ld;
        Vector a = load(S_r), b = load(S_r + LANES);
        for (int64_t c = 2 * LANES; c < cols; c += 2 * LANES) {
            a = larger(a, load(S_r + c));
            b = larger(b, load(S_r + c + LANES));
        }
        const float tile_max = largest_lane(larger(a, b));
        const float m_new = m[row] > tile_max ? m[row] : tile_max;
        shift[row] = m_new == -INFINITY ? 0.0f : m_new; /* nothing seen: not -inf - -inf */
        alpha[row] = m[row] - shift[row];
        m[row] = m_new;
    }
    for (int row = 0; row < rows; row += LANES) { /* alpha of several rows at once */
        Vector v;
        memcpy(&v, alpha + row, sizeof v);
        v = exp2_negative(v);
        memcpy(alpha + row, &v, sizeof v);
    }
    for (int row = 0; row < rows; row++) {
        float *P_r = S + row * ld;
        Vector a = {0}, b = {0};
        for (int64_t c = 0; c < cols; c += 2 * LANES) {
            const Vector p0 = exp2_negative(load(P_r + c) - shift[row]);
            const Vector p1 = exp2_negative(load(P_r + c + LANES) - shift[row]);
            store(P_r + c, p0);
            store(P_r + c + LANES, p1);
            a += p0;
            b += p1;
        }
        l[row] = alpha[row] * l[row] + sum_of_lanes(a + b);
    }
}

#endif
