/* SPDX-License-Identifier: MIT
 *
 * hopper_keys.cuh: the loop of rung v12, which says why it is so, for all that the library is
 * asked: positions that grow (row_rule.cuh), head dimensions below that of the tile, dK and dV as
 * sums in float32, a fixed order of sums (ordered_dq.cuh).
 *
 * Blocks stay, as those of v15: each works on one block of keys after another, a turn each (a lap
 * there). K and V have two places, one for even turns, one for odd. The next ones come, with their
 * first tiles of queries, while the warpgroups still have those before. One warpgroup may begin a
 * turn while the other still ends the one before: dK and dV leave from registers or, where turns
 * are short, through what one warpgroup alone has read of V. So they need not meet.
 *
 * What all must know of a turn, its KeyTask, lies beside K and V and goes with them: it is there
 * when they are, and its place is free when theirs is. Tiles count on from turn to turn. So stages
 * and their barriers know nothing of turns, and dS of a turn's last tile is given back in the first
 * step of the next turn.
 *
 * Who gets which keys: for each turn a block draws a ticket from a counter in global memory. Where
 * several launches may add to one dQ at a time (a ring's two streams), there are none, and a block
 * has one turn.
 *
 * Two threads load, one K, V and dO, the other Q, and a tile is one copy. A tile has one stage to
 * spare, so what a thread does between the moment when a stage is free and the order to fill it is
 * lost. A form with one such thread, and copies of 64 rows, was 8 % slower at d = 64.
 *
 * Head dimensions. The copy engine fills channels from d on with zeros, and leaves them out on the
 * way back, 16 bytes at a time: d is a multiple of 8. For that a map has the channels of a head as
 * one dimension, and a box takes one copy for each 64 of them.
 *
 * Interface:
 * - KeysWork: what a launch works on. make_maps (host). readable (host): by the copy engine.
 * - StayingKeys: the tile. KeyTask: what a turn works on.
 * - load_Q, load_dO: orders to the copy engine.
 * - add_keys: dK and dV to the sums. store_keys, store_box: to their tensors.
 * - keys_kernel: d up to 64 and 128.
 */
#ifndef FLASH_BACKWARD_HOPPER_KEYS_CUH
#define FLASH_BACKWARD_HOPPER_KEYS_CUH

#include "attention/backward/backward_library.h"
#include "hopper_pass.cuh"
#include "ordered_dq.cuh"
#include "row_rule.cuh"
#include "units/transpose_quad.cuh"

