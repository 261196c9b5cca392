/* SPDX-License-Identifier: MIT
 *
 * tensor_sum.h: what a tensor core of Hopper adds up when it multiplies e4m3: a model, for a CPU.
 *
 * One wgmma step adds 32 products to C. Products are exact. Then all 33 numbers are shifted to the
 * exponent of the largest, and of each the bits below 2^-TENSOR_SUM_BITS of it fall off (towards
 * zero). What is left is added exactly. The sum, too, keeps TENSOR_SUM_BITS bits behind its first;
 * the others fall off (towards zero). The exponent of a product is the sum of its factors'
 * exponents; a product between 2 and 4 of it has a bit more.
 *
 * An H200 answers all of 20,000 sums so, bit by bit (tests/gpu/tensor_sum_h200.u32, recorded by
 * record_tensor_sum.cu there; tests/unit/test_e4m3.c compares).
 *
 * Interface:
 * - tensor_sum_number: a byte as an integer number of 2^-9 and its exponent.
 * - tensor_sum: C + sum_k A[k] B[k], 32 of each.
 */
#ifndef SIMT_TENSOR_SUM_H
#define SIMT_TENSOR_SUM_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define TENSOR_SUM_BITS 13

typedef struct TensorSumNumber {
    int fraction, exponent; /* fraction 2^(exponent - 3), |fraction| < 16; 0, -100: zero */
} TensorSumNumber;

static inline TensorSumNumber tensor_sum_number(uint8_t byte)
{
    const int e = byte >> 3 & 15, m = byte & 7;
    const int fraction = e ? 8 + m : m;
    const TensorSumNumber n = {byte & 0x80 ? -fraction : fraction,
                               fraction ? (e ? e : 1) - 7 : -100};
    return n;
}

static inline float tensor_sum(const TensorSumNumber *A, const TensorSumNumber *B, float C)
{
    int top = -1000;
    int64_t sum = 0;
    for (int k = 0; k < 32; k++) {
        const int e = A[k].exponent + B[k].exponent;
        if (A[k].fraction && B[k].fraction && e > top)
            top = e;
    }
    if (C != 0.0f && ilogbf(C) > top)
        top = ilogbf(C);
    if (top == -1000)
        return 0.0f;
    for (int k = 0; k < 32; k++) { /* fraction of the product: 6 bits behind the point */
        const int64_t product = (int64_t)A[k].fraction * B[k].fraction;
        const int left = TENSOR_SUM_BITS - 6 + A[k].exponent + B[k].exponent - top;
        if (product)
            sum += left >= 0    ? product * ((int64_t)1 << left)
                   : left > -32 ? product / ((int64_t)1 << -left)
                                : 0;
    }
    if (C != 0.0f)
        sum += (int64_t)ldexpf(C, TENSOR_SUM_BITS - top); /* towards zero */
    int over = 0;
    while (llabs(sum) >> over >= 2 << TENSOR_SUM_BITS)
        over++;
    return ldexpf((float)(sum / (1 << over)), over + top - TENSOR_SUM_BITS);
}

#endif
