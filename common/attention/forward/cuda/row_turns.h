/* SPDX-License-Identifier: MIT
 *
 * row_turns.h: how many heads share a section, and how many blocks stay, under a causal mask with
 * short sequences.
 *
 * Blocks that stay take row tiles in turns, there and back, so that who had the longest in one turn
 * has the shortest in the next (tile_of_turn). With the longest of all heads first, every turn goes
 * through K and V of all heads: 16k tokens with 2048 channels are 134 MB of them, the L2 holds 50,
 * so each turn fetches them from memory again. With a section of heads as large as a turn or two,
 * they are fetched once. A turn is full if the section's tiles are a multiple of the blocks: then
 * blocks that nothing is left for do no harm.
 *
 * Interface: RowTurns, row_turns.
 */
#ifndef FLASH_FORWARD_ROW_TURNS_H
#define FLASH_FORWARD_ROW_TURNS_H

typedef struct RowTurns {
    int section, blocks;
} RowTurns;

/* tiles of each of `bundles` heads; of `fit` of them K and V fit the L2; places: blocks that the
 * GPU holds. The smallest section that leaves no place in a hundred empty, or the fullest. */
static inline RowTurns row_turns(int tiles, int bundles, int fit, int places)
{
    const int most = fit < 1 ? 1 : fit < bundles ? fit : bundles;
    RowTurns best = {1, 1};
    double full = 0.0;
    for (int section = 1; section <= most && full < 0.99; section++) {
        const int all = section * tiles, turns = (all + places - 1) / places;
        const double share = (double)all / turns / places;
        if (share > full) {
            full = share;
            best.section = section;
            best.blocks = (all + turns - 1) / turns;
        }
    }
    return best;
}

#endif