namespace hopper_backward
{

struct KeysWork {
    RowRule rule;
    FlashSums sums;          /* dK NULL: into the tensors */
    bool fresh;              /* the sums have nothing yet and are not read */
    int group;               /* query heads of a kv head */
    int section;             /* heads whose tiles of keys are taken in turn */
    int of_head, of_section; /* tiles of keys */
    bool back;               /* from the last keys to the first */
    int count;               /* blocks of keys in all */
    int *tickets;            /* how many have been taken; NULL: a block has the one of its number */
};

/* KeyMaps, of boxes that take so many copies: one, or one for each panel. */
struct PanelMaps : KeyMaps {
    int copies;
};

/* What load_box and store_box take in place of a map. */
struct BoxMap {
    const CUtensorMap *map;
    int copies;
};

struct BoxMaps {
    BoxMap Q, K, V, dO, dK, dV;
};

/* The second place of K and V, for odd turns, and a task for each place. */
template <int D> struct StayingKeys : WgmmaKeys<D> {
    typedef WgmmaKeys<D> TILE;
    static const int OTHER_K = (TILE::ALL + 1023) / 1024 * 1024;
    static const int KEYS_FULL = OTHER_K + 4 * TILE::BOX, KEYS_FREE = KEYS_FULL + 8 * 2;
    static const int TASK = KEYS_FREE + 8 * 2, ALL = TASK + 2 * 64; /* KeyTask */
};

/* Steps are multiples of 16 bytes. Nobody steps in a dimension of size 1. */
static bool readable(const Tensor *t)
{
    const int64_t limit = (int64_t)1 << 39;
    for (int n = 0; n < 3; n++)
        if (t->shape[n] > 1 &&
            (t->stride[n] % 8 != 0 || t->stride[n] <= 0 || t->stride[n] >= limit))
            return false;
    return (uintptr_t)t->data % 16 == 0;
}

/* Boxes of so many rows. whole: all panels, as in make_tile_map; else [channels], row, 1, head,
 * batch, and a box for each panel. */
static AttnStatus make_map(CUtensorMap *map, Tensor t, int rows, bool whole)
{
    for (int n = 0; n < 3; n++)
        if (t.shape[n] == 1)
            t.stride[n] = 8;
    const cuuint64_t panels = (cuuint64_t)(whole ? t.shape[3] / PANEL : 1);
    const cuuint64_t width = (cuuint64_t)(whole ? PANEL : t.shape[3]);
    const cuuint64_t sizes[5] = {width, (cuuint64_t)t.shape[1], panels, (cuuint64_t)t.shape[2],
                                 (cuuint64_t)t.shape[0]};
    const cuuint64_t bytes[4] = {(cuuint64_t)t.stride[1] * 2, (cuuint64_t)(whole ? PANEL * 2 : 16),
                                 (cuuint64_t)t.stride[2] * 2, (cuuint64_t)t.stride[0] * 2};
    const cuuint32_t box[5] = {PANEL, (cuuint32_t)rows, (cuuint32_t)panels, 1, 1};
    const CUtensorMapDataType type =
        t.dtype == ATTN_BF16 ? MAP_TYPE<__nv_bfloat16> : MAP_TYPE<__half>;
    return encode_map(map, type, 5, t.data, sizes, bytes, box) ? ATTN_OK : ATTN_CUDA_ERROR;
}

/* C: the tile. stores: of dK and dV. At d = 256 two blocks share Q and dO, by panels. */
template <class C> static AttnStatus make_maps(PanelMaps *maps, const AttnArgs *a, bool stores)
{
    const Tensor *tensors[6] = {&a->Q, &a->K, &a->V, &a->dO, &a->dK, &a->dV};
    CUtensorMap *map[6] = {&maps->Q, &maps->K, &maps->V, &maps->dO, &maps->dK, &maps->dV};
    AttnStatus status = ATTN_OK;
    maps->copies = a->shape.d == C::D ? 1 : C::D / PANEL;
    for (int t = 0; t < (stores ? 6 : 4) && status == ATTN_OK; t++) {
        const bool queries = tensors[t] == &a->Q || tensors[t] == &a->dO;
        status = make_map(map[t], *tensors[t], queries ? C::Br : 64,
                          a->shape.d == C::D && !(queries && C::D == 256));
    }
    return status;
}

/* Block `index` where the tiles of keys of a section of heads are taken in turn, with those of a
 * head from first to last, or back. */
static __device__ __forceinline__ KeyBlock keys_in_sections(const AttnArgs &a, int Bc, int index,
                                                            const KeysWork &work)
{
    const int Hkv = (int)a.shape.Hkv, first = index / work.of_section * work.section;
    const int rest = index % work.of_section;
    const int here = min(work.section, (int)a.shape.B * Hkv - first);
    const int head = first + rest % here, j = rest / here;
    KeyBlock block;
    block.b = head / Hkv;
    block.h_kv = head % Hkv;
    block.j0 = (work.back ? work.of_head - 1 - j : j) * Bc;
    block.group = work.group;
    return block;
}

/* cp.async.bulk.tensor as in load_tile and store_tile, one panel of 64 channels. Channels from d on
 * are zeros, or left out (16 bytes at a time). */
static __device__ __forceinline__ void load_panel(uint32_t to_smem, const CUtensorMap *map,
                                                  int panel, int b, int h, int n, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to_smem),
                 "l"(map), "r"(barrier), "r"(panel * PANEL), "r"(n), "r"(0), "r"(h), "r"(b)
                 : "memory");
}

static __device__ __forceinline__ void store_panel(uint32_t from_smem, const CUtensorMap *map,
                                                   int panel, int b, int h, int n)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(from_smem),
                 "l"(map), "r"(panel * PANEL), "r"(n), "r"(0), "r"(h), "r"(b)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

static __device__ __forceinline__ BoxMaps boxes_of(const PanelMaps &maps)
{
    const int copies = maps.copies;
    return {{&maps.Q, copies},  {&maps.K, copies},  {&maps.V, copies},
            {&maps.dO, copies}, {&maps.dK, copies}, {&maps.dV, copies}};
}

