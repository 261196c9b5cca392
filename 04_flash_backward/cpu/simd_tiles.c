/* SPDX-License-Identifier: MIT
 *
 * simd_tiles.c: what the byte model wants to know of v2_simd: a tile is a block of keys, whose
 * operands and sums stay in the L2 cache, with a block of queries.
 *
 * Interface: flash_backward_tiles_v2_simd (flash_backward.h).
 */
#include "backward_pack.h"

FlashTiles flash_backward_tiles_v2_simd(const AttnArgs *args)
{
    FlashTiles tiles;
    BackwardPlan plan;
    backward_make_plan(&plan, &args->shape, 1, NULL);
    tiles = flash_tiles_of(&args->shape, plan.queries, plan.keys);
    tiles.splits = plan.parts;
    return tiles;
}
