/* SPDX-License-Identifier: MIT
 *
 * row_mask.cuh: which key tiles a block visits, and which keys of a tile a row may see.
 *
 * Positions are 64-bit and may come in segments, masks are arrays in memory: asking attn_sees() for
 * every score would cost more than the score. So the question is answered in three steps.
 *   1. Tiles: from the smallest and largest position of the block's queries follows a range of key
 *      tiles to visit, and inside it a range in which every pair is visible ("clean").
 *   2. Rows: where keys stand in one run of consecutive positions (ordinary attention, causal or
 *      with a window), a row sees one run of keys. Its two ends are computed once for the block.
 *   3. Scores: a word of 32 bits says which of 32 keys a row sees. It is made from the run. With
 *      several segments one thread for each row makes the words of a tile: from the two ends of
 *      what it sees, where the tile's keys stand in one segment; a tile across the end of one, or
 *      a mask array, is the general case: attn_sees() for each pair, tens of microseconds a tile.
 *
 * Interface:
 * - KeyTiles, find_key_tiles, next_key_tile: step 1. Tiles are walked from right to left.
 * - RowMask (in shared memory); publish_plan fills it, with make_row_runs: step 2.
 *   make_row_words: without such runs, before a masked tile.
 * - tiles_of_segment: step 1 for one of several segments.
 * - row_bits: step 3.
 */
#ifndef FLASH_FORWARD_ROW_MASK_CUH
#define FLASH_FORWARD_ROW_MASK_CUH

#include "attn_pairs.h"
#include "dispatch.cuh"
#include "key_plan.cuh"

/* Tiles j with begin <= j < end are visited; those in clean_begin .. clean_end - 1 need no mask. */
struct KeyTiles {
    int begin, end, clean_begin, clean_end;
    bool one_run; /* keys in one segment, stride 1; otherwise there is no range for all of them */
};

/* In shared memory, for two reasons: the rows' part is made by one thread for all, and the block's
 * part would occupy registers of every thread that the accumulators need. */
template <int Br, int Bc> struct RowMask {
    BlockWork work;
    const void *K, *V; /* row 0 of the head */
    AttnRange q;       /* positions of the block's rows */
    KeyTiles tiles;
    bool by_run; /* first[r] .. last[r] are the keys that row r sees; else words [stage][r] */
    union {
        struct {
            int first[Br], last[Br];
        } run;
        uint32_t words[2][Br][Bc / 32];
    };
};

/* Scores that a full tile can use as they are: a positive scale, no cap, no mask array. */
static __device__ __forceinline__ bool scores_are_plain(const AttnArgs &a)
{
    return !a.mask && !(a.softcap > 0.0f) && a.scale > 0.0f;
}

/* The tiles that the block's queries see of one segment: keys first .. first + count - 1, stride
 * stride > 0. Tiles across its ends are among them, but never clean. (All three are keys->..., but
 * a caller may know them when it is compiled.) */
template <int Bc>
static __device__ __forceinline__ KeyTiles tiles_of_segment(const AttnArgs &a, const AttnRange &q,
                                                            const AttnSegment *keys, int first,
                                                            int count, int64_t stride)
{
    /* In key indexes: the rows together see from .. to, each of them sees from_all .. to_all. */
    int from = 0, to = count - 1, from_all = 0, to_all = count - 1;
    KeyTiles tiles;
    if (a.rule.right >= 0) {
        const int64_t right = plan::limit_of_rule(a.rule.right) - keys->position;
        to = plan::last_key_to(q.max + right, stride, count);
        to_all = plan::last_key_to(q.min + right, stride, count);
    }
    if (a.rule.left >= 0) {
        const int64_t left = plan::limit_of_rule(a.rule.left) + keys->position;
        from = plan::first_key_from(q.min - left, stride, count);
        from_all = plan::first_key_from(q.max - left, stride, count);
    }
    if (q.sequence >= 0 && q.sequence != keys->sequence)
        to = -1;
    tiles.begin = (first + from) / Bc;
    tiles.end = max((first + to + Bc) / Bc, tiles.begin);
    tiles.clean_begin = tiles.clean_end = 0;
    if (q.sequence == keys->sequence && scores_are_plain(a)) {
        tiles.clean_begin = (first + from_all + Bc - 1) / Bc;
        tiles.clean_end = (first + to_all + 1) / Bc;
    }
    return tiles;
}

template <int Bc>
static __device__ __forceinline__ KeyTiles find_key_tiles(const AttnArgs &a, AttnRange q)
{
    const int Nk = (int)a.shape.Nk;
    const AttnSegment *keys = a.positions_k.segments;
    KeyTiles tiles;
    if (a.positions_k.count == 1 && keys->stride == 1) {
        tiles = tiles_of_segment<Bc>(a, q, keys, 0, Nk, 1);
        tiles.one_run = true;
    } else {
        tiles.begin = tiles.clean_begin = tiles.clean_end = 0;
        tiles.end = (Nk + Bc - 1) / Bc;
        tiles.one_run = false;
    }
    return tiles;
}

