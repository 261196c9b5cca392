/* SPDX-License-Identifier: MIT
 *
 * 05.5: what a rolling cache holds.
 */

/* position [w + 1]: the token that each slot holds after token t, or -1 */
void slot_positions(int t, int w, int *position)
{
    for (int s = 0; s <= w; s++) {
        /* YOUR CODE: at most 6 lines */
        const int slots = w + 1, back = ((t - s) % slots + slots) % slots;
        position[s] = t - back < 0 ? -1 : t - back;
        /* END OF YOUR CODE */
    }
}
