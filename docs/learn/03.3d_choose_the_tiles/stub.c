/* SPDX-License-Identifier: MIT
 *
 * 03.3d: tiles for a given fast memory.
 */

/* Tiles of Br queries and Bc keys (at least 8, or N if that is smaller) with which FlashAttention-2
 * loads the fewest numbers, in a fast memory of M numbers. N queries and keys of d channels. */
void choose_tiles(long M, long N, long d, long *Br, long *Bc)
{
    *Br = 1;
    *Bc = N;
    /* YOUR CODE: 8 lines are enough */
    /* END OF YOUR CODE */
}
