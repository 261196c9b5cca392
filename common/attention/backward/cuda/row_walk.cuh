/* SPDX-License-Identifier: MIT
 *
 * row_walk.cuh: which tiles of queries a block of keys visits, and which pairs of a tile are seen.
 *
 * A block owns Bc keys and walks over tiles of Br queries: of all query heads of the group, so that
 * dK and dV, sums over the group, stay in the block. Positions come in segments in device memory,
 * and to find one is a chain of loads that wait for each other. So a small kernel in front notes
 * once, for all heads,
 *
 *     rows [Tr], keys [Tc]   smallest and largest position of each tile of queries and of keys
 *     segments [Tc]          the segment in which all keys of a tile stand, or -1
 *     runs [segments][Tr*Br] first and last key of a segment that a query sees
 *     looks [Tc]             the walk of a tile of keys: where it begins, where it ends, its first
 *                            two words (below)
 *
 * A warp classifies 32 tiles of queries at a time, one a lane, and a ballot turns the answers into
 * two words: bit n says "visit tile n" and "tile n needs a mask". The kernel in front does so for
 * each tile of keys, over all queries. So a walk starts with one load at the first tile that it
 * visits and ends behind the last: a block that looked for its tiles itself would ask about all N
 * queries, which under a window takes longer than to work on one of the few tiles it finds. Walks
 * of more than 32 tiles ask on, each warp for itself and with the same answer, so nobody has to
 * wait for it. Positions in segments (a ring's zigzag) cost no more than one run of them.
 *
 * In a masked tile the runs of its queries say which pairs are seen, and are loaded with the tile.
 * Where they do not (a mask array, a tile of keys that a border of segments cuts in two, very many
 * segments) a word of 32 bits says for each query which of 32 keys it sees.
 *
 * Interface:
 * - WalkTables, note_positions, note_look: what the kernel in front notes. RUN_SEGMENTS.
 * - RowTile, RowWalk, start_walk, next_tile: the walk. tile_before: whose turn is before ours.
 * - make_pair_words: the mask of a tile without runs.
 */
#ifndef FLASH_BACKWARD_ROW_WALK_CUH
#define FLASH_BACKWARD_ROW_WALK_CUH

#include "attention/forward/cuda/row_mask.cuh"
#include "attn_pairs.h"

/* Segments of keys that have runs: a zigzag shard has 2, and of several sequences 4 of each. */
#define RUN_SEGMENTS 8

struct WalkTables {
    AttnRange *rows, *keys;
    int *segments;
    int2 *runs;
    int4 *looks; /* first tile of queries, one behind the last, visit and masked from the first */
    int Tr, Tc;
};

/* A tile of queries: head g of the group, rows i * Br ...; i = -1: there is none left. */
struct RowTile {
    int g, i;
    bool masked;
};

struct RowWalk {
    int g, first;           /* the words are about tiles first .. first + 31 of head g */
    uint32_t visit, masked; /* tiles still to come; of these: with a mask */
};

/* The segment in which keys j0 .. j0 + count - 1 stand, or -1. */
static __device__ __forceinline__ int segment_of_keys(const AttnPositions &map, int j0, int count)
{
#pragma unroll 1
    for (int s = 0; s < map.count; s++)
        if (j0 >= map.segments[s].first &&
            j0 + count <= map.segments[s].first + map.segments[s].length)
            return s;
    return -1;
}

/* Entry `item` of each table; call for items 0 .. max(Tr * Br, Tc) - 1. */
template <int Br, int Bc>
static __device__ __forceinline__ void note_positions(const WalkTables &tables, const AttnArgs &a,
                                                      int item)
{
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
    if (item < tables.Tr)
        tables.rows[item] = attn_range(a.positions_q, item * Br, min(Br, Nq - item * Br));
    if (item < tables.Tc) {
        const int count = min(Bc, Nk - item * Bc);
        const int s = a.mask ? -1 : segment_of_keys(a.positions_k, item * Bc, count);
        tables.keys[item] = attn_range(a.positions_k, item * Bc, count);
        tables.segments[item] = s < RUN_SEGMENTS ? s : -1;
    }
    if (item < tables.Tr * Br) {
        AttnPosition q = {-1, 0};
        if (item < Nq)
            q = attn_position(a.positions_q, item);
#pragma unroll 1
        for (int s = 0; s < min(RUN_SEGMENTS, (int)a.positions_k.count); s++)
            tables.runs[s * (tables.Tr * Br) + item] =
                item < Nq ? plan::seen_run(a.rule, a.positions_k.segments[s], q)
                          : make_int2(0, -1); /* a row past the end sees nothing */
    }
}

/* Every tile of keys j has some pairs to hide: it is cut off, or its scores are not plain. */
template <int Bc> static __device__ __forceinline__ bool all_masked(const AttnArgs &a, int j)
{
    return (int)a.shape.Nk - j * Bc < Bc || !scores_are_plain(a);
}

