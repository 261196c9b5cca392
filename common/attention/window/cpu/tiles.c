/* SPDX-License-Identifier: MIT
 *
 * tiles.c: how many tiles a window leaves.
 *
 * The score matrix of one head, cut into tiles: with a causal window they lie in a band.
 *
 *     #         masked: some pairs are visible, each is asked for
 *     + #       clean: all are visible, nobody asks
 *     # + #     skipped: not even looked at
 *       # + #
 *         # + #
 *
 * The band has about N / Br rows of (Br + w) / Bc tiles, so what is visited grows with N, and what
 * is skipped with N^2. The count is made in the walk that weight_tiles.c makes, so that a mistake
 * in the walk shows as a wrong number; the formula that a test compares it with walks nothing.
 *
 * Interface: window_count_tiles (window_library.h).
 */
#include "sequences.h"
#include "window_walk.h"

/* Adds the tiles of one head of one sequence, `heads` times. */
static void count_part(const AttnArgs *args, int64_t heads, WindowTiles *tiles)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, Br = tiles->Br, Bc = tiles->Bc;
    const int64_t Tr = (Nq + Br - 1) / Br, Tc = (Nk + Bc - 1) / Bc;
    int64_t masked = 0, clean = 0;
    for (int64_t i = 0; i < Nq; i += Br) {
        const int64_t rows = Nq - i < Br ? Nq - i : Br;
        const IndexSpan span = span_of_keys(args, i, rows);
        for (int64_t j = span.first / Bc * Bc; j < span.last; j += Bc) {
            const AttnTile kind = window_tile(args, i, rows, j, Nk - j < Bc ? Nk - j : Bc);
            masked += kind == ATTN_TILE_MASKED;
            clean += kind == ATTN_TILE_CLEAN;
        }
    }
    tiles->masked += heads * masked;
    tiles->clean += heads * clean;
    tiles->skipped += heads * (Tr * Tc - masked - clean);
}

WindowTiles window_count_tiles(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    WindowTiles tiles = {Br, Bc, 0, 0, 0};
    WindowPart part = {0};
    while (window_next_part(args, &part))
        count_part(&part.args, args->shape.B * args->shape.H, &tiles);
    return tiles;
}
