/* SPDX-License-Identifier: MIT
 *
 * tile_sizes.c: tile sizes from the size of fast memory.
 *
 * The paper divides a fast memory of M elements among four tiles of equal size, Q_i, K_j, V_j and
 * O_i, hence M / 4d rows each. Br is capped at d, so that the scores Br x Bc take no more than
 * another M / 4. So M is the order of what is needed, not a budget: with S it is up to 1.25 M, and
 * the vectors m and l come on top (flash_fast_elements has the exact number).
 *
 * Interface:
 * - flash_tiles, flash_fast_elements, flash_set_sram, flash_sram.
 */
#include "tiles.h"

static int64_t sram_elements = FLASH_SRAM_DEFAULT;

void flash_set_sram(int64_t elements)
{
    sram_elements = elements;
}

int64_t flash_sram(void)
{
    return sram_elements;
}

/* Ceilings: a division that rounds down loses the last rows, or gives tiles of no row at all. */
static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

FlashTiles flash_tiles(const AttnShape *shape, int64_t M)
{
    int64_t Bc = ceil_div(M, 4 * shape->d);
    int64_t Br = Bc < shape->d ? Bc : shape->d;
    Bc = Bc < shape->Nk ? Bc : shape->Nk;
    Br = Br < shape->Nq ? Br : shape->Nq;
    return flash_tiles_of(shape, Br, Bc);
}

int64_t flash_fast_elements(const AttnShape *shape, int64_t M)
{
    return fast_memory_floats(flash_tiles(shape, M), shape->d);
}
