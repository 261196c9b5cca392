/* SPDX-License-Identifier: MIT
 *
 * 03.3b: the two loops over tiles.
 */

void start_rows(int i, int rows);                  /* loads queries i .. i + rows - 1 */
void visit_tile(int i, int rows, int j, int cols); /* they meet keys j .. j + cols - 1 */
void finish_rows(int i, int rows);                 /* divides and stores them */

/* Nq queries in tiles of Br, Nk keys in tiles of Bc; the last tile of either may be smaller. */
void walk_tiles(int Nq, int Nk, int Br, int Bc)
{
    /* YOUR CODE: 12 lines are enough */
    /* END OF YOUR CODE */
}
