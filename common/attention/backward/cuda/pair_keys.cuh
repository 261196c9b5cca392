/* SPDX-License-Identifier: MIT
 *
 * pair_keys.cuh: gradients on Hopper for d = 256: the loop of rung v14, which says why it is so,
 * for all that the library is asked, as hopper_keys.cuh has that of v12.
 *
 * A pair of blocks has 128 keys, one walk, and one place in the order of ordered_dq.cuh. What a
 * block hides, it hides for its own 64 keys. Of an odd number of blocks the last one has no keys:
 * all its scores are hidden, and nothing is stored. Q and dO come a panel at a time, whatever d is.
 *
 * Interface:
 * - pair_kernel: two blocks, a cluster, for each 128 keys.
 */
#ifndef FLASH_BACKWARD_PAIR_KEYS_CUH
#define FLASH_BACKWARD_PAIR_KEYS_CUH

#include "hopper_keys.cuh"
#include "units/wgmma_pair.cuh"

namespace hopper_backward
{

/* What a consumer knows of its block, from tile to tile. */
struct Consumer {
    RowSight sight; /* of its own keys */
    float scale_log2;
    int rank, warpgroup;
    uint32_t there; /* the other block's shared memory */
};

/* ld.shared::cluster. An address of the own block will do, too. */
static __device__ __forceinline__ int read_there(uint32_t from)
{
    int value;
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

/* This block's half of 64 rows, for both. */
static __device__ __forceinline__ void load_half(uint32_t to, const CUtensorMap *map, int b, int h,
                                                 int n, int rank, uint32_t barrier)
{
#pragma unroll
    for (int panel = 2 * rank; panel < 2 * rank + 2; panel++)
        load_for_both(to + panel * PairKeys::PANEL_BYTES, map, b, h, n, panel * PANEL, 0, barrier);
}

static __device__ __forceinline__ void produce_pair(const BoxMaps &maps, const KeyBlock &block,
                                                    const Pass &pass, int H, int Nq, KeyWalk walk,
                                                    uint32_t smem, int rank)
{
    typedef PairKeys C;
    const uint32_t dO_full = smem + C::dO_FULL;
    barrier_expect(smem + C::KV_FULL, 2 * C::BOX);
    load_box<64, 4>(smem + C::K, &maps.K, block.b, block.h_kv, block.j0, smem + C::KV_FULL);
    load_box<64, 4>(smem + C::V, &maps.V, block.b, block.h_kv, block.j0, smem + C::KV_FULL);
#pragma unroll 1
    for (int tile = 0; tile < walk.count; tile++) {
        const int stage = tile % 2;
        const uint32_t Q_full = smem + C::Q_FULL + 8 * stage;
        barrier_wait(smem + C::Q_FREE + 8 * stage, tile / 2 % 2 ^ 1, WAIT_FREE_Q);
        barrier_expect(Q_full, C::ROWS_BYTES + C::STATS_BYTES);
        load_half(smem + C::Q + stage * C::ROWS_BYTES, maps.Q.map, block.b, walk.h, walk.i0, rank,
                  Q_full);
        load_bytes(smem + C::STATS + stage * C::STATS_BYTES,
                   stats_of_head(pass, block.b * H + walk.h, Nq) + walk.i0, C::STATS_BYTES, Q_full);
        barrier_wait(smem + C::dO_FREE, tile % 2 ^ 1, WAIT_FREE_dO);
        barrier_expect(dO_full, C::ROWS_BYTES);
        load_half(smem + C::dO, maps.dO.map, block.b, walk.h, walk.i0, rank, dO_full);
        next_tile<C>(walk);
    }
}

/* The half of K that the other block needs, and dS of every tile. */
static __device__ __forceinline__ void send(int tiles, uint32_t smem, uint32_t there, int rank)
{
    typedef PairKeys C;
    if (tiles == 0) /* the consumers write dK over K at once, so K may not be read */
        return;
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
    expect_there(there + C::K_IN_FULL, C::BOX / 2);
    copy_there(there + C::K_IN, smem + C::K + (1 - rank) * (C::BOX / 2), C::BOX / 2,
               there + C::K_IN_FULL);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        const int place = tile % 2;
        barrier_wait(smem + C::OUT_FULL + 8 * place, tile / 2 % 2, WAIT_dS);
        expect_there(there + C::IN_FULL + 8 * place, C::SCORES_BYTES);
        copy_there(there + C::dS_IN + place * C::SCORES_BYTES,
                   smem + C::dS + place * C::SCORES_BYTES, C::SCORES_BYTES,
                   there + C::IN_FULL + 8 * place);
    }
}

/* S has come: P^T of the tile at i0, in place, as a factor and in shared memory. */
template <typename T>
static __device__ __forceinline__ void weigh(uint32_t (&P)[2][4], float (&S)[4][4],
                                             const Consumer &c, int i0, unsigned char *smem_bytes,
                                             int stage)
{
    typedef PairKeys C;
    const int j = c.sight.j0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const float2 *stats =
        (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES) + 32 * c.warpgroup;
    if (!sees_all<C>(c.sight, i0))
        hide_pairs<PairRows>(S, {rows_of_key(c.sight, j), rows_of_key(c.sight, j + 8)},
                             i0 + 32 * c.warpgroup);
    exponentiate<PairRows>(S, stats, c.scale_log2);
    store_half<T>(P, (uint32_t)__cvta_generic_to_shared(smem_bytes) + C::P, S, c.warpgroup);
    threads_arrive(P_OF + c.warpgroup, CONSUMER_THREADS);
}

/* One tile; of the next one S, P and the beginning of dP. add: where dQ of the tile before is
 * added, or NULL. LAST: there is no next one. */
template <typename T, bool ORDERED, bool LAST>
static __device__ __forceinline__ void
walk_tile(uint32_t (&P)[2][4], float (&S)[4][4], float (&dP)[4][4], float (&dQ)[8][4],
          float (&dK)[16][4], float (&dV)[16][4], const Consumer &c, int tile, int i_next, int Nq,
          float *add, unsigned char *smem_bytes)
{
    typedef Ordered<PairKeys> C;
    uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes), dS_factor[2][4];
    asm volatile(
        ""
        : "+r"(smem)); /* descriptors are computed anew in each tile: none stays in registers */
    const int stage = tile % 2, next = 1 - stage, parity = tile / 2 % 2, other = 1 - c.warpgroup;
    const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES,
                   dS = smem + C::dS + stage * C::SCORES_BYTES;
    const float2 *stats =
        (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES) + 32 * c.warpgroup;
    const RowRange seeing = {c.sight.first_row, c.sight.end_row};
    wgmma_wait<0>(dP);
    wgmma_begin();
    add_own_queries<T>(dV, P, smem + C::dO, c.warpgroup);
    threads_sync(P_OF + other, CONSUMER_THREADS);
    add_other_queries<T>(dV, smem + C::P, smem + C::dO, c.warpgroup);
    multiply_by_P<PairRows>(dP, S, stats);
    store_half<T>(dS_factor, dS, dP, c.warpgroup);
    report(smem + C::OUT_FULL + 8 * stage);
    if (!LAST) {
        barrier_wait(smem + C::Q_FULL + 8 * next, (tile + 1) / 2 % 2, WAIT_Q);
        clear_unseen_rows<C>(smem_bytes + C::Q + next * C::ROWS_BYTES, seeing, i_next, Nq);
        wgmma_begin();
        multiply_half<T>(S, smem + C::K, smem + C::Q + next * C::ROWS_BYTES, c.warpgroup);
    }
    wgmma_wait<LAST ? 0 : 1>(dV);
    report_to_both(smem, c.there, C::dO_FREE);
    threads_arrive(dS_OF + c.warpgroup,
                   CONSUMER_THREADS); /* also: this one has read the other's P */
    if (c.warpgroup == 0)
        add_dQ_in_order<C, ORDERED>(add, dQ, smem, 0, tile - 1);
    wgmma_begin();
    add_own_queries<T>(dK, dS_factor, Q, c.warpgroup);
    threads_sync(dS_OF + other, CONSUMER_THREADS);
    add_other_queries<T>(dK, dS, Q, c.warpgroup);
    if (c.warpgroup == 1)
        add_dQ_in_order<C, ORDERED>(add, dQ, smem, 1, tile - 1);
    barrier_wait(smem + C::IN_FULL + 8 * stage, parity, WAIT_dS);
    wgmma_begin();
    multiply_dS_K_of_both<T>(dQ, smem, stage, c.rank, c.warpgroup);
    if (!LAST) {
        wgmma_wait<2>(S);
        weigh<T>(P, S, c, i_next, smem_bytes, next);
    }
    wgmma_wait<1>(dK);
    report_to_both(smem, c.there, C::Q_FREE + 8 * stage);
    if (!LAST) {
        barrier_wait(smem + C::dO_FULL, (tile + 1) % 2, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + C::dO, seeing, i_next, Nq);
        wgmma_begin();
        multiply_half<T>(dP, smem + C::V, smem + C::dO, c.warpgroup);
    }
    wgmma_wait<LAST ? 0 : 1>(dQ);
}

