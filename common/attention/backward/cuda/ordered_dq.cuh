/* SPDX-License-Identifier: MIT
 *
 * ordered_dq.cuh: blocks of keys add to dQ in a fixed order: --deterministic of the Hopper kernels.
 *
 * A float32 sum has the same bits every time if its parts are added in the same order. A counter
 * for each 64 queries of a head and each warpgroup says who has added last, as its number plus 1:
 * who is next waits for that, adds, and writes its own. (At d = 256 the warpgroups of two blocks
 * share dQ: four counters, and a pair of blocks has one number.)
 *
 * To look at a counter takes some 700 clocks, and to be sure that the adds have been done before it
 * is written takes as many. None of those who compute can afford that. The producer's warpgroup has
 * warps with nothing to do, so two of them keep the order, one for each warpgroup that computes:
 *
 *     keeper      my turn?  open | .............. | done: fence, write the counter
 *     consumers   ... products ....... | wait, add | report, go on
 *
 * The fence of the keeper covers the adds of those who have reported: what a thread has seen happen
 * before its fence is before whatever comes after it.
 *
 * Nobody may wait for a block that has not started, because that one may be waiting for our place.
 * So a block takes a ticket when it begins with its keys, and the order is that of the tickets of
 * a head.
 *
 * Which order? Without a mask all blocks begin with the same queries, from the first keys to the
 * last, each one handover (about 1.5 us) behind the one before. That costs once, at the start, if
 * the next blocks find places free in the same rhythm: so the heads that fill the GPU take turns
 * (hopper_keys.cuh). Under a causal mask the last keys begin with the last queries, where nobody
 * comes before them, and block n is always two tiles of queries behind block n + 1: from the last
 * keys to the first nobody waits, in a window too.
 *
 * Interface:
 * - order_ints: counters and the ticket of a pass; they lie behind dQ_sum and start with 0.
 * - start_order: by one thread of a block. rows_before, keep_order: by one for each warpgroup.
 * - wait_for_order, report_order: by the consumers, around the add of dQ number 0, 1, 2 ...
 *   add_dQ_in_order: all three.
 * - Ordered: a tile with the barriers of that.
 */
#ifndef FLASH_BACKWARD_ORDERED_DQ_CUH
#define FLASH_BACKWARD_ORDERED_DQ_CUH

#include "attn.h"
#include "row_rule.cuh"
#include "units/wgmma_turns.cuh"

namespace hopper_backward
{

/* WALK_KEYS have one walk and one place in the order: those of a block or, at d = 256, of two. */
template <class TILE> struct Ordered : TILE {
    static const int WALK_KEYS = 128, BLOCKS = WALK_KEYS / TILE::Bc;
    static const int ORDER_OPEN = TILE::ALL, ORDER_DONE = ORDER_OPEN + 8 * 2;
    static const int TICKET = ORDER_DONE + 8 * 2, ALL = TICKET + 16;
    static_assert(ALL <= 227 * 1024, "tiles do not fit");
};

/* Who adds to the same 64 queries, each in an order of its own: two warpgroups of a block or, at
 * d = 256, of each of two. */
#define OWNERS 4

/* ld.acquire, until *counter is `value`: what was done before it was set is visible then. */
static __device__ __forceinline__ void counter_wait(const int *counter, int value)
{
    int now;
#ifdef HOPPER_WAIT_LIMIT
    int tries = 0;
#endif
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
#ifdef HOPPER_WAIT_LIMIT
        if (tries++ == HOPPER_WAIT_LIMIT)
            report_stuck(WAIT_dQ);
#endif
    } while (now != value);
}