/* ROWS rows of a head. UNROLLED: copies of the loop's body. At d = 256 all four, else the loop of
 * its tiles has 1,023 instructions for 800 (adds in any order; in order it has 847 either way).
 * Below, one, else the threads that load have too few registers. */
template <int ROWS, int UNROLLED = 1>
static __device__ __forceinline__ void load_box(uint32_t to, const BoxMap *box, int b, int h, int n,
                                                uint32_t barrier)
{
    if (box->copies == 1)
        load_tile(to, box->map, b, h, n, barrier);
    else
#pragma unroll UNROLLED
        for (int panel = 0; panel < box->copies; panel++)
            load_panel(to + panel * ROWS * PANEL * 2, box->map, panel, b, h, n, barrier);
}

static __device__ __forceinline__ void store_box(uint32_t from, const BoxMap *box, int b, int h,
                                                 int n)
{
    if (box->copies == 1)
        store_tile(from, box->map, b, h, n);
    else
        for (int panel = 0; panel < box->copies; panel++)
            store_panel(from + panel * 64 * PANEL * 2, box->map, panel, b, h, n);
}

/* Where K of a turn stands, with V behind it. */
template <class C> static __device__ __forceinline__ int place_of_K(int turn)
{
    return turn % 2 ? C::OTHER_K : C::K;
}

/* K and V: 64 keys of each consumer. */
template <class C>
static __device__ __forceinline__ void load_keys(const BoxMaps &maps, const KeyBlock &block,
                                                 uint32_t K, uint32_t barrier)
{
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        load_box<64>(K + half * C::BOX, &maps.K, block.b, block.h_kv, block.j0 + half * 64,
                     barrier);
        load_box<64>(K + C::V - C::K + half * C::BOX, &maps.V, block.b, block.h_kv,
                     block.j0 + half * 64, barrier);
    }
}

/* Q and its stats. stats: of the head, padded to whole 64 queries. So a tile of 128 may have to
 * take its first half twice: queries past the end are hidden. */
template <class C>
static __device__ __forceinline__ void load_Q(const BoxMaps &maps, int b, const KeyWalk &walk,
                                              const float2 *stats, int Nq, uint32_t smem, int stage)
{
    const uint32_t barrier = smem + C::Q_FULL + 8 * stage;
    const uint32_t to_stats = smem + C::STATS + stage * C::STATS_BYTES;
    barrier_expect(barrier, C::ROWS_BYTES + C::STATS_BYTES);
    load_box<C::Br>(smem + C::Q + stage * C::ROWS_BYTES, &maps.Q, b, walk.h, walk.i0, barrier);
    if (C::Br == 64 || walk.i0 + 64 < Nq) {
        load_bytes(to_stats, stats + walk.i0, C::STATS_BYTES, barrier);
    } else {
        load_bytes(to_stats, stats + walk.i0, 64 * 8, barrier);
        load_bytes(to_stats + 64 * 8, stats + walk.i0, 64 * 8, barrier);
    }
}

template <class C>
static __device__ __forceinline__ void load_dO(const BoxMaps &maps, int b, const KeyWalk &walk,
                                               uint32_t smem, int stage)
{
    const uint32_t barrier = smem + C::dO_FULL + 8 * stage;
    barrier_expect(barrier, C::ROWS_BYTES);
    load_box<C::Br>(smem + C::dO + stage * C::ROWS_BYTES, &maps.dO, b, walk.h, walk.i0, barrier);
}

/* What a turn works on, in shared memory: one thread works it out for all. */
struct KeyTask {
    KeyBlock block;
    KeyWalk walk;
    RowRange seen, full; /* of RowSight */
    RowRange before;     /* ORDERED: of rows_before */
    int exists;          /* 0: there are no more turns */
};
static_assert(sizeof(KeyTask) <= 64, "a task fits its place");

/* By all others: the task of this turn, once its keys are there. */
template <class C>
static __device__ __forceinline__ const KeyTask *task_of_turn(const unsigned char *smem_bytes,
                                                              int turn)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    barrier_wait(smem + C::KEYS_FULL + 8 * (turn % 2), turn / 2 % 2, WAIT_K);
    return (const KeyTask *)(smem_bytes + C::TASK) + turn % 2;
}

static __device__ __forceinline__ RowSight sight_of_task(const KeyTask &task, const RowRule &rule,
                                                         int Nk)
{
    return {&rule.turned,  Nk,       task.block.j0, rule.first_row, rule.end_row, task.full.begin,
            task.full.end, task.seen};
}

