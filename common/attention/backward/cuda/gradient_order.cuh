/* SPDX-License-Identifier: MIT
 *
 * gradient_order.cuh: which block works on which keys, and in whose turn dQ is added to.
 *
 * Without turns: blocks start in the order of their index, the longest first, within sections of
 * heads whose Q, dO and dQ fit the L2 cache.
 *
 * With turns (--deterministic) the tiles of keys that see a tile of queries add to its dQ one after
 * another, each warp to its own part: it waits until the tile before it has said that it is done. A
 * float32 sum in a fixed order has the same bits every time. Nobody may wait for a block that has
 * not started, since that one may be waiting for our place. So a block takes a ticket when it
 * starts, the ticket says which keys are its own, and turns go in the order of tickets.
 *
 * Which order? Without a mask all blocks start with the same queries: from the first key to the
 * last. Under a causal mask the block of tile j starts at the diagonal, where it is the last one
 * that sees these queries; from the last key to the first, its turn comes at once.
 *
 * Interface:
 * - GradientPlan: what the host has worked out. heads_of_section. work_in_sections.
 * - KeyTask, take_task: a block's keys, and what the tables say of them.
 * - wait_for_turn, give_turn.
 */
#ifndef FLASH_BACKWARD_GRADIENT_ORDER_CUH
#define FLASH_BACKWARD_GRADIENT_ORDER_CUH

#include "attention/backward/backward_library.h"
#include "gradient_workspace.cuh"
#include "store_keys.cuh"

#define SECTION_MIB 32 /* Q, dO and dQ of a section of heads */

/* What the host has worked out. */
struct GradientPlan {
    GradientWorkspace w;
    FlashSums sums;
    int group; /* query heads of a kv head */
    int section_heads;
    int step;           /* order of the turns: 1 from the first to the last key, -1 back */
    bool plain;         /* scores need no more than a mask */
    bool aligned, wide; /* rows on 16 bytes: of Q, K, V, dO; of dK, dV */
    bool fresh;         /* sums.dK and dV have nothing yet */
};

/* How many kv heads' Q, dO and dQ go into SECTION_MIB, but no fewer than have a block for each of
 * the `places` of the GPU, and all sections alike: behind a short section the long blocks of the
 * next one start late, and end late. One, where all tiles of keys cost the same or where turns are
 * kept. */
static int heads_of_section(const AttnArgs *a, bool in_turns, int blocks_of_head, int places)
{
    const AttnShape *n = &a->shape;
    /* 8 bytes: Q 2, dO 2, dQ 4 */
    const int64_t heads = n->B * n->Hkv, bytes = n->H / n->Hkv * n->Nq * n->d * 8;
    if (in_turns || (a->rule.right < 0 && a->rule.left < 0) || bytes == 0 || blocks_of_head == 0)
        return 1;
    const int64_t least = (places + blocks_of_head - 1) / blocks_of_head;
    int64_t fit = ((int64_t)SECTION_MIB << 20) / bytes;
    fit = fit < least ? least : fit;
    const int64_t sections = fit < heads ? heads / fit : 1;
    return (int)((heads + sections - 1) / sections);
}

/* The block's part of the work: longest first within a section of heads, or, by ticket, the tiles
 * of a head one after another in the order of their turns. */
template <class C>
static __device__ __forceinline__ KeyWork work_in_sections(const AttnArgs &a,
                                                           const GradientPlan &plan, int index)
{
    const int Tc = plan.w.tables.Tc, Hkv = (int)a.shape.Hkv;
    KeyWork work;
    const int first = index / (Tc * plan.section_heads) * plan.section_heads;
    const int rest = index - first * Tc;
    const int here = min(plan.section_heads, (int)a.shape.B * Hkv - first);
    const int head = first + rest % here, j = rest / here;
    work.b = head / Hkv;
    work.h_kv = head % Hkv;
    work.j0 = (plan.step > 0 ? j : Tc - 1 - j) * C::Bc;
    return work;
}

/* A block's keys, and what the tables say of them. */
struct KeyTask {
    KeyWork work;
    int4 look;        /* the walk over tiles of queries */
    const int2 *runs; /* keys that each query sees; NULL: masks are words */
};

/* index: in the order of work_in_sections. */
template <class C>
static __device__ __forceinline__ void take_task(KeyTask &task, const AttnArgs &a,
                                                 const GradientPlan &plan, int index)
{
    const WalkTables &tables = plan.w.tables;
    task.work = work_in_sections<C>(a, plan, index);
    const int j = task.work.j0 / C::Bc, segment = tables.segments[j];
    task.look = tables.looks[j];
    task.runs = segment < 0 ? NULL : tables.runs + (int64_t)segment * tables.Tr * C::Br;
}

/* Waits until the tile of keys whose turn is before ours has added to this warp's part of dQ. A
 * turn holds the last tile plus 1; 0: nobody yet (before = -1). */
static __device__ __forceinline__ void wait_for_turn(int *turn, int before)
{
    if (threadIdx.x % 32 == 0) {
        while (*(volatile int *)turn != before + 1)
            ;
        __threadfence(); /* what comes after the turn was read stays after it */
    }
    __syncwarp(); /* for all lanes */
}

static __device__ __forceinline__ void give_turn(int *turn, int own)
{
    __syncwarp(); /* all lanes have added */
    if (threadIdx.x % 32 == 0) {
        __threadfence(); /* what they added is there before the turn is */
        *(volatile int *)turn = own + 1;
    }
}

#endif
