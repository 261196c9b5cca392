/* SPDX-License-Identifier: MIT
 *
 * ring_tour.h: the backward pass of a ring whose ranks play in one process, for step 06.5c.
 *
 * Interface:
 * - RingTour: all ranks; opaque. At each rank lie a block of keys (K and V) and two sums (dK, dV).
 * - add_pair: one rank computes with the keys that are here.
 * - pass_keys, pass_sums: every rank sends what lies there to rank + way and gets the same from
 *   rank - way; way is +1 or -1, and the ranks are a ring.
 */
#ifndef LEARN_RING_TOUR_H
#define LEARN_RING_TOUR_H

typedef struct RingTour RingTour;

/* Adds this pair of blocks to the rank's dQ, and to the sums dK and dV that lie there. owner: whose
 * keys these are; the causal mask needs it. */
void add_pair(RingTour *tour, int rank, int owner);
void pass_keys(RingTour *tour, int way);
void pass_sums(RingTour *tour, int way);

#endif
