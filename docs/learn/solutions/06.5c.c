/* SPDX-License-Identifier: MIT
 *
 * 06.5c: keys and their sums turn the other way and end at home.
 */
#include "ring_tour.h"

void ring_backward(RingTour *tour, int G)
{
    for (int t = 0; t < G; t++) {
        for (int r = 0; r < G; r++)
            add_pair(tour, r, (r + 1 + t) % G);
        if (t < G - 1) {
            pass_keys(tour, -1);
            pass_sums(tour, -1);
        }
    }
}
