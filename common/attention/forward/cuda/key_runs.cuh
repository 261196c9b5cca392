/* SPDX-License-Identifier: MIT
 *
 * key_runs.cuh: the key tiles of a block as runs of one kind, full or masked.
 *
 * A loop that asks of each tile whether it needs a mask contains the code for both answers, and
 * keeps registers for both. Neighbouring tiles mostly answer alike: a causal block has one run of
 * masked tiles at the diagonal and one of full tiles to the left of it, a window adds a masked run
 * at its other end. So the question is asked once a run, and each kind has a loop of its own. (All
 * threads ask, each for itself; one thread for all where registers are short.)
 *
 *     window:   [ masked | clean ........... | masked ]   walked from right to left
 *
 * Where keys stand in several segments (a zigzag shard, sequences of varlen) each segment has such
 * runs of its own, found in the same way from its first position and stride: a question costs a
 * few hundred clocks, as much for a thousand tiles that nobody sees as for one. Only a tile that
 * lies across the end of a segment, and positions that fall, are asked tile by tile.
 *
 * Interface:
 * - part_of_tiles: the share of one of `splits` blocks.
 * - KeyRun, next_key_run, last_tile. KeyRuns, start_runs, advance_run.
 */
#ifndef FLASH_FORWARD_KEY_RUNS_CUH
#define FLASH_FORWARD_KEY_RUNS_CUH

#include "attn_pairs.h"
#include "row_mask.cuh"

/* Tiles begin .. end - 1; none: begin = end. */
struct KeyRun {
    int begin, end;
    bool clean;
};

/* The run that is worked on and the one after it, whose first tile is loaded ahead. */
struct KeyRuns {
    KeyRun now, next;
};

static __device__ __forceinline__ KeyTiles part_of_tiles(KeyTiles tiles, int split, int splits)
{
    const int begin = tiles.begin, end = tiles.end, share = (end - begin + splits - 1) / splits;
    tiles.begin = min(begin + split * share, end);
    tiles.end = min(tiles.begin + share, end);
    return tiles;
}

/* The last run of tiles begin .. end - 1 (at least one), all of them to be visited. */
static __device__ __forceinline__ KeyRun last_run(const KeyTiles &tiles, int begin, int end)
{
    KeyRun run = {begin, end, false};
    if (tiles.clean_begin < tiles.clean_end && end > tiles.clean_begin) {
        run.clean = end <= tiles.clean_end;
        run.begin = max(begin, run.clean ? tiles.clean_begin : tiles.clean_end);
    }
    return run;
}

/* next_key_run for keys in several segments, or with a stride. */
template <int Bc>
static __device__ __forceinline__ KeyRun next_run_of_segments(const AttnArgs &a,
                                                              const KeyTiles &tiles,
                                                              const AttnRange &q, int end)
{
    const int Nk = (int)a.shape.Nk;
    const AttnSegment *keys = a.positions_k.segments + a.positions_k.count - 1;
#pragma unroll 1
    while (end > tiles.begin) {
        const int first = (end - 1) * Bc, count = min(Bc, Nk - first);
        while (keys > a.positions_k.segments && keys->first >= first + count)
            keys--;
        if (keys->first > first || keys->stride <= 0) {
            const AttnRange k = attn_range(a.positions_k, first, count);
            const AttnTile kind = attn_tile_class(a.rule, q, k);
            if (kind != ATTN_TILE_SKIP) {
                const bool clean = kind == ATTN_TILE_CLEAN && count == Bc && scores_are_plain(a);
                return KeyRun{end - 1, end, clean};
            }
            end--;
        } else {
            /* Tiles of this segment alone: from `inside` on. */
            const int inside = max(((int)keys->first + Bc - 1) / Bc, tiles.begin);
            const KeyTiles seen =
                tiles_of_segment<Bc>(a, q, keys, (int)keys->first, (int)keys->length, keys->stride);
            if (max(seen.begin, inside) < min(seen.end, end))
                return last_run(seen, max(seen.begin, inside), min(seen.end, end));
            end = inside;
        }
    }
    return KeyRun{tiles.begin, tiles.begin, false};
}

/* The next run to the left of tile `end`; empty: begin = end = tiles.begin. */
template <int Bc>
static __device__ __forceinline__ KeyRun next_key_run(const AttnArgs &a, const KeyTiles &tiles,
                                                      const AttnRange &q, int end)
{
    if (!tiles.one_run)
        return next_run_of_segments<Bc>(a, tiles, q, end);
    if (end > tiles.begin)
        return last_run(tiles, tiles.begin, end);
    return KeyRun{tiles.begin, tiles.begin, false};
}

/* Where a walk over the run starts; -1: it is empty. */
static __device__ __forceinline__ int last_tile(KeyRun run)
{
    return run.begin < run.end ? run.end - 1 : -1;
}

/* SHARED: the runs are in shared memory, one thread writes them; otherwise each thread has its own.
 * All threads call; when SHARED, a barrier must follow. */
template <int Bc, bool SHARED>
static __device__ __forceinline__ void start_runs(KeyRuns &runs, const AttnArgs &a,
                                                  const KeyTiles &tiles, const AttnRange &q,
                                                  KeyRun first)
{
    if (!SHARED || threadIdx.x == 0) {
        runs.now = first;
        runs.next = next_key_run<Bc>(a, tiles, q, first.begin);
    }
}

/* Goes on to the next run; returns its last tile or -1. */
template <int Bc, bool SHARED>
static __device__ __forceinline__ int advance_run(KeyRuns &runs, const AttnArgs &a,
                                                  const KeyTiles &tiles, const AttnRange &q)
{
    if (SHARED)
        __syncthreads(); /* everybody knows that this run has ended */
    if (!SHARED || threadIdx.x == 0) {
        runs.now = runs.next;
        runs.next = next_key_run<Bc>(a, tiles, q, runs.now.begin);
    }
    if (SHARED)
        __syncthreads();
    return last_tile(runs.now);
}

#endif
