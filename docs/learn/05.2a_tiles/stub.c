/* SPDX-License-Identifier: MIT
 *
 * 05.2a: is a tile of queries and keys skipped, masked or full?
 */

/* Queries i0 .. i1-1, keys j0 .. j1-1; left, right: of the window, -1 = no limit. Returns 0, 1
 * or 2. */
int tile_kind(int i0, int i1, int j0, int j1, int left, int right)
{
    const int least = j0 - (i1 - 1), most = (j1 - 1) - i0; /* of key - query in the tile */
    /* YOUR CODE: 6 lines are enough */
    return 1;
    /* END OF YOUR CODE */
}
