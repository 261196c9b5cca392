/* SPDX-License-Identifier: MIT
 *
 * map_work.h: seconds of a block of equal ranks, for cost_map.c.
 *
 * Interface:
 * - MapCase: one case of the map and one pass of it, with what map_count_rounds finds.
 * - MapWork, MapAt, map_work_of: a pair of blocks, in a ring.
 * - map_call_s, map_edge_bytes: one call; passes over memory before the first and after the last.
 */
#ifndef RING_MAP_WORK_H
#define RING_MAP_WORK_H

#include "planner/cost.h"

/* Of a block, as factors to its operations at the rate of the whole GPU (rounds.c). Forward `even`
 * may be less than 1: a half's own passes over memory are counted beside it, and others hide
 * them. */
typedef struct MapRounds {
    double part[2]; /* of a half, or of all of it: with the GPU to itself */
    double even[2]; /* two streams: what a half takes of all places' time */
    double both;    /* two streams: both halves, until the last place is done */
} MapRounds;

typedef struct MapCase {
    const RingMapCase *c;
    const RingRates *r;
    int backward, queries; /* queries: they travel, not keys */
    double G, M, g, n;
    int streams;         /* halves share the GPU: of sums, or forward of heads */
    double q, kv;        /* bytes of a rank's Q, or K, in the dtype */
    MapRounds rounds[2]; /* of a remote block, of the own block */
} MapCase;

/* Seconds of a pair of blocks: in two halves if its sums travel or its heads have two streams, else
 * one. With two streams also those of all places, and backward those of passes over memory which
 * both halves come after, or before. */
typedef struct MapWork {
    double part[2], even[2];
    double before, after;
} MapWork;

/* Where in a rank's pass a block stands. */
typedef struct MapAt {
    int own, first, last;
} MapAt;

/* One call of a block kernel: a fixed part, the products at the kernel's rate, and bytes of memory
 * beside them. */
double map_call_s(const MapCase *m, double pairs, double partial_rows, double rounds, double bytes);
/* Bytes before a rank's first call, or (last) behind its last one: see schedule.c. */
double map_edge_bytes(const MapCase *m, int last);
MapWork map_work_of(const MapCase *m, MapAt at);
/* How the blocks of threads fill a GPU. Ulysses: one block, of all tokens. 0, or -1: no memory. */
int map_count_rounds(MapCase *m, int ulysses);

#endif
