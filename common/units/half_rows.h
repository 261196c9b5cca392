/* SPDX-License-Identifier: MIT
 *
 * half_rows.h: rows of a tensor that may hold 16 bits, as float32 and back.
 *
 * Storing rounds to nearest, ties to even, as a GPU does. Who keeps a sum in such a tensor rounds
 * it once for each row that it stores.
 *
 * Interface:
 * - load_row, store_row. dtype: 1, 2 or 4, which is F32, F16 or BF16 of problem.h.
 */
#ifndef UNITS_HALF_ROWS_H
#define UNITS_HALF_ROWS_H

#include <stdint.h>
#include <string.h>

uint16_t f16_from_f32(float x);
float f32_from_f16(uint16_t bits);
uint16_t bf16_from_f32(float x);
float f32_from_bf16(uint16_t bits);

/* The next `d` elements from `at` on. */
static inline void load_row(const void *from, int dtype, int64_t at, int d, float *row)
{
    const uint16_t *bits = (const uint16_t *)from + at;
    if (dtype == 1) /* F32 */
        memcpy(row, (const float *)from + at, (size_t)d * sizeof *row);
    for (int x = 0; dtype == 2 && x < d; x++) /* F16 */
        row[x] = f32_from_f16(bits[x]);
    for (int x = 0; dtype == 4 && x < d; x++) /* BF16 */
        row[x] = f32_from_bf16(bits[x]);
}

/* The way back. */
static inline void store_row(void *to, int dtype, int64_t at, int d, const float *row)
{
    uint16_t *bits = (uint16_t *)to + at;
    if (dtype == 1)
        memcpy((float *)to + at, row, (size_t)d * sizeof *row);
    for (int x = 0; dtype == 2 && x < d; x++)
        bits[x] = f16_from_f32(row[x]);
    for (int x = 0; dtype == 4 && x < d; x++)
        bits[x] = bf16_from_f32(row[x]);
}

#endif