/* Where this warp's slab of dQ is added up. head: b * H + h. */
static __device__ __forceinline__ float *slab_of(const Pass &pass, int head, int Nq,
                                                 const Consumer &c, int i0)
{
    const int warp = threadIdx.x % 128 / 32, panels = PairKeys::D / 64;
    const int64_t tile = (int64_t)head * divide_up(Nq, 64) + i0 / 64;
    return pass.dQ_sum + tile * (64 * PairKeys::D) +
           (warp * panels + 2 * c.rank + c.warpgroup) * (16 * 64);
}

/* dK and dV of 64 keys over a walk; dQ is added, in order if ORDERED. head: b * H. */
template <typename T, bool ORDERED>
static __device__ __forceinline__ void consume_pair(float (&dK)[16][4], float (&dV)[16][4],
                                                    const Pass &pass, const Consumer &c, int head,
                                                    int Nq, KeyWalk walk, unsigned char *smem_bytes)
{
    typedef Ordered<PairKeys> C;
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const RowRange seeing = {c.sight.first_row, c.sight.end_row};
    const int last = walk.count - 1;
    uint32_t P[2][4];
    float S[4][4], dP[4][4], dQ[8][4], *add = NULL;
    start_sums<PairChannels>(dK, dV);
    wgmma_wait<0>(dK); /* nothing is in flight; it keeps the compiler from moving the zeros */
    wgmma_wait<0>(dV);
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K); /* without tiles, too: dK is written there */
    if (walk.count == 0)
        return;
    barrier_wait(smem + C::K_IN_FULL, 0, WAIT_K);
    barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
    barrier_wait(smem + C::dO_FULL, 0, WAIT_dO);
    clear_unseen_rows<C>(smem_bytes + C::Q, seeing, walk.i0, Nq);
    clear_unseen_rows<C>(smem_bytes + C::dO, seeing, walk.i0, Nq);
    wgmma_begin();
    multiply_half<T>(S, smem + C::K, smem + C::Q, c.warpgroup);
    multiply_half<T>(dP, smem + C::V, smem + C::dO, c.warpgroup);
    wgmma_wait<1>(S);
    weigh<T>(P, S, c, walk.i0, smem_bytes, 0);
