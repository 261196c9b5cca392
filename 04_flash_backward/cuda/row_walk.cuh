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
 *     runs [Tr * Br]         first and last key that a query sees, where keys stand in one segment
 *
 * A warp classifies 32 tiles of queries at a time, one a lane, and a ballot turns the answers into
 * two words: bit n says "visit tile n" and "tile n needs a mask". All warps ask for themselves and
 * get the same answer, so nobody has to wait for it. Positions in segments (a ring's zigzag) cost
 * no more than one run of them.
 *
 * In a masked tile the runs of its queries say which pairs are seen, and are loaded with the tile.
 * In the general case (segments of keys, a mask array) a word of 32 bits says for each query which
 * of 32 keys it sees: what attn_sees() says of each pair.
 *
 * Interface:
 * - WalkTables, note_positions: what the kernel in front notes. keys_in_runs.
 * - RowTile, RowWalk, start_walk, next_tile: the walk. tile_before: whose turn is before ours.
 * - make_pair_words: the mask of a tile without runs.
 */
#ifndef FLASH_BACKWARD_ROW_WALK_CUH
#define FLASH_BACKWARD_ROW_WALK_CUH

#include "row_mask.cuh"

struct WalkTables {
    AttnRange *rows, *keys;
    int2 *runs;
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

/* The runs are there and say all. */
static __host__ __device__ __forceinline__ bool keys_in_runs(const AttnArgs &a)
{
    return a.positions_k.count == 1 && !a.mask;
}

/* Rounded up, b > 0. */
static __device__ __forceinline__ int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

/* First and last key that a query at `q` sees, keys being one segment of any stride. */
static __device__ __forceinline__ int2 seen_run(const AttnRule &rule, const AttnSegment &keys,
                                                AttnPosition q, int Nk)
{
    const int64_t far = (int64_t)1 << 62, stride = keys.stride < 0 ? -keys.stride : keys.stride;
    int64_t from = -far, to = far; /* keys seen stand `from` .. `to` behind the first key */
    if (rule.left >= 0)
        from = q.position - limit_of_rule(rule.left) - keys.position;
    if (rule.right >= 0)
        to = q.position + limit_of_rule(rule.right) - keys.position;
    if (keys.stride < 0) {
        const int64_t swap = from;
        from = -to;
        to = -swap;
    }
    if (stride == 0 && (from > 0 || to < 0))
        from = far;
    if (stride > 1) {
        from = divide_up(from, stride);
        to = -divide_up(-to, stride);
    }
    if (q.sequence != keys.sequence)
        from = far;
    return make_int2(clamp_to_int(stride        ? from
                                  : from == far ? far
                                                : 0,
                                  0, Nk),
                     clamp_to_int(stride ? to : Nk - 1, -1, Nk - 1));
}

/* Entry `item` of each table; call for items 0 .. max(Tr * Br, Tc) - 1. */
template <int Br, int Bc>
static __device__ __forceinline__ void note_positions(const WalkTables &tables, const AttnArgs &a,
                                                      int item)
{
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
    if (item < tables.Tr)
        tables.rows[item] = attn_range(a.positions_q, item * Br, min(Br, Nq - item * Br));
    if (item < tables.Tc)
        tables.keys[item] = attn_range(a.positions_k, item * Bc, min(Bc, Nk - item * Bc));
    if (item < tables.Tr * Br) {
        int2 run = make_int2(0, -1); /* sees nothing: a row past the end */
        if (item < Nq && keys_in_runs(a))
            run =
                seen_run(a.rule, a.positions_k.segments[0], attn_position(a.positions_q, item), Nk);
        tables.runs[item] = run;
    }
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
    const bool slow = (int)a.shape.Nk - j * Bc < Bc || !scores_are_plain(a);
    walk.visit = __ballot_sync(0xffffffffu, kind != ATTN_TILE_SKIP);
    walk.masked = __ballot_sync(0xffffffffu, slow || kind == ATTN_TILE_MASKED);
}

template <int Bc>
static __device__ __forceinline__ void start_walk(RowWalk &walk, const WalkTables &tables,
                                                  const AttnArgs &a, int j)
{
    walk.g = 0;
    walk.first = 0;
    ask_32_tiles<Bc>(walk, tables, a, j);
}

template <int Bc>
static __device__ __forceinline__ RowTile next_tile(RowWalk &walk, const WalkTables &tables,
                                                    const AttnArgs &a, int group, int j)
{
    RowTile tile = {0, -1, false};
#pragma unroll 1
    while (walk.visit == 0) {
        walk.first += 32;
        if (walk.first >= tables.Tr) {
            walk.first = 0;
            if (++walk.g >= group)
                return tile;
        }
        ask_32_tiles<Bc>(walk, tables, a, j);
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

/* words [Bc / 32][Br]: bit c of words[w][r]: row i0 + r sees key j0 + 32w + c. */
template <int Br, int Bc>
static __device__ __forceinline__ void make_pair_words(uint32_t *words, const AttnArgs &a, int i0,
                                                       int j0)
{
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
#pragma unroll 1
    for (int e = threadIdx.x; e < Br * (Bc / 32); e += blockDim.x) {
        const int i = i0 + e % Br, j = j0 + e / Br * 32, count = i < Nq ? min(32, Nk - j) : 0;
        uint32_t bits = 0;
#pragma unroll 1
        for (int c = 0; c < count; c++)
            bits |= (uint32_t)attn_sees(&a, i, j + c) << c;
        words[e] = bits;
    }
}

#endif
