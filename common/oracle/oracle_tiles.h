/* SPDX-License-Identifier: MIT
 *
 * oracle_tiles.h: for cases whose heads are too long to be copied whole: samples of rows and keys
 * against tiles of the other side, which are converted once for all samples. Inside of the oracle.
 *
 * Interface:
 * - OracleTile: 256 tokens of K and V (for rows), or of Q and dO (for keys).
 * - oracle_tiles_walk: all tiles past all samples, in order, on several threads.
 * - oracle_ranges, oracle_tile_seen: what a sample sees of a tile.
 * - oracle_given_rows, oracle_given_keys: what is done with them.
 */
#ifndef ATTN_ORACLE_TILES_H
#define ATTN_ORACLE_TILES_H

#include "oracle/oracle_core.h"

#define ORACLE_TILE 256 /* tokens */

/* Of up to ORACLE_TILE tokens in a row. (attn_range and attn_tile_class are among what is judged.)
 */
typedef struct OracleRange {
    int64_t sequence, low, high; /* sequence -1: of several, so nothing is known */
} OracleRange;

typedef struct OracleTile {
    OracleMatrix X, Y;   /* [count][d]: K and V, or Q and dO */
    OracleMatrix Xt, Yt; /* [d][count] */
    int64_t first, count;
    int wanted;            /* some sample sees something of it */
    OracleRowState *state; /* [count] of queries, or NULL: tiles of keys */
} OracleTile;

/* One walk. visit is called for every sample and every tile that any sample sees; for one sample in
 * the order of tiles, and never twice at once. prepare (or NULL) completes a tile after loading. */
typedef struct OracleWalk {
    const OraclePlan *p;
    const Tensor *X, *Y;
    int64_t b, head; /* of X and Y */
    int of_keys;     /* 1: tiles of keys past sampled queries, 0: the other way round */
    const OracleSample *sample;
    int64_t count; /* samples: (heads of the group) times those of `sample`, or once those */
    void *all;     /* handed to prepare and visit */
    void (*prepare)(void *all, OracleTile *tile);
    void (*visit)(void *all, int64_t n, const OracleTile *tile, OracleScratch *m);
} OracleWalk;

/* 0, or -1 when memory is short. */
int oracle_tiles_walk(const OracleWalk *w, int threads);
/* How many tokens of the tile query (of_keys) or key `at` sees; their places in the tile into index
 * [ORACLE_TILE], ascending, unless that is NULL. */
int64_t oracle_tile_seen(const OraclePlan *p, const OracleTile *tile, int of_keys, int64_t at,
                         int64_t *index);
/* [(N + 255) / 256] from the N positions; NULL when memory is short. */
OracleRange *oracle_ranges(const AttnPosition *at, int64_t N);

/* dQ of the sampled rows of group (b, kv_head), from the O and lse in p->args. 0, or -1. */
int oracle_given_rows(Oracle *o, const OraclePlan *p, int64_t b, int64_t kv_head, int threads);
/* dK and dV of the sampled keys of o's group number `slot`, from the O and lse in p->args. */
int oracle_given_keys(Oracle *o, const OraclePlan *p, int64_t slot, int threads);
/* Token n of head h: value [d], and the magnitudes, size [d]. */
void oracle_read_row(const Tensor *t, int64_t b, int64_t n, int64_t h, double *value, double *size);
/* lse, delta, dO_O and dO_floor of one row from the O and lse in p->args; dO [d]. */
OracleRowState oracle_given_row(const OraclePlan *p, int64_t b, int64_t head, int64_t i,
                                const double *dO);
/* g_ij: size = sum_x |q||k|, terms summed. */
double oracle_given_error(const OraclePlan *p, double size, double lse, double terms);

#endif