/* looks[j], by a warp. rows and keys of the tables are not written yet. */
template <int Br, int Bc>
static __device__ __forceinline__ void note_look(const WalkTables &tables, const AttnArgs &a, int j)
{
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, lane = threadIdx.x % 32;
    const AttnRange keys = attn_range(a.positions_k, j * Bc, min(Bc, Nk - j * Bc));
    uint32_t visit = 0, masked = 0;
    int first = 0, end = 0; /* nothing is visited as long as end is 0 */
#pragma unroll 1
    for (int i0 = 0; i0 < tables.Tr; i0 += 32) {
        const int i = i0 + lane;
        AttnTile kind = ATTN_TILE_SKIP;
        if (i < tables.Tr)
            kind = attn_tile_class(a.rule, attn_range(a.positions_q, i * Br, min(Br, Nq - i * Br)),
                                   keys);
        const uint32_t visit_i0 = __ballot_sync(0xffffffffu, kind != ATTN_TILE_SKIP);
        const uint32_t masked_i0 = __ballot_sync(0xffffffffu, kind == ATTN_TILE_MASKED);
        if (!visit_i0)
            continue;
        if (end == 0) {
            first = i0 + __ffs(visit_i0) - 1;
            visit = visit_i0 >> (first - i0);
            masked = masked_i0 >> (first - i0);
        } else if (i0 - first < 32) { /* the words begin in the 32 tiles before these */
            visit |= visit_i0 << (i0 - first);
            masked |= masked_i0 << (i0 - first);
        }
        end = i0 + 32 - __clz((int)visit_i0);
    }
    if (lane == 0)
        tables.looks[j] =
            make_int4(first, end, (int)visit, (int)(all_masked<Bc>(a, j) ? visit : masked));
}

/* Tiles first .. first + 31 of queries against tile j of keys. */
template <int Bc>
static __device__ __forceinline__ void ask_32_tiles(RowWalk &walk, const WalkTables &tables,
                                                    const AttnArgs &a, int j)
{
    const int i = walk.first + threadIdx.x % 32;
    AttnTile kind = ATTN_TILE_SKIP;
    if (i < tables.Tr)
        kind = attn_tile_class(a.rule, tables.rows[i], tables.keys[j]);
    walk.visit = __ballot_sync(0xffffffffu, kind != ATTN_TILE_SKIP);
    walk.masked = __ballot_sync(0xffffffffu, all_masked<Bc>(a, j) || kind == ATTN_TILE_MASKED);
}

/* The words of the first 32 tiles of a head. look: of this tile of keys, in shared memory. */
static __device__ __forceinline__ void start_head(RowWalk &walk, const int4 &look)
{
    walk.first = look.x;
    walk.visit = (uint32_t)look.z;
    walk.masked = (uint32_t)look.w;
}

static __device__ __forceinline__ void start_walk(RowWalk &walk, const int4 &look)
{
    walk.g = 0;
    start_head(walk, look);
}

template <int Bc>
static __device__ __forceinline__ RowTile next_tile(RowWalk &walk, const WalkTables &tables,
                                                    const int4 &look, const AttnArgs &a, int group,
                                                    int j)
{
    RowTile tile = {0, -1, false};
#pragma unroll 1
    while (walk.visit == 0) {
        walk.first += 32;
        if (walk.first < look.y) {
            ask_32_tiles<Bc>(walk, tables, a, j);
            continue;
        }
        if (++walk.g >= group || look.y == 0)
            return tile;
        start_head(walk, look);
    }
    const int bit = __ffs(walk.visit) - 1;
    tile.g = walk.g;
    tile.i = walk.first + bit;
    tile.masked = walk.masked >> bit & 1;
    walk.visit &= walk.visit - 1;
    return tile;
}

/* Of the tiles of keys that visit tile i of queries the one before j, going by `step` (1: from the
 * first to the last tile, -1: back), or -1. */
static __device__ __forceinline__ int tile_before(const WalkTables &tables, const AttnArgs &a,
                                                  int i, int j, int step)
{
    const AttnRange rows = tables.rows[i];
#pragma unroll 1
    for (j -= step; j >= 0 && j < tables.Tc; j -= step)
        if (attn_tile_class(a.rule, rows, tables.keys[j]) != ATTN_TILE_SKIP)
            return j;
    return -1;
}

/* words [Bc / 32][Br]: bit c of words[w][r]: row i0 + r sees key j0 + 32w + c. Asked for each pair
 * only where 32 keys do not stand in one segment. */
template <int Br, int Bc>
static __device__ __forceinline__ void make_pair_words(uint32_t *words, const AttnArgs &a, int i0,
                                                       int j0)
{
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
#pragma unroll 1
    for (int e = threadIdx.x; e < Br * (Bc / 32); e += blockDim.x) {
        const int i = i0 + e % Br, j = j0 + e / Br * 32, count = i < Nq ? min(32, Nk - j) : 0;
        const int s = a.mask || count <= 0 ? -1 : segment_of_keys(a.positions_k, j, count);
        uint32_t bits = 0;
        if (s >= 0) {
            const int2 run =
                plan::seen_run(a.rule, a.positions_k.segments[s], attn_position(a.positions_q, i));
            bits = plan::bits_of_run(run.x, run.y, j);
        } else {
#pragma unroll 1
            for (int c = 0; c < count; c++)
                bits |= (uint32_t)attn_sees(&a, i, j + c) << c;
        }
        words[e] = bits;
    }
}

#endif
