/* SPDX-License-Identifier: MIT
 *
 * test_row_turns.c: blocks that stay, under a causal mask with short sequences (row_turns.h): every
 * row tile has its turn once, no block has much more to do than another, and a section, whose K
 * and V fit the L2, is over in two turns.
 */
#include "attention/forward/cuda/row_turns.h"

#include "unit.h"

#define MOST   8192
#define PLACES 132

/* As tile_of_turn (hopper_16bit.cuh): the place in the order of tile number `turn` of a block, then
 * its head and its number, of which the last row tile is the longest. */
static int place_of(int turn, int block, int blocks)
{
    return turn * blocks + (turn & 1 ? blocks - 1 - block : block);
}

typedef struct Load {
    double most, mean; /* of a block, in row tiles of full length */
} Load;

static Load play(RowTurns t, int tiles, int bundles)
{
    static int seen[MOST];
    Load load = {0};
    const int all = tiles * bundles;
    int count = 0;
    assert_true(all <= MOST && t.blocks >= 1 && t.section >= 1);
    memset(seen, 0, sizeof seen);
    for (int block = 0; block < t.blocks; block++) {
        double mine = 0;
        for (int turn = 0; place_of(turn, block, t.blocks) < all; turn++) {
            const int index = place_of(turn, block, t.blocks);
            const int first = index / (tiles * t.section) * t.section, rest = index - first * tiles;
            const int here = bundles - first < t.section ? bundles - first : t.section;
            const int head = first + rest % here, tile = tiles - 1 - rest / here;
            assert_true(head >= 0 && head < bundles && tile >= 0 && tile < tiles);
            assert_int_equal(0, seen[head * tiles + tile]++);
            mine += (tile + 1.0) / tiles;
            count++;
        }
        load.mean += mine / PLACES;
        load.most = mine > load.most ? mine : load.most;
    }
    assert_int_equal(all, count);
    return load;
}

/* The shapes of the rows: 16k tokens, 2048 channels; row tiles of 256, 192 and 128 rows. */
TEST(test_shapes_of_the_rows)
{
    const struct {
        int tiles, bundles, fit;
    } cases[] = {{4, 512, 128},  {6, 256, 64},  {8, 128, 32},  /* N = 1024, d = 64, 128, 256 */
                 {8, 256, 64},   {11, 128, 32}, {16, 64, 16},  /* N = 2048 */
                 {2, 1024, 256}, {3, 512, 128}, {4, 256, 64}}; /* N = 512 */
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const RowTurns t = row_turns(cases[n].tiles, cases[n].bundles, cases[n].fit, PLACES);
        const Load load = play(t, cases[n].tiles, cases[n].bundles);
        print_message("# %d row tiles, %d heads: sections of %d, %d blocks, %.3f of the mean\n",
                      cases[n].tiles, cases[n].bundles, t.section, t.blocks, load.most / load.mean);
        assert_true(t.section <= cases[n].fit && t.blocks <= PLACES);
        assert_true(t.blocks > 0.94 * PLACES && load.most < 1.2 * load.mean);
        /* A section is over in two turns at most: then its K and V are needed no more. */
        assert_true(t.section * cases[n].tiles <= 2 * t.blocks);
    }
}

TEST(test_any_shape)
{
    for (int tiles = 1; tiles <= 40; tiles++)
        for (int bundles = 1; bundles <= 200; bundles += 1 + bundles / 3)
            for (int fit = 0; fit <= 64; fit = 2 * fit + 1) {
                const RowTurns t = row_turns(tiles, bundles, fit, PLACES);
                (void)play(t, tiles, bundles);
                assert_true(t.section <= (fit < 1 ? 1 : fit) && t.section <= bundles);
                assert_true(t.blocks <= PLACES);
            }
}