/* By one thread: the keys of one turn after another, and dO of its tiles, all as soon as their
 * place is free. The next ticket is drawn when all dO of a turn has been asked for: earlier,
 * another block could have had these keys, and with --deterministic others would wait for them. */
template <class C, bool ORDERED>
static __device__ __forceinline__ void produce_keys(const BoxMaps &maps, const AttnArgs &a,
                                                    const KeysWork &work, unsigned char *smem_bytes)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    int index = work.tickets ? atomicAdd(work.tickets, 1) : blockIdx.x, tile = 0;
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const uint32_t full = smem + C::KEYS_FULL + 8 * (turn % 2);
        barrier_wait(smem + C::KEYS_FREE + 8 * (turn % 2), turn / 2 % 2 ^ 1, WAIT_FREE_K);
        KeyTask *const task = (KeyTask *)(smem_bytes + C::TASK) + turn % 2;
        task->exists = index < work.count;
        if (index >= work.count) {
            barrier_arrive(full);
            break;
        }
        const KeyBlock block = keys_in_sections(a, C::Bc, index, work);
        load_keys<C>(maps, block, smem + place_of_K<C>(turn), full);
        const RowSight sight = sight_of(work.rule, (int)a.shape.Nk, block.j0, C::Bc);
        task->block = block;
        task->walk = start_walk<C>(block, sight.seen);
        task->seen = sight.seen;
        task->full = {sight.full_begin, sight.full_end};
        if (ORDERED)
            task->before = rows_before<C>(sight, block.j0, work.back);
        /* The copies are announced only now: this arrival also says that the task is there. */
        barrier_expect(full, 4 * C::BOX);
        KeyWalk walk = task->walk; /* again, from memory: so it takes no registers until here */
        const int b = task->block.b;
#pragma unroll 1
        for (const int end = tile + walk.count; tile < end; tile++) {
            barrier_wait(smem + C::dO_FREE + 8 * (tile % 2), tile / 2 % 2 ^ 1, WAIT_FREE_dO);
            load_dO<C>(maps, b, walk, smem, tile % 2);
            next_tile<C>(walk);
        }
        index = work.tickets ? atomicAdd(work.tickets, 1) : work.count;
    }
}

/* By another thread: Q and the stats of the tiles of all turns. */
template <class C>
static __device__ __forceinline__ void produce_Q(const BoxMaps &maps, const AttnArgs &a,
                                                 const Pass &pass, const unsigned char *smem_bytes)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int Nq = (int)a.shape.Nq;
    int tile = 0;
#pragma unroll 1
    for (int turn = 0; task_of_turn<C>(smem_bytes, turn)->exists; turn++) {
        const KeyTask *const task = (const KeyTask *)(smem_bytes + C::TASK) + turn % 2;
        const int b = task->block.b;
        KeyWalk walk = task->walk;
        barrier_arrive(smem + C::KEYS_FREE + 8 * (turn % 2));
#pragma unroll 1
        for (const int end = tile + walk.count; tile < end; tile++) {
            barrier_wait(smem + C::Q_FREE + 8 * (tile % 2), tile / 2 % 2 ^ 1, WAIT_FREE_Q);
            load_Q<C>(maps, b, walk, stats_of_head(pass, b * (int)a.shape.H + walk.h, Nq), Nq, smem,
                      tile % 2);
            next_tile<C>(walk);
        }
    }
}

/* By one thread for each warpgroup: the order of all turns. */
template <class C>
static __device__ __forceinline__ void keep_turns(const AttnArgs &a, const Pass &pass,
                                                  const KeysWork &work,
                                                  const unsigned char *smem_bytes, int warpgroup)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    int number = 0;
#pragma unroll 1
    for (int turn = 0; task_of_turn<C>(smem_bytes, turn)->exists; turn++) {
        const KeyTask task = ((const KeyTask *)(smem_bytes + C::TASK))[turn % 2];
        barrier_arrive(smem + C::KEYS_FREE + 8 * (turn % 2));
        number = keep_order<C>(a, pass, work.back, task.before, task.block, task.walk, smem,
                               warpgroup, 0, number);
    }
}

/* One of each for a warpgroup. They lie where a kernel with an order to keep has its barriers. */
template <class C> struct SumBarriers {
    static const int FULL = C::ORDER_OPEN, FREE = C::ORDER_DONE;
};

