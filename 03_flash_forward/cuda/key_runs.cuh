/* SPDX-License-Identifier: MIT
 *
 * key_runs.cuh: the key tiles of a block as runs of one kind, clean or masked.
 *
 * A loop that asks of each tile whether it needs a mask contains the code for both answers, and
 * keeps registers for both. Neighbouring tiles mostly answer alike: a causal block has one run of
 * masked tiles at the diagonal and one of clean tiles to the left of it, a window adds a masked run
 * at its other end. So the question is asked once a run, and each kind has a loop of its own. (All
 * threads ask, each for itself; one thread for all where registers are short.)
 *
 *     window:   [ masked | clean ........... | masked ]   walked from right to left
 *
 * Interface:
 * - part_of_tiles: the share of one of `splits` blocks.
 * - KeyRun, next_key_run, last_tile. KeyRuns, start_runs, advance_run.
 */
#ifndef FLASH_FORWARD_KEY_RUNS_CUH
#define FLASH_FORWARD_KEY_RUNS_CUH

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

#define RUN_LOOK_AHEAD 16 /* where tiles are asked one by one a run has no more tiles than this */

static __device__ __forceinline__ KeyTiles part_of_tiles(KeyTiles tiles, int split, int splits)
{
    const int begin = tiles.begin, end = tiles.end, share = (end - begin + splits - 1) / splits;
    tiles.begin = min(begin + split * share, end);
    tiles.end = min(tiles.begin + share, end);
    return tiles;
}

/* The next run to the left of tile `end`. Where keys stand in one run of positions it follows from
 * the ends of the clean range; otherwise tiles are asked one by one. */
template <int Bc>
static __device__ __forceinline__ KeyRun next_key_run(const AttnArgs &a, const KeyTiles &tiles,
                                                      const AttnRange &q, int end)
{
    KeyRun run = {tiles.begin, end, false};
    if (end > tiles.begin && tiles.one_run) {
        if (tiles.clean_begin < tiles.clean_end && end > tiles.clean_begin) {
            run.clean = end <= tiles.clean_end;
            run.begin = max(tiles.begin, run.clean ? tiles.clean_begin : tiles.clean_end);
        }
    } else if (end > tiles.begin) {
        run.begin = next_key_tile<Bc>(a, tiles, q, end, &run.clean);
        run.end = run.begin + 1; /* no tile: -1 and 0 */
        bool clean;
        for (int n = 1; n < RUN_LOOK_AHEAD && run.begin > tiles.begin; n++) {
            if (next_key_tile<Bc>(a, tiles, q, run.begin, &clean) != run.begin - 1 ||
                clean != run.clean)
                break;
            run.begin--;
        }
        if (run.begin < 0)
            run.begin = run.end = tiles.begin;
    } else {
        run.end = tiles.begin;
    }
    return run;
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
