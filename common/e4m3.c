/* SPDX-License-Identifier: MIT
 *
 * e4m3.c: bytes as numbers. Interface: e4m3.h.
 */
#include "e4m3.h"

#include <math.h>

#include "tensor.h"

#define LARGEST  448.0f
#define NAN_BYTE 0x7F

uint8_t e4m3_from_f32(float x)
{
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    const float size = fabsf(x);
    int exponent;
    if (isnan(x))
        return NAN_BYTE;
    if (size >= LARGEST)
        return sign | 0x7E;
    frexpf(size, &exponent); /* size < 2^exponent; 3 bits of fraction, and none below 2^-9 */
    exponent = size < 0x1p-6f ? -9 : exponent - 4;
    const int units = (int)rintf(ldexpf(size, -exponent)); /* 8 .. 16, or 0 .. 8 of 2^-9 */
    return (uint8_t)(sign | ((exponent + 9) * 8 + units)); /* 16 is 8 of the next exponent */
}

float f32_from_e4m3(uint8_t byte)
{
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    const float size = (byte & 0x7F) == NAN_BYTE ? NAN
                       : exponent == 0           ? ldexpf((float)fraction, -9)
                                                 : ldexpf((float)(8 + fraction), exponent - 10);
    return byte & 0x80 ? -size : size;
}

float e4m3_scale(float largest)
{
    int exponent;
    if (!(largest > 0.0f))
        return 1.0f;
    const float half = frexpf(largest, &exponent); /* half < 1; 448 = 0.875 * 2^9 */
    exponent -= half <= 0.875f ? 9 : 8;
    return ldexpf(1.0f, exponent < -100 ? -100 : exponent); /* bfloat16 ends at 2^-133 */
}

void tensor_e4m3(const Tensor *t, int64_t block, uint8_t *bytes, float *scales)
{
    const int64_t N = t->shape[1], H = t->shape[2], d = t->shape[3];
    const int64_t blocks = (N + block - 1) / block;
    float row[1024]; /* d is at most that */
#pragma omp parallel for collapse(3) private(row)
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < blocks; i++) {
                const int64_t first = i * block;
                const int64_t end = first + block < N ? first + block : N;
                float largest = 0.0f;
                for (int64_t n = first; n < end; n++) {
                    tensor_read_row(t, b, n, h, row);
                    for (int64_t x = 0; x < d; x++)
                        if (isfinite(row[x]) && fabsf(row[x]) > largest)
                            largest = fabsf(row[x]);
                }
                const float scale = e4m3_scale(largest);
                if (scales)
                    scales[(b * H + h) * blocks + i] = scale;
                for (int64_t n = first; n < end; n++) {
                    tensor_read_row(t, b, n, h, row);
                    for (int64_t x = 0; x < d; x++) {
                        const uint8_t byte =
                            isfinite(row[x]) ? e4m3_from_f32(row[x] / scale) : NAN_BYTE;
                        if (bytes)
                            bytes[((b * N + n) * H + h) * d + x] = byte;
                        row[x] = f32_from_e4m3(byte) * scale;
                    }
                    if (!bytes)
                        tensor_write_row(t, b, n, h, row);
                }
            }
}
