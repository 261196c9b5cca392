/* SPDX-License-Identifier: MIT
 *
 * ring_world.h: ranks that play in one process, for step 06.2a.
 *
 * Interface:
 * - RingPlayer: what one rank has; K and V are the block that is here now.
 * - RingWorld: all of them. pass_on: every block goes to the next rank.
 */
#ifndef LEARN_RING_WORLD_H
#define LEARN_RING_WORLD_H

typedef struct RingPlayer {
    const float *Q, *K, *V; /* [n][d] */
    float *O, *lse;         /* [n][d], [n] */
} RingPlayer;

typedef struct RingWorld {
    RingPlayer *rank; /* [G] */
} RingWorld;

/* Every rank sends the K and V that are here to the next rank and gets those of the rank before. */
void pass_on(RingWorld *world);

#endif
