/* SPDX-License-Identifier: MIT
 *
 * tile_sizes.c: tile sizes from the size of fast memory, on the CPU and on the GPU.
 *
 * The paper divides a fast memory of M elements among four tiles of equal size, Q_i, K_j, V_j and
 * O_i, hence M / 4d rows each. Br is capped at d, so that the scores Br x Bc take no more than
 * another M / 4. So M is the order of what is needed, not a budget: with S it is 1.25 M, and the
 * vectors m and l come on top (flash_fast_elements has the exact number).
 *
 * Interface:
 * - flash_tiles, flash_tiles_of, flash_fast_elements, flash_set_sram, flash_sram.
 * - flash_sees_nothing (tiles.h).
 * - flash_set_smem_limit, flash_smem_limit, flash_smem_refuses, flash_smem_refused.
 */
#include "attn_tiles.h"
#include "flash_forward.h"
#include "tiles.h"

static int64_t sram_elements = FLASH_SRAM_DEFAULT;
static int64_t smem_limit, smem_refused; /* bytes, 0 = none */

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

FlashTiles flash_tiles_of(const AttnShape *shape, int64_t Br, int64_t Bc)
{
    FlashTiles tiles = {Br, Bc, ceil_div(shape->Nq, Br), ceil_div(shape->Nk, Bc), 1};
    return tiles;
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

int flash_sees_nothing(const AttnArgs *args, int64_t i, int64_t rows, int64_t j, int64_t cols)
{
    return attn_tile_class(args->rule, attn_range(args->positions_q, i, rows),
                           attn_range(args->positions_k, j, cols)) == ATTN_TILE_SKIP;
}

void flash_set_smem_limit(int64_t bytes)
{
    smem_limit = bytes;
    smem_refused = 0;
}

int64_t flash_smem_limit(void)
{
    return smem_limit;
}

int flash_smem_refuses(int64_t bytes)
{
    if (smem_limit == 0 || bytes <= smem_limit)
        return 0;
    smem_refused = bytes;
    return 1;
}

int64_t flash_smem_refused(void)
{
    return smem_refused;
}
