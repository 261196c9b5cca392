/* SPDX-License-Identifier: MIT
 *
 * rolling_plan.cuh: who works on which keys when, in rolling_window.cu.
 *
 * A window's keys move down by one with each row. So if strip 0 (rows 0 - 31 of a row block) begins
 * with tile F, the strip Bc rows further down begins with F + 1, and so on: all strips visit the
 * same number of tiles, at each step another one. The next row block begins Br / Bc tiles further.
 * All of that follows from two numbers, the keys that row 0 of the whole sequence sees first and
 * last (they may lie before the first key or after the last one: tiles outside are not loaded).
 * So a warp needs no list of its tiles and asks nobody: it counts.
 *
 * Interface:
 * - Strip: sizes. RowBlock, StripKeys, Sight: what a block of threads keeps in shared memory.
 * - strip_of_thread, lane_of_thread; divide_down, ring_place.
 * - enter_rows: goes on to a row block.
 */
#ifndef WINDOW_ROLLING_PLAN_CUH
#define WINDOW_ROLLING_PLAN_CUH

#include "row_mask.cuh"

#define STRIPS 8         /* warps of a block */
#define WIDEST 256       /* left + right: no strip visits more than Br / Bc + 2 tiles */
#define FAR    (1 << 29) /* past all keys */

/* What a warp owns: 32 rows, two m16 tiles of the tensor cores. Names that the products of stage 03
 * ask for: MT m16 tiles of a warp, Bc keys of a tile, WARPS that share the rows. */
template <int D_> struct Strip {
    static const int D = D_, MT = 2, Bc = 64, WARPS = 1, ROWS = 16 * MT;
    static const int Q_BYTES = ROWS * D * 2, K_BYTES = Bc * D * 2, STAGE = 2 * K_BYTES;
    static const int THREADS = STRIPS * 32, Br = STRIPS * ROWS;
    static const int TILES = Br / Bc;    /* in use at a time */
    static const int STAGES = TILES + 1; /* of the ring: one more is on its way */
    /* Shared memory: Q of each strip, the ring, Sight. */
    static const int RING = STRIPS * Q_BYTES, SIGHT = RING + STAGES * STAGE;
};

/* Keys that the rows of a strip see: any of them from .. to, all of them all_from .. all_to. */
struct StripKeys {
    int from, to, all_from, all_to;
};

/* Br rows of a head. */
struct RowBlock {
    BlockWork work;
    int F, steps; /* tiles F .. of the first strip */
    int c0;       /* first key of this strip's tile, which lies at K */
    uint32_t K;
    int shift;  /* tiles between the first strip and the last, or 0 */
    int loaded; /* the ring's newest tile */
    int newest; /* the last tile to fetch while these rows are worked on */
    int keep;   /* tiles that the next block of rows begins with stay in the ring */
    int index;  /* of all row blocks; this block's share ends before `end` */
    int end;
};

/* Of the block, in shared memory. Each warp has a RowBlock of its own: what all threads know would
 * otherwise occupy registers of every thread, and D = 128 has none left. */
template <class C> struct Sight {
    int2 run[C::Br]; /* first and last key of a row; none: last < first */
    StripKeys strip[STRIPS];
    RowBlock now[STRIPS];
};

/* Of the launch: row i sees keys first + i .. last + i where `rolls`. */
struct Advance {
    int first, last;
    bool rolls;
};

static __device__ __forceinline__ int strip_of_thread(void)
{
    return (int)((unsigned)read_thread() / 32);
}

static __device__ __forceinline__ int lane_of_thread(void)
{
    return (int)((unsigned)read_thread() % 32);
}

/* Over the warp, in one instruction. Before sm_80, for which the host refuses to launch, there is
 * none. */
static __device__ __forceinline__ int least_of_warp(int x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    return x;
#else
    return __reduce_min_sync(0xffffffffu, x);
#endif
}

static __device__ __forceinline__ int largest_of_warp(int x)
{
    return -least_of_warp(-x);
}

/* Towards -inf, where C rounds towards 0: keys before the first one have tiles -1, -2, ... */
static __device__ __forceinline__ int divide_down(int x, int y)
{
    return x >= 0 ? x / y : -((y - 1 - x) / y);
}