/* By one thread for each warpgroup: dV and dK of all turns to memory, one after the other from the
 * warpgroup's box of V, which nobody else reads. (Stores from registers keep a warpgroup from its
 * next turn until they are on their way.) */
template <class C>
static __device__ __forceinline__ void send_sums(const BoxMaps &maps, int Nk,
                                                 const unsigned char *smem_bytes, int warpgroup)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const uint32_t full = smem + SumBarriers<C>::FULL + 8 * warpgroup;
    const uint32_t free = smem + SumBarriers<C>::FREE + 8 * warpgroup;
#pragma unroll 1
    for (int turn = 0; task_of_turn<C>(smem_bytes, turn)->exists; turn++) {
        const KeyTask *const task = (const KeyTask *)(smem_bytes + C::TASK) + turn % 2;
        const uint32_t box = smem + place_of_K<C>(turn) + C::V - C::K + warpgroup * C::BOX;
        const int b = task->block.b, h = task->block.h_kv, j0 = task->block.j0 + 64 * warpgroup;
        barrier_wait(full, 0, WAIT_V);
        if (j0 < Nk)
            store_box(box, &maps.dV, b, h, j0);
        store_tiles_read();
        barrier_arrive(free);
        barrier_wait(full, 1, WAIT_V);
        barrier_arrive(free); /* seen; dV of the next turn has the other place */
        if (j0 < Nk)
            store_box(box, &maps.dK, b, h, j0);
        store_tiles_read();
        barrier_arrive(smem + C::KEYS_FREE + 8 * (turn % 2));
    }
}

/* P^T and dS^T of a tile. S is done, dP is still being multiplied. */
template <typename T, class C>
static __device__ __forceinline__ void
weigh_pairs(uint32_t (&P_factor)[C::Br / 16][4], uint32_t (&dS_factor)[C::Br / 16][4],
            float (&S)[C::Br / 8][4], float (&dP)[C::Br / 8][4], float scale_log2,
            const RowSight &sight, int i0, int j0, const float2 *stats)
{
    const int j = j0 + threadIdx.x % 256 / 32 * 16 + threadIdx.x % 32 / 4;
    if (!sees_all<C>(sight, i0))
        hide_pairs<C>(S, {rows_of_key(sight, j), rows_of_key(sight, j + 8)}, i0);
    exponentiate<C>(S, stats, scale_log2);
    wgmma_wait<0>(dP);
    multiply_by_P<C>(dP, S, stats);
    round_factor<T, C>(P_factor, S);
    round_factor<T, C>(dS_factor, dP);
}

/* 64 keys of dV or dK, times factor, to the box through which they leave. Before, a wait for the
 * sum before this one. For dK: dV has left the box. For dV: the sender has seen that dK of the turn
 * before is there; else FULL could end two phases, and to the sender that looks like none. parity:
 * a turn has two sums, dV first. The four warps do not meet here. That relies on a wgmma being one
 * operation of all four: V has been read when any of them has waited for it. */
template <typename T, class C>
static __device__ __forceinline__ void hand_over(const float (&sum)[C::D / 8][4], float factor,
                                                 unsigned char *box, uint32_t smem, int warpgroup,
                                                 int parity)
{
    barrier_wait(smem + SumBarriers<C>::FREE + 8 * warpgroup, parity, WAIT_FREE_V);
    round_keys<T, C>(sum, factor, box);
    fence_async();
    report(smem + SumBarriers<C>::FULL + 8 * warpgroup);
}

/* dK and dV of 64 keys over a walk; dQ is added, in order if ORDERED. SENT: they are handed over.
 * start: the number of its first tile, where tiles count on from turn to turn. */
