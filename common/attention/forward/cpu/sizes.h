/* SPDX-License-Identifier: MIT
 *
 * sizes.h: the small arithmetic of tiles and buffers, for the CPU variants of stages 03 and 04.
 *
 * Interface:
 * - smaller, round_up, round_down.
 * - place_parts: several buffers one behind the other in one piece of memory.
 */
#ifndef FLASH_SIZES_H
#define FLASH_SIZES_H

#include <stdint.h>

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* To multiples of b, for a >= 0. */
static inline int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

static inline int64_t round_down(int64_t a, int64_t b)
{
    return a / b * b;
}

/* at[part]: where it starts, in floats, always at a multiple of 64 bytes; returns the end. */
static inline int64_t place_parts(const int64_t *size, int parts, int64_t *at)
{
    int64_t end = 0;
    for (int part = 0; part < parts; part++) {
        at[part] = end;
        end += round_up(size[part], 16);
    }
    return end;
}

#endif
