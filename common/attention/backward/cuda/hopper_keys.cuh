/* SPDX-License-Identifier: MIT
 *
 * hopper_keys.cuh: the loop of rung v12, which says why it is so, for all that the library is
 * asked: positions that grow (row_rule.cuh), head dimensions below that of the tile, dK and dV as
 * sums in float32, a fixed order of sums (ordered_dq.cuh).
 *
 * Head dimensions. The copy engine fills channels from d on with zeros, and leaves them out on the
 * way back, 16 bytes at a time: d is a multiple of 8. For that a map has the channels of a head as
 * one dimension, and a box takes one copy for each 64 of them.
 *
 * Interface:
 * - KeysWork: what a launch works on. make_maps (host). readable (host): by the copy engine.
 * - load_Q, load_dO: orders to the copy engine. add_keys: dK and dV to the sums.
 * - keys_kernel: d up to 64 and 128.
 */
#ifndef FLASH_BACKWARD_HOPPER_KEYS_CUH
#define FLASH_BACKWARD_HOPPER_KEYS_CUH

#include "attention/backward/backward_library.h"
#include "hopper_pass.cuh"
#include "ordered_dq.cuh"
#include "row_rule.cuh"

namespace hopper_backward
{

struct KeysWork {
    RowRule rule;
    FlashSums sums; /* dK NULL: into the tensors */
    bool fresh;     /* the sums have nothing yet and are not read */
    int section;    /* of keys_in_sections */
    bool back;
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

/* Boxes of 64 rows. whole: all panels, as in make_tile_map; else [channels], row, 1, head, batch,
 * and a box for each panel. */
static AttnStatus make_map(CUtensorMap *map, Tensor t, bool whole)
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
    const cuuint32_t box[5] = {PANEL, 64, (cuuint32_t)panels, 1, 1};
    const CUtensorMapDataType type =
        t.dtype == ATTN_BF16 ? MAP_TYPE<__nv_bfloat16> : MAP_TYPE<__half>;
    return encode_map(map, type, 5, t.data, sizes, bytes, box) ? ATTN_OK : ATTN_CUDA_ERROR;
}

/* At d = 256 two blocks share Q and dO, by panels. */
static AttnStatus make_maps(PanelMaps *maps, const AttnArgs *a, int D, bool sums)
{
    const Tensor *tensors[6] = {&a->Q, &a->K, &a->V, &a->dO, &a->dK, &a->dV};
    CUtensorMap *map[6] = {&maps->Q, &maps->K, &maps->V, &maps->dO, &maps->dK, &maps->dV};
    AttnStatus status = ATTN_OK;
    maps->copies = a->shape.d == D ? 1 : D / PANEL;
    for (int t = 0; t < (sums ? 4 : 6) && status == ATTN_OK; t++) {
        const bool halved = D == 256 && (tensors[t] == &a->Q || tensors[t] == &a->dO);
        status = make_map(map[t], *tensors[t], a->shape.d == D && !halved);
    }
    return status;
}

/* Block `index` where the tiles of keys of `section` heads are taken in turn, with those of a head
 * from first to last, or back. */
static __device__ __forceinline__ KeyBlock keys_in_sections(const AttnArgs &a, int Bc, int index,
                                                            int section, bool back)
{
    const int tiles = divide_up((int)a.shape.Nk, Bc), Hkv = (int)a.shape.Hkv;
    const int first = index / (tiles * section) * section, rest = index - first * tiles;
    const int here = min(section, (int)a.shape.B * Hkv - first);
    const int head = first + rest % here, j = rest / here;
    KeyBlock block;
    block.b = head / Hkv;
    block.h_kv = head % Hkv;
    block.j0 = (back ? tiles - 1 - j : j) * Bc;
    block.group = (int)a.shape.H / Hkv;
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

/* 64 rows of a head. */
static __device__ __forceinline__ void load_box(uint32_t to, const BoxMap *box, int b, int h, int n,
                                                uint32_t barrier)
{
    if (box->copies == 1)
        load_tile(to, box->map, b, h, n, barrier);
    else
        for (int panel = 0; panel < box->copies; panel++)
            load_panel(to + panel * 64 * PANEL * 2, box->map, panel, b, h, n, barrier);
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

/* K and V: 64 keys of each consumer. */
template <class C>
static __device__ __forceinline__ void load_keys(const BoxMaps &maps, const KeyBlock &block,
                                                 uint32_t smem)
{
    barrier_expect(smem + C::KV_FULL, 4 * C::BOX);
    for (int half = 0; half < 2; half++) {
        load_box(smem + C::K + half * C::BOX, &maps.K, block.b, block.h_kv, block.j0 + half * 64,
                 smem + C::KV_FULL);
        load_box(smem + C::V + half * C::BOX, &maps.V, block.b, block.h_kv, block.j0 + half * 64,
                 smem + C::KV_FULL);
    }
}

/* Q and its stats. stats: of the head. Stats end with 64 queries; a tile of 128 may have to take
 * its first half twice: queries past the end are hidden. */
template <class C>
static __device__ __forceinline__ void load_Q(const BoxMaps &maps, const KeyBlock &block,
                                              const KeyWalk &walk, const float2 *stats, int Nq,
                                              uint32_t smem, int stage)
{
    const uint32_t barrier = smem + C::Q_FULL + 8 * stage;
    barrier_expect(barrier, C::ROWS_BYTES + C::STATS_BYTES);
    for (int n = 0; n < C::Br; n += 64) {
        const int i = walk.i0 + n;
        load_box(smem + C::Q + stage * C::ROWS_BYTES + n / 64 * C::BOX, &maps.Q, block.b, walk.h, i,
                 barrier);
        load_bytes(smem + C::STATS + stage * C::STATS_BYTES + n * 8, stats + (i < Nq ? i : walk.i0),
                   64 * 8, barrier);
    }
}

template <class C>
static __device__ __forceinline__ void load_dO(const BoxMaps &maps, const KeyBlock &block,
                                               const KeyWalk &walk, uint32_t smem, int stage)
{
    const uint32_t barrier = smem + C::dO_FULL + 8 * stage;
    barrier_expect(barrier, C::ROWS_BYTES);
    for (int n = 0; n < C::Br; n += 64)
        load_box(smem + C::dO + stage * C::ROWS_BYTES + n / 64 * C::BOX, &maps.dO, block.b, walk.h,
                 walk.i0 + n, barrier);
}

/* By the producer: all tiles, each as soon as its stage is free. */
template <class C>
static __device__ __forceinline__ void produce(const BoxMaps &maps, const KeyBlock &block,
                                               const Pass &pass, int H, int Nq, KeyWalk walk,
                                               uint32_t smem)
{
    load_keys<C>(maps, block, smem);
#pragma unroll 1
    for (int tile = 0; tile < walk.count; tile++) {
        const int stage = tile % 2, before = tile / 2 % 2 ^ 1;
        barrier_wait(smem + C::Q_FREE + 8 * stage, before, WAIT_FREE_Q);
        load_Q<C>(maps, block, walk, stats_of_head(pass, block.b * H + walk.h, Nq), Nq, smem,
                  stage);
        barrier_wait(smem + C::dO_FREE + 8 * stage, before, WAIT_FREE_dO);
        load_dO<C>(maps, block, walk, smem, stage);
        next_tile<C>(walk);
    }
}

/* P^T and dS^T of a tile. S is done, dP is still being multiplied. */
template <typename T, class C>
static __device__ __forceinline__ void
weigh_pairs(uint32_t (&P_factor)[C::Br / 16][4], uint32_t (&dS_factor)[C::Br / 16][4],
            float (&S)[C::Br / 8][4], float (&dP)[C::Br / 8][4], float scale, const RowSight &sight,
            int i0, int j0, const float2 *stats)
{
    const int j = j0 + threadIdx.x % 256 / 32 * 16 + threadIdx.x % 32 / 4;
    if (!sees_all<C>(sight, i0))
        hide_pairs<C>(S, {rows_of_key(sight, j), rows_of_key(sight, j + 8)}, i0);
    exponentiate<C>(S, stats, scale * (float)M_LOG2E);
    wgmma_wait<0>(dP);
    multiply_by_P<C>(dP, S, stats);
    round_factor<T, C>(P_factor, S);
    round_factor<T, C>(dS_factor, dP);
}

/* dK and dV of 64 keys over a walk; dQ is added, in order if ORDERED. */
template <typename T, class C, bool ORDERED>
static __device__ __forceinline__ void
consume_in_turns(float (&dK)[C::D / 8][4], float (&dV)[C::D / 8][4], const AttnArgs &a,
                 const Pass &pass, const RowSight &sight, const KeyBlock &block, KeyWalk walk,
                 unsigned char *smem_bytes, int warpgroup)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const uint32_t my_K = smem + C::K + warpgroup * C::BOX, my_V = my_K + C::V - C::K;
    const RowRange seeing = {sight.first_row, sight.end_row};
    const int Nq = (int)a.shape.Nq, H = (int)a.shape.H, last = walk.count - 1;
    /* dS_before: where dS of the tile before lies; in front of the first tile K. */
    uint32_t P_factor[C::Br / 16][4], dS_factor[C::Br / 16][4], dS_before = C::K;
    float *dQ_before = NULL, *dQ_now; /* where dQ of the tile before is added, and of this one */
    start_sums<C>(dK, dV);
    wgmma_wait<0>(dK); /* nothing is in flight: it keeps the zeros in front of the products */
    wgmma_wait<0>(dV);
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
    if (warpgroup == 1 && last > 0)
        threads_arrive(TURN, CONSUMER_THREADS);
    if (walk.count > 0) { /* S, dP, P and dS of the first tile */
        float S[C::Br / 8][4], dP[C::Br / 8][4];
        barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
        barrier_wait(smem + C::dO_FULL, 0, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + C::Q, seeing, walk.i0, Nq);
        clear_unseen_rows<C>(smem_bytes + C::dO, seeing, walk.i0, Nq);
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, smem + C::Q);
        multiply_rows<T, C>(dP, my_V, smem + C::dO);
        wgmma_wait<1>(S);
        weigh_pairs<T, C>(P_factor, dS_factor, S, dP, a.scale, sight, walk.i0, block.j0,
                          (const float2 *)(smem_bytes + C::STATS));
        store_dS<C>(smem + C::dS, dS_factor, warpgroup);
    }
#pragma unroll 1
    for (int tile = 0; tile < last; tile++) {
        const int stage = tile % 2, next = 1 - stage, next_parity = (tile + 1) / 2 % 2;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        const uint32_t next_Q = smem + C::Q + next * C::ROWS_BYTES, next_dO = next_Q + C::dO - C::Q;
        const uint32_t next_dS = smem + C::dS + next * C::dS_BYTES; /* as dS of the tile before */
        const float2 *next_stats = (const float2 *)(smem_bytes + C::STATS + next * C::STATS_BYTES);
        float S[C::Br / 8][4], dP[C::Br / 8][4], dQ[8][4];
        dQ_now = dQ_slab<C>(pass.dQ_sum, block.b * H + walk.h, Nq, walk.i0, warpgroup);
        next_tile<C>(walk);
        if (tile > 0)
            barrier_wait(smem + C::dS_FULL + 8 * next, next_parity ^ 1, WAIT_dS);
        threads_sync(TURN + warpgroup, CONSUMER_THREADS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, smem + dS_before, smem + C::K, warpgroup);
        dS_before = C::dS + stage * C::dS_BYTES;
        add_product<T, C>(dV, P_factor, dO);
        add_product<T, C>(dK, dS_factor, Q);
        publish_dS<C>(smem, stage);
        wgmma_wait<2>(dQ);
        if (tile > 0)
            report(smem + C::dS_FREE + 8 * next);
        add_dQ_in_order<C, ORDERED>(dQ_before, dQ, smem, warpgroup, tile - 1);
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
        weigh_pairs<T, C>(P_factor, dS_factor, S, dP, a.scale, sight, walk.i0, block.j0,
                          next_stats);
        if (tile > 0)
            barrier_wait(smem + C::dS_FREE + 8 * next, next_parity ^ 1, WAIT_FREE_dS);
        store_dS<C>(next_dS, dS_factor, warpgroup);
    }
    if (walk.count > 0) { /* what is left: dQ of two tiles, dV and dK */
        const int stage = last % 2;
        const uint32_t dS = smem + C::dS + stage * C::dS_BYTES;
        float dQ[8][4];
        dQ_now = dQ_slab<C>(pass.dQ_sum, block.b * H + walk.h, Nq, walk.i0, warpgroup);
        if (last > 0)
            barrier_wait(smem + C::dS_FULL + 8 * (1 - stage), (last - 1) / 2 % 2, WAIT_dS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, smem + dS_before, smem + C::K, warpgroup);
        add_product<T, C>(dV, P_factor, smem + C::dO + stage * C::ROWS_BYTES);
        add_product<T, C>(dK, dS_factor, smem + C::Q + stage * C::ROWS_BYTES);
        publish_dS<C>(smem, stage);
        wgmma_wait<2>(dQ);
        add_dQ_in_order<C, ORDERED>(dQ_before, dQ, smem, warpgroup, last - 1);
        barrier_wait(smem + C::dS_FULL + 8 * stage, last / 2 % 2, WAIT_dS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS, smem + C::K, warpgroup);
        wgmma_wait<0>(dQ);
        add_dQ_in_order<C, ORDERED>(dQ_now, dQ, smem, warpgroup, last);
    }
    wgmma_wait<0>(dK);
    wgmma_wait<0>(dV);
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

/* dK and dV of this warpgroup's keys, through the place of K and V, which all consumers have
 * read. Rows past the end are left out. */
template <typename T, class C>
static __device__ __forceinline__ void store_gradients(const float (&dK)[C::D / 8][4],
                                                       const float (&dV)[C::D / 8][4], float scale,
                                                       const BoxMaps &maps, const KeyBlock &block,
                                                       int Nk, unsigned char *smem, int warpgroup)
{
    unsigned char *K = smem + C::K + warpgroup * C::BOX, *V = smem + C::V + warpgroup * C::BOX;
    const int j = block.j0 + 64 * warpgroup;
    threads_sync(CONSUMERS_MEET, CONSUMER_THREADS);
    round_keys<T, C>(dK, scale, K);
    round_keys<T, C>(dV, 1.0f, V);
    fence_async();
    threads_sync(1 + warpgroup, 128);
    if (threadIdx.x % 128 == 0 && j < Nk) {
        store_box((uint32_t)__cvta_generic_to_shared(K), &maps.dK, block.b, block.h_kv, j);
        store_box((uint32_t)__cvta_generic_to_shared(V), &maps.dV, block.b, block.h_kv, j);
        store_tiles_read(); /* a block may not end before */
    }
}

template <typename T, class C, bool ORDERED>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    keys_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass,
                const __grid_constant__ PanelMaps maps, const __grid_constant__ KeysWork work)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        start_barriers<C>(smem);
        if (ORDERED)
            start_order<C>(smem_bytes, a, pass);
    }
    __syncthreads();
    const int index = ORDERED ? *(const int *)(smem_bytes + C::TICKET) : blockIdx.x;
    const KeyBlock block = keys_in_sections(a, C::Bc, index, work.section, work.back);
    const BoxMaps boxes = boxes_of(maps);
    const RowSight sight = sight_of(work.rule, (int)a.shape.Nk, block.j0, C::Bc);
    KeyWalk walk = start_walk<C>(block, sight.seen);
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            produce<C>(boxes, block, pass, (int)a.shape.H, (int)a.shape.Nq, walk, smem);
        else if (ORDERED && threadIdx.x % 32 == 0 && threadIdx.x % 128 <= 64)
            keep_order<C>(a, pass, work.back, sight, block, walk, smem, threadIdx.x % 128 / 32 - 1);
    } else {
        float dK[C::D / 8][4], dV[C::D / 8][4];
        registers_take<CONSUMER_REGISTERS>();
        consume_in_turns<T, C, ORDERED>(dK, dV, a, pass, sight, block, walk, smem_bytes, warpgroup);
        if (work.sums.dK)
            add_keys<C::D>(dK, dV, a, work, block, block.j0 + 64 * warpgroup, 0);
        else
            store_gradients<T, C>(dK, dV, a.scale, boxes, block, sight.Nk, smem_bytes, warpgroup);
    }
}

} // namespace hopper_backward

#endif
