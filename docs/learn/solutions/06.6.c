/* SPDX-License-Identifier: MIT
 *
 * 06.6: the hops of a ring under a window.
 */

/* left, right: of the window, -1 = no limit */
void count_hops(int G, int n, int left, int right, int *up, int *down)
{
    *up = *down = G - 1;
    /* YOUR CODE: at most 8 lines */
    if (left >= 0 && (left + n - 1) / n < G - 1)
        *up = (left + n - 1) / n;
    if (right >= 0 && (right + n - 1) / n < G - 1)
        *down = (right + n - 1) / n;
    /* END OF YOUR CODE */
}
