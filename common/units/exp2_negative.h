/* SPDX-License-Identifier: MIT
 *
 * exp2_negative.h: powers of 2 in vectors; v4_exp2 of stage 03 is the rung that brings them, in
 * the same words.
 *
 * A softmax asks for less than e^x of any x. Its arguments are s - m <= 0, and
 *
 *     e^(s - m) = 2^(s log2(e) - m log2(e))
 *
 * so log2(e) goes into the factor that multiplies Q anyway. 2^x then takes three steps: x = k + r
 * with k an integer and |r| <= 1/2, a polynomial of degree 6 for 2^r, and k into the exponent bits.
 *
 * Interface: exp2_negative.
 * For files that are compiled once for each instruction set (units/vector.h).
 */
#ifndef UNITS_EXP2_NEGATIVE_H
#define UNITS_EXP2_NEGATIVE_H

#include "units/vector.h"

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

#endif