/* Tile t always lies at t mod STAGES: who needs it computes where it is. */
template <class C> static __device__ __forceinline__ int ring_place(int tile)
{
    return tile - divide_down(tile, C::STAGES) * C::STAGES;
}

/* Positions may be as large as 2^62: only their difference matters, and beyond FAR it is all
 * one. */
static __device__ __forceinline__ Advance find_advance(const AttnArgs &a)
{
    const AttnSegment *q = a.positions_q.segments, *k = a.positions_k.segments;
    const int64_t apart = q->position - k->position;
    Advance by;
    by.rolls = q->stride == 1 && k->stride == 1;
    by.first = plan::clamp_to_int(apart - a.rule.left, -FAR, FAR);
    by.last = plan::clamp_to_int(apart + a.rule.right, -FAR, FAR);
    return by;
}

/* The run of this thread's row (256 threads, 256 rows), and of its warp's rows, from which the warp
 * tells whether a tile has anything for it and whether it needs a mask. All lanes call. */
template <class C>
static __device__ __forceinline__ void look(Sight<C> &sight, const AttnArgs &a, Advance by, int i0)
{
    const int i = i0 + read_thread(), Nk = (int)a.shape.Nk, strip = strip_of_thread();
    const AttnSegment *keys = a.positions_k.segments;
    int first = 0, last = -1;
    if (i < a.shape.Nq && by.rolls) {
        if (a.positions_q.segments->sequence == keys->sequence) {
            first = max(by.first + i, 0);
            last = min(by.last + i, Nk - 1);
        }
    } else if (i < a.shape.Nq) {
        const int2 run = plan::seen_run(a.rule, *keys, attn_position(a.positions_q, i));
        first = run.x;
        last = run.y;
    }
    const bool none = last < first;
    StripKeys see;
    see.from = least_of_warp(none ? Nk : first);
    see.to = largest_of_warp(none ? -1 : last);
    see.all_from = largest_of_warp(none ? Nk : first);
    see.all_to = least_of_warp(none ? -1 : last);
    sight.run[read_thread()] = make_int2(first, last);
    if (lane_of_thread() == 0)
        sight.strip[strip] = see;
    __syncwarp();
}

/* Row block number `index` of all heads (Tr for each head), and what its warps see. True: nothing
 * that is in the ring is of use, as at the first row block of a head, whose keys are others.
 *
 * Where the rows of the next block are those below (goes_on), this block already fetches the tiles
 * that only the next one needs, up to `newest`, and overwrites none that it needs again (keep). */
template <class C>
static __device__ __forceinline__ bool enter_rows(Sight<C> &sight, const AttnArgs &a, int index,
                                                  int end, bool first)
{
    const int Tr = ((int)a.shape.Nq + C::Br - 1) / C::Br;
    const Advance by = find_advance(a);
    const bool goes_on = by.rolls && (index + 1) % Tr != 0 && index + 1 < end;
    const bool anew = first || !by.rolls || index % Tr == 0;
    RowBlock now;
    now.index = index;
    now.end = end;
    now.work = work_of_head(a, index / Tr, index % Tr * C::Br);
    look(sight, a, by, now.work.i0);
    if (by.rolls) { /* fewer steps than TILES would leave out tiles that the next rows need */
        now.shift = C::TILES - 1;
        now.F = divide_down(by.first + now.work.i0, C::Bc);
        now.steps =
            max(divide_down(by.last + now.work.i0 + C::Bc - 1, C::Bc) - now.F + 1, C::TILES);
    } else { /* from the first key that any row sees to the last */
        int from = (int)a.shape.Nk, to = -1;
        __syncthreads();
        for (int strip = 0; strip < STRIPS; strip++) {
            from = min(from, sight.strip[strip].from);
            to = max(to, sight.strip[strip].to);
        }
        now.shift = 0;
        now.F = from / C::Bc;
        now.steps = to < from ? 0 : to / C::Bc - now.F + 1;
    }
    now.newest = now.F + now.steps - 1 + now.shift + (goes_on ? C::TILES : 0);
    now.keep = goes_on ? now.F + C::TILES : now.newest + 1;
    now.loaded = anew ? now.F - 1 : sight.now[strip_of_thread()].loaded;
    __syncwarp();
    if (lane_of_thread() == 0)
        sight.now[strip_of_thread()] = now;
    __syncwarp();
    return anew;
}

#endif