/* st.relaxed; a fence before it makes it a release. */
static __device__ __forceinline__ void counter_set(int *counter, int value)
{
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

/* Whole 16 bytes. rows: of all heads, in whole tiles of 64. */
static __host__ __device__ __forceinline__ int64_t order_ints(int64_t rows)
{
    return rows / 64 * OWNERS + 4;
}

template <class C>
static __device__ __forceinline__ int *counters_of(const AttnArgs &a, const Pass &pass)
{
    const int64_t tiles = divide_up((int)a.shape.Nq, 64) * a.shape.B * a.shape.H;
    return (int *)(pass.dQ_sum + tiles * (64 * C::D));
}

/* By one thread, before the others go on. */
template <class C> static __device__ __forceinline__ void start_order(uint32_t smem)
{
    for (int warpgroup = 0; warpgroup < 2; warpgroup++) {
        barrier_init(smem + C::ORDER_OPEN + 8 * warpgroup, 1);
        barrier_init(smem + C::ORDER_DONE + 8 * warpgroup, CONSUMER_THREADS / 64);
    }
}

/* The queries that see the keys whose turn comes before those from j0 on; back: the last keys come
 * first. */
template <class C>
static __device__ __forceinline__ RowRange rows_before(const RowSight &sight, int j0, bool back)
{
    const int before = j0 + (back ? C::WALK_KEYS : -C::WALK_KEYS);
    RowRange theirs = rows_that_see(sight, before, C::WALK_KEYS);
    if (before < 0 || before >= sight.Nk || theirs.begin >= theirs.end)
        return {0, 0};
    theirs.begin = theirs.begin / C::Br * C::Br;
    return theirs;
}

/* By one thread, for one warpgroup. block: or the pair. theirs: of rows_before. back: the last keys
 * come first. number: of the first dQ of the walk. Returns that of the next one. */
template <class C>
static __device__ __forceinline__ int
keep_order(const AttnArgs &a, const Pass &pass, bool back, RowRange theirs, const KeyBlock &block,
           KeyWalk walk, uint32_t smem, int warpgroup, int rank = 0, int number = 0)
{
    const int Tr = divide_up((int)a.shape.Nq, 64), own = block.j0 / C::WALK_KEYS;
    const int before = back ? own + 1 : own - 1; /* who comes before us */
    const uint32_t open = smem + C::ORDER_OPEN + 8 * warpgroup;
    const uint32_t done = open + C::ORDER_DONE - C::ORDER_OPEN;
    int *const counters = counters_of<C>(a, pass) + 2 * rank + warpgroup;
    walk.h += block.b * (int)a.shape.H;
#pragma unroll 1
    for (const int end = number + walk.count; number < end; number++) {
        int *const counter = counters + ((int64_t)walk.h * Tr + walk.i0 / 64) * OWNERS;
        counter_wait(counter, walk.i0 >= theirs.begin && walk.i0 < theirs.end ? before + 1 : 0);
        barrier_arrive(open);
        barrier_wait(done, number % 2, WAIT_dQ);
        __threadfence(); /* the adds that were reported are there before the counter is */
        counter_set(counter, own + 1);
        next_tile<C>(walk);
    }
    return number;
}

/* dQ number `number` of this warpgroup may be added. */
template <class C>
static __device__ __forceinline__ void wait_for_order(uint32_t smem, int warpgroup, int number)
{
    barrier_wait(smem + C::ORDER_OPEN + 8 * warpgroup, number % 2, WAIT_dQ);
}

/* It has been added. */
template <class C> static __device__ __forceinline__ void report_order(uint32_t smem, int warpgroup)
{
    report(smem + C::ORDER_DONE + 8 * warpgroup);
}

/* From registers. number: of this dQ of the block, -1: nobody's. */
template <class C, bool ORDERED>
static __device__ __forceinline__ void add_dQ_in_order(float *to, const float (&dQ)[8][4],
                                                       uint32_t smem, int warpgroup, int number)
{
    if (ORDERED && number >= 0)
        wait_for_order<C>(smem, warpgroup, number);
    add_dQ(to, dQ);
    if (ORDERED && number >= 0)
        report_order<C>(smem, warpgroup);
}

} // namespace hopper_backward

#endif
