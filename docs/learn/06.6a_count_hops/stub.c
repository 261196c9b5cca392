/* SPDX-License-Identifier: MIT
 *
 * 06.6a: the hops of a ring under a window.
 */

/* left, right: of the window, -1 = no limit */
void count_hops(int G, int n, int left, int right, int *up, int *down)
{
    *up = *down = G - 1;
    /* YOUR CODE: 8 lines are enough */
    /* END OF YOUR CODE */
}