template <typename T, class C, bool ORDERED, bool SENT>
static __device__ __forceinline__ void
consume_in_turns(float (&dK)[C::D / 8][4], float (&dV)[C::D / 8][4], const AttnArgs &a,
                 const Pass &pass, const RowSight &sight, const KeyBlock &block, KeyWalk walk,
                 unsigned char *smem_bytes, int warpgroup, int turn, int start, float scale_log2)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const uint32_t K = smem + place_of_K<C>(turn);
    const uint32_t my_K = K + warpgroup * C::BOX, my_V = my_K + C::V - C::K;
    const RowRange seeing = {sight.first_row, sight.end_row};
    const int Nq = (int)a.shape.Nq, H = (int)a.shape.H, last = start + walk.count - 1;
    /* dS_before: where dS of the tile before lies. The first tile of a turn has none before it:
     * that product reads K and V, and add_dQ drops it (dQ_before is NULL). SENT: it reads K alone,
     * since who has ended the turn writes to V; at d = 64 each warpgroup reads its half of dS. */
    uint32_t P_factor[C::Br / 16][4], dS_factor[C::Br / 16][4];
    uint32_t dS_before = K - (SENT && C::D == 64 ? warpgroup * C::dS_PANEL_BYTES : 0);
    float *dQ_before = NULL, *dQ_now; /* where dQ of the tile before is added, and of this one */
    start_sums<C>(dK, dV);
    wgmma_wait<0>(dK); /* nothing is in flight: it keeps the zeros in front of the products */
    wgmma_wait<0>(dV);
    if (warpgroup == 1 && last > start)
        threads_arrive(TURN, CONSUMER_THREADS);
    if (walk.count > 0) { /* S, dP, P and dS of the first tile */
        const int stage = start % 2, parity = start / 2 % 2;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        float S[C::Br / 8][4], dP[C::Br / 8][4];
        barrier_wait(smem + C::Q_FULL + 8 * stage, parity, WAIT_Q);
        barrier_wait(smem + C::dO_FULL + 8 * stage, parity, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + (Q - smem), seeing, walk.i0, Nq);
        clear_unseen_rows<C>(smem_bytes + (dO - smem), seeing, walk.i0, Nq);
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, Q);
        multiply_rows<T, C>(dP, my_V, dO);
        wgmma_wait<1>(S);
        weigh_pairs<T, C>(P_factor, dS_factor, S, dP, scale_log2, sight, walk.i0, block.j0,
                          (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES));
        /* Of the turn before. In the first two tiles of all, the barrier is fresh: we pass. */
        barrier_wait(smem + C::dS_FREE + 8 * stage, parity ^ 1, WAIT_FREE_dS);
        store_dS<C>(smem + C::dS + stage * C::dS_BYTES, dS_factor, warpgroup);
    }
