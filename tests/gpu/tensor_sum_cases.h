/* SPDX-License-Identifier: MIT
 *
 * tensor_sum_cases.h: sums that a tensor core is asked for and a model answers, from their number
 * alone: 32 products of e4m3 and what they are added to. Eight kinds in turn: numbers of one size,
 * of all sizes, with and without C, sums that cancel, one large number among small ones, a few
 * products only, subnormal ones, and what P V is: numbers of one sign and a large C.
 *
 * Interface:
 * - TENSOR_SUM_CASES. tensor_sum_case: A, B [32] bytes and C of one case.
 */
#ifndef TENSOR_SUM_CASES_H
#define TENSOR_SUM_CASES_H

#include <math.h>
#include <stdint.h>

#define TENSOR_SUM_CASES 20000

static inline uint32_t tensor_sum_draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)(z >> 32);
}

/* A byte whose field of exponent is first ... first + count - 1; never the NaN. */
static inline uint8_t tensor_sum_byte(uint64_t *state, uint32_t first, uint32_t count)
{
    const uint32_t word = tensor_sum_draw(state);
    const uint8_t byte = (uint8_t)((first + (word >> 8) % count) << 3 | (word & 0x87));
    return (byte & 0x7F) == 0x7F ? byte - 1 : byte;
}

/* A float between 2^low and 2^(low + count), all bits of its fraction in use, of any sign. */
static inline float tensor_sum_start(uint64_t *state, int low, uint32_t count)
{
    const int exponent = low + (int)(tensor_sum_draw(state) % count);
    const float size = ldexpf(1.0f + (float)(tensor_sum_draw(state) >> 9) * 0x1p-23f, exponent);
    return tensor_sum_draw(state) & 1 ? -size : size;
}

static inline void tensor_sum_case(int number, uint8_t *A, uint8_t *B, float *C)
{
    uint64_t state = (uint64_t)number * UINT64_C(0xD6E8FEB86659FD93);
    const int kind = number % 8;
    const uint32_t few = 1 + tensor_sum_draw(&state) % 4;
    *C = 0.0f;
    for (int k = 0; k < 32; k++) {
        const uint32_t first = kind == 0 || kind == 3 || kind == 7 ? 5 : 0;
        const uint32_t count = kind == 6 ? 2 : first ? 5 : 16;
        A[k] = tensor_sum_byte(&state, first, count);
        B[k] = tensor_sum_byte(&state, first, count);
        if (kind == 3 && k % 2) {
            A[k] = A[k - 1];
            B[k] = B[k - 1] ^ (tensor_sum_draw(&state) % 4 ? 0x80 : 0x81);
        }
        if (kind == 4)
            A[k] = k == (int)few ? 0x7E : (uint8_t)((A[k] & 7) | (2 + few) << 3);
        if (kind == 4)
            B[k] &= 0x47;
        if (kind == 5 && (uint32_t)k % 8 >= few)
            A[k] = 0;
        if (kind == 7)
            A[k] &= 0x7F, B[k] &= 0x7F;
    }
    if (kind == 0 || kind == 3)
        *C = tensor_sum_start(&state, -6, 12);
    if (kind == 2 || kind == 5)
        *C = tensor_sum_start(&state, -20, 40);
    if (kind == 6)
        *C = tensor_sum_start(&state, -22, 12);
    if (kind == 7)
        *C = fabsf(tensor_sum_start(&state, 4, 10));
}

#endif