#pragma unroll 1
    for (int tile = 0; tile < last; tile++) {
        float *const before = add;
        add = slab_of(pass, head + walk.h, Nq, c, walk.i0);
        next_tile<C>(walk);
        walk_tile<T, ORDERED, false>(P, S, dP, dQ, dK, dV, c, tile, walk.i0, Nq, before,
                                     smem_bytes);
    }
    walk_tile<T, ORDERED, true>(P, S, dP, dQ, dK, dV, c, last, 0, Nq, add, smem_bytes);
    add_dQ_in_order<C, ORDERED>(slab_of(pass, head + walk.h, Nq, c, walk.i0), dQ, smem, c.warpgroup,
                                last);
}

/* dK and dV through the place of K and V, each warpgroup its panels. */
template <typename T>
static __device__ __forceinline__ void
store_pair(const float (&dK)[16][4], const float (&dV)[16][4], float scale, const BoxMaps &maps,
           const KeyBlock &block, int Nk, unsigned char *smem_bytes, int warpgroup)
{
    typedef PairKeys C;
    unsigned char *K = smem_bytes + C::K + 2 * warpgroup * C::PANEL_BYTES;
    threads_sync(CONSUMERS_MEET,
                 CONSUMER_THREADS); /* nobody reads K and V: the other block has its half of K */
    round_keys<T, PairChannels>(dK, scale, K);
    round_keys<T, PairChannels>(dV, 1.0f, K + C::V - C::K);
    fence_async();
    threads_sync(CONSUMERS_MEET, CONSUMER_THREADS);
    if (threadIdx.x == 0 && block.j0 < Nk) {
        const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
        store_box(smem + C::K, &maps.dK, block.b, block.h_kv, block.j0);
        store_box(smem + C::V, &maps.dV, block.b, block.h_kv, block.j0);
        store_tiles_read();
    }
}