static __device__ __forceinline__ const AttnSegment *segment_of_key(const AttnArgs &a, int j)
{
    int64_t s = 0;
    while (s + 1 < a.positions_k.count && j >= a.positions_k.segments[s + 1].first)
        s++;
    return a.positions_k.segments + s;
}

/* The last tile before j that is worth a visit, or -1. */
template <int Bc>
static __device__ __forceinline__ int next_key_tile(const AttnArgs &a, const KeyTiles &tiles,
                                                    const AttnRange &q, int j, bool *clean)
{
    const int Nk = (int)a.shape.Nk;
    *clean = false;
#pragma unroll 1
    for (j--; j >= tiles.begin; j--) {
        if (tiles.one_run) {
            *clean = j >= tiles.clean_begin && j < tiles.clean_end;
            return j;
        }
        const int count = min(Bc, Nk - j * Bc);
        const AttnTile kind = attn_tile_class(a.rule, q, attn_range(a.positions_k, j * Bc, count));
        if (kind != ATTN_TILE_SKIP) {
            *clean = kind == ATTN_TILE_CLEAN && count == Bc && scores_are_plain(a);
            return j;
        }
    }
    return -1;
}

/* Rows past Nq repeat the last one; they are never stored. */
template <int Br, int Bc>
static __device__ __forceinline__ void make_row_runs(RowMask<Br, Bc> &mask, const AttnArgs &a,
                                                     int i0)
{
    const AttnSegment *keys = a.positions_k.segments;
    const int Nk = (int)a.shape.Nk;
    for (int r = threadIdx.x; r < Br; r += blockDim.x) {
        const AttnPosition q = attn_position(a.positions_q, min(i0 + r, (int)a.shape.Nq - 1));
        const int64_t p = q.position - keys->position; /* the key at the query's own position */
        int first = 0, last = Nk - 1;
        if (a.rule.left >= 0)
            first = plan::first_key_from(p - plan::limit_of_rule(a.rule.left), 1, Nk);
        if (a.rule.right >= 0)
            last = plan::last_key_to(p + plan::limit_of_rule(a.rule.right), 1, Nk);
        mask.run.first[r] = first;
        mask.run.last[r] = q.sequence == keys->sequence ? last : -1;
    }
}

/* What the block knows before its first tile. All threads call; a barrier must follow. */
template <int Br, int Bc>
static __device__ __forceinline__ void publish_plan(RowMask<Br, Bc> &mask, const AttnArgs &a,
                                                    BlockWork work, const void *K, const void *V,
                                                    AttnRange q, KeyTiles tiles)
{
    const bool by_run = tiles.one_run && !a.mask;
    if (threadIdx.x == 0) {
        mask.work = work;
        mask.K = K;
        mask.V = V;
        mask.q = q;
        mask.tiles = tiles;
        mask.by_run = by_run;
    }
    if (by_run)
        make_row_runs(mask, a, work.i0);
}

template <int Br, int Bc>
static __device__ __forceinline__ void make_row_words(RowMask<Br, Bc> &mask, const AttnArgs &a,
                                                      int j, int stage)
{
    const int columns = min(Bc, (int)a.shape.Nk - j * Bc);
    const AttnSegment *keys = segment_of_key(a, j * Bc + columns - 1);
    const bool one_segment = !a.mask && keys->first <= j * Bc && keys->stride > 0;
#pragma unroll 1
    for (int r = threadIdx.x; r < Br; r += blockDim.x) {
        const int i = min(mask.work.i0 + r, (int)a.shape.Nq - 1);
        if (one_segment) {
            const AttnPosition q = attn_position(a.positions_q, i);
            const int64_t stride = keys->stride; /* p: the query's, counted from the first key's */
            const int64_t p = q.position - keys->position - (j * Bc - keys->first) * stride;
            int first = 0, last = columns - 1;
            if (a.rule.left >= 0)
                first = plan::first_key_from(p - plan::limit_of_rule(a.rule.left), stride, columns);
            if (a.rule.right >= 0)
                last = plan::last_key_to(p + plan::limit_of_rule(a.rule.right), stride, columns);
            if (q.sequence != keys->sequence)
                last = -1;
#pragma unroll 1
            for (int word = 0; word < Bc / 32; word++)
                mask.words[stage][r][word] = plan::bits_of_run(first, last, word * 32);
            continue;
        }
#pragma unroll 1
        for (int word = 0; word < Bc / 32; word++) {
            uint32_t bits = 0;
#pragma unroll 1
            for (int c = word * 32; c < min(word * 32 + 32, columns); c++)
                bits |= (uint32_t)attn_sees(&a, i, j * Bc + c) << (c % 32);
            mask.words[stage][r][word] = bits;
        }
    }
}

/* Bit c: may row r see key j * Bc + word * 32 + c? */
template <int Br, int Bc>
static __device__ __forceinline__ uint32_t row_bits(const RowMask<Br, Bc> &mask, int r, int word,
                                                    int j, int stage)
{
    if (!mask.by_run)
        return mask.words[stage][r][word];
    return plan::bits_of_run(mask.run.first[r], mask.run.last[r], j * Bc + word * 32);
}

#endif