#pragma unroll 1
    for (int tile = start; tile < last; tile++) {
        const int stage = tile % 2, next = 1 - stage, next_parity = (tile + 1) / 2 % 2;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        const uint32_t next_Q = smem + C::Q + next * C::ROWS_BYTES, next_dO = next_Q + C::dO - C::Q;
        const uint32_t next_dS = smem + C::dS + next * C::dS_BYTES; /* as dS of the tile before */
        const float2 *next_stats = (const float2 *)(smem_bytes + C::STATS + next * C::STATS_BYTES);
        float S[C::Br / 8][4], dP[C::Br / 8][4], dQ[8][4];
        dQ_now = dQ_slab<C>(pass.dQ_sum, block.b * H + walk.h, Nq, walk.i0, warpgroup);
        next_tile<C>(walk);
        /* Of the tile before; in the first tile of a turn it has come long ago, or the barrier is
         * fresh. (Not to ask then costs a branch, and the branch up to 3 % of the rate, in long
         * rows more.) */
        barrier_wait(smem + C::dS_FULL + 8 * next, next_parity ^ 1, WAIT_dS);
        threads_sync(TURN + warpgroup, CONSUMER_THREADS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS_before, K, warpgroup);
        dS_before = smem + C::dS + stage * C::dS_BYTES;
        add_product<T, C>(dV, P_factor, dO);
        add_product<T, C>(dK, dS_factor, Q);
        publish_dS<C>(smem, stage);
        wgmma_wait<2>(dQ);
        if (tile > 0)
            report(smem + C::dS_FREE + 8 * next);
        add_dQ_in_order<C, ORDERED>(dQ_before, dQ, smem, warpgroup, tile > start ? tile - 1 : -1);
        dQ_before = dQ_now;
        barrier_wait(smem + C::Q_FULL + 8 * next, next_parity, WAIT_Q);
        clear_unseen_rows<C>(smem_bytes + (next_Q - smem), seeing, walk.i0, Nq);
        wgmma_wait<1>(dV); /* P is read: room for S */
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, next_Q);
        barrier_wait(smem + C::dO_FULL + 8 * next, next_parity, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + (next_dO - smem), seeing, walk.i0, Nq);
        wgmma_wait<1>(dK); /* dS is read: room for dP */
        wgmma_begin();
        multiply_rows<T, C>(dP, my_V, next_dO);
        if (warpgroup == 0 || tile + 1 < last) /* behind the last one nobody would take it */
            threads_arrive(TURN + (1 - warpgroup), CONSUMER_THREADS);
        report(smem + C::dO_FREE + 8 * stage);
        report(smem + C::Q_FREE + 8 * stage);
        wgmma_wait<1>(S);
        weigh_pairs<T, C>(P_factor, dS_factor, S, dP, scale_log2, sight, walk.i0, block.j0,
                          next_stats);
        barrier_wait(smem + C::dS_FREE + 8 * next, next_parity ^ 1, WAIT_FREE_dS);
        store_dS<C>(next_dS, dS_factor, warpgroup);
    }
    if (walk.count > 0) { /* what is left: dQ of two tiles, dV and dK */
        const int stage = last % 2;
        const uint32_t dS = smem + C::dS + stage * C::dS_BYTES;
        float dQ[8][4];
        dQ_now = dQ_slab<C>(pass.dQ_sum, block.b * H + walk.h, Nq, walk.i0, warpgroup);
        barrier_wait(smem + C::dS_FULL + 8 * (1 - stage), (last + 1) / 2 % 2 ^ 1, WAIT_dS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS_before, K, warpgroup);
        add_product<T, C>(dV, P_factor, smem + C::dO + stage * C::ROWS_BYTES);
        add_product<T, C>(dK, dS_factor, smem + C::Q + stage * C::ROWS_BYTES);
        publish_dS<C>(smem, stage);
        wgmma_wait<2>(dQ);
        if (last > 0)
            report(smem + C::dS_FREE + 8 * (1 - stage));
        add_dQ_in_order<C, ORDERED>(dQ_before, dQ, smem, warpgroup, last > start ? last - 1 : -1);
        if (SENT) { /* while dK is still being multiplied */
            wgmma_wait<1>(dV);
            hand_over<T, C>(dV, 1.0f, smem_bytes + (my_V - smem), smem, warpgroup, 1);
        }
        barrier_wait(smem + C::dS_FULL + 8 * stage, last / 2 % 2, WAIT_dS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS, K, warpgroup);
        wgmma_wait<0>(dQ);
        report(smem + C::dO_FREE + 8 * stage);
        report(smem + C::Q_FREE + 8 * stage);
        report(smem + C::KEYS_FREE + 8 * (turn % 2));
        add_dQ_in_order<C, ORDERED>(dQ_now, dQ, smem, warpgroup, last);
    } else {
        report(smem + C::KEYS_FREE + 8 * (turn % 2));
        if (SENT)
            hand_over<T, C>(dV, 1.0f, smem_bytes + (my_V - smem), smem, warpgroup, 1);
    }
    wgmma_wait<0>(dK);
    wgmma_wait<0>(dV);
    if (SENT)
        hand_over<T, C>(dK, a.scale, smem_bytes + (my_V - smem), smem, warpgroup, 0);
}

/* Two neighbouring channels of a row of the sums. */
static __device__ __forceinline__ void add_pair(float *to, float low, float high, bool fresh)
{
    float2 *pair = reinterpret_cast<float2 *>(to);
    const float2 old = fresh ? make_float2(0.0f, 0.0f) : *pair;
    *pair = make_float2(old.x + low, old.y + high);
}

/* dK and dV of 64 keys from j0 on and CHANNELS channels from x0 on. No other block has them. */
template <int CHANNELS>
static __device__ __forceinline__ void
add_keys(const float (&dK)[CHANNELS / 8][4], const float (&dV)[CHANNELS / 8][4], const AttnArgs &a,
         const KeysWork &work, const KeyBlock &block, int j0, int x0)
{
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int d = (int)a.shape.d;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int j = j0 + 16 * warp + g + 8 * e;
        const int64_t row = ((block.b * a.shape.Nk + j) * a.shape.Hkv + block.h_kv) * d;
        if (j >= (int)a.shape.Nk)
            continue;
#pragma unroll
        for (int n = 0; n < CHANNELS / 8; n++) {
            const int x = x0 + 8 * n + 2 * t;
            if (x < d) {
                add_pair(work.sums.dK + row + x, dK[n][2 * e] * a.scale, dK[n][2 * e + 1] * a.scale,
                         work.fresh);
                add_pair(work.sums.dV + row + x, dV[n][2 * e], dV[n][2 * e + 1], work.fresh);
            }
        }
    }
}