template <typename T, bool ORDERED>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    pair_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass,
                const __grid_constant__ PanelMaps maps, const __grid_constant__ KeysWork work)
{
    typedef Ordered<PairKeys> C;
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), rank = blockIdx.x % 2;
    const int H = (int)a.shape.H, Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
    const uint32_t there = cluster_address(smem, 1 - rank);
    if (threadIdx.x == 0) {
        start_pair_barriers(smem);
        if (ORDERED) {
            start_order<C>(smem);
            barrier_init_done();
            if (rank == 0)
                *(int *)(smem_bytes + C::TICKET) = atomicAdd(work.tickets, 1);
        }
    }
    cluster_arrive();
    cluster_wait(); /* the other block has begun, its barriers are made, and block 0 has a ticket */
    const int index = ORDERED ? read_there(cluster_address(smem, 0) + C::TICKET) : blockIdx.x / 2;
    /* The walk is that of both blocks' keys. */
    const KeyBlock pair = keys_in_sections(a, C::WALK_KEYS, index, work);
    const RowSight sight = sight_of(work.rule, Nk, pair.j0, C::WALK_KEYS);
    const KeyWalk walk = start_walk<C>(pair, sight.seen);
    const BoxMaps boxes = boxes_of(maps);
    KeyBlock block = pair;
    block.j0 += rank * C::Bc;
    if (warpgroup == PRODUCER) {
        const int warp = threadIdx.x % 128 / 32;
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 32 == 0 && warp == 0)
            produce_pair(boxes, block, pass, H, Nq, walk, smem, rank);
        else if (threadIdx.x % 32 == 0 && warp == 1)
            send(walk.count, smem, there, rank);
        else if (ORDERED && threadIdx.x % 32 == 0)
            keep_order<C>(a, pass, work.back, rows_before<C>(sight, pair.j0, work.back), pair, walk,
                          smem, warp - 2, rank);
        __syncwarp();
        cluster_arrive();
    } else {
        float dK[16][4], dV[16][4];
        registers_take<CONSUMER_REGISTERS>();
        const Consumer consumer = {sight_of(work.rule, Nk, block.j0, C::Bc),
                                   a.scale * (float)M_LOG2E, rank, warpgroup, there};
        consume_pair<T, ORDERED>(dK, dV, pass, consumer, block.b * H, Nq, walk, smem_bytes);
        cluster_arrive(); /* nothing more is written to the other block */
        if (work.sums.dK)
            add_keys<128>(dK, dV, a, work, block, block.j0, 128 * warpgroup);
        else
            store_pair<T>(dK, dV, a.scale, boxes, block, Nk, smem_bytes, warpgroup);
        __syncwarp();
    }
    cluster_wait(); /* the other block has no more to do with this one's shared memory */
}

} // namespace hopper_backward

#endif