/* 64 keys of dK or dV from j0 on, times factor, to their tensor: the four lanes of a row exchange
 * what they have of 32 channels, so that each writes 8 of its own. */
template <typename T, int D>
static __device__ __forceinline__ void store_keys(const Tensor &to, const float (&sum)[D / 8][4],
                                                  float factor, const KeyBlock &block, int j0)
{
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int j = j0 + 16 * warp + g + 8 * e;
        const bool exists = j < (int)to.shape[1];
        T *const row = (T *)to.data + (exists ? tensor_offset(&to, block.b, j, block.h_kv) : 0);
#pragma unroll
        for (int n = 0; n < D / 8; n += 4) {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = pack2<T>(sum[n + k][2 * e] * factor, sum[n + k][2 * e + 1] * factor);
            transpose_quad(w);
            if (exists && 8 * (n + t) < (int)to.shape[3])
                *reinterpret_cast<uint4 *>(row + 8 * (n + t)) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

template <typename T, class C, bool ORDERED, bool SENT>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    keys_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass,
                const __grid_constant__ PanelMaps maps, const __grid_constant__ KeysWork work)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        start_barriers<C>(smem);
        for (int place = 0; place < 2; place++) {
            barrier_init(smem + C::KEYS_FULL + 8 * place, 1);
            /* each warp that computes, who loads Q, and who keep the order or send dV and dK */
            barrier_init(smem + C::KEYS_FREE + 8 * place,
                         CONSUMER_THREADS / 32 + (ORDERED || SENT ? 3 : 1));
            if (SENT) {
                barrier_init(smem + SumBarriers<C>::FULL + 8 * place, CONSUMER_THREADS / 64);
                barrier_init(smem + SumBarriers<C>::FREE + 8 * place, 1);
            }
        }
        if (ORDERED)
            start_order<C>(smem);
        barrier_init_done();
    }
    __syncthreads();
    if (warpgroup == PRODUCER) {
        const int warp = threadIdx.x % 128 / 32;
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 32 == 0) { /* a thread of each warp has a task of its own */
            if (warp == 3)
                produce_keys<C, ORDERED>(boxes_of(maps), a, work, smem_bytes);
            else if (warp == 2)
                produce_Q<C>(boxes_of(maps), a, pass, smem_bytes);
            else if (ORDERED)
                keep_turns<C>(a, pass, work, smem_bytes, warp);
            else if (SENT)
                send_sums<C>(boxes_of(maps), (int)a.shape.Nk, smem_bytes, warp);
        }
    } else {
        float dK[C::D / 8][4], dV[C::D / 8][4];
        registers_take<CONSUMER_REGISTERS>();
        /* Plus 0, which the compiler does not know to be the same in all lanes. Else it keeps the
         * factor in a uniform register, and half of the multiply-adds in front of exp2 read two
         * registers of one bank. (No time has shown it yet.) */
        const float scale_log2 = a.scale * (float)M_LOG2E + (float)threadIdx.y;
#pragma unroll 1
        for (int turn = 0, start = 0; task_of_turn<C>(smem_bytes, turn)->exists; turn++) {
            const KeyTask task = ((const KeyTask *)(smem_bytes + C::TASK))[turn % 2];
            const KeyBlock block = task.block;
            const KeyWalk walk = task.walk;
            const RowSight sight = sight_of_task(task, work.rule, (int)a.shape.Nk);
            consume_in_turns<T, C, ORDERED, SENT>(dK, dV, a, pass, sight, block, walk, smem_bytes,
                                                  warpgroup, turn, start, scale_log2);
            start += walk.count;
            if (SENT)
                continue;
            if (work.sums.dK) {
                add_keys<C::D>(dK, dV, a, work, block, block.j0 + 64 * warpgroup, 0);
            } else {
                store_keys<T, C::D>(a.dK, dK, a.scale, block, block.j0 + 64 * warpgroup);
                store_keys<T, C::D>(a.dV, dV, 1.0f, block, block.j0 + 64 * warpgroup);
            }
        }
    }
}

} // namespace hopper_backward

#endif
