/* SPDX-License-Identifier: MIT
 *
 * wide_keys.cuh: gradients on Hopper for d = 256.
 *
 * dK and dV of 64 keys and 256 channels fill the registers of two warpgroups: each has 128 channels
 * of both, so both need all of P and dS. Scores, on the other hand, are split by queries, so that
 * nothing is computed twice. P and dS go through shared memory:
 *
 *     S^T, dP^T   [64 keys x 32 queries]         a warpgroup's own queries, all 256 channels
 *     meet        P^T, dS^T [64 keys x 64 queries] are there
 *     dQ          [64 queries x 128 channels] = dS K       a warpgroup's own channels
 *     dV, dK      [64 keys x 128 channels] += P^T dO, dS^T Q
 *
 * The budget: registers S 16, dP 16, dQ 64, dK 64, dV 64 = 224 of 240. Shared memory, KiB: K 32,
 * V 32, Q 2 x 32, dO 2 x 32, P 2 x 8, dS 2 x 8, stats 1 = 225 of 227. dQ is 64 KiB a tile, twice
 * that of d = 128 for the same products: adding it up is what takes the time.
 *
 * Interface:
 * - WideTile: the constants. wide_kernel: one block for each 64 keys. ORDERED: ordered_dq.cuh.
 */
#ifndef FLASH_BACKWARD_WIDE_KEYS_CUH
#define FLASH_BACKWARD_WIDE_KEYS_CUH

#include "hopper_keys.cuh"
#include "units/wgmma_wide.cuh"

namespace hopper_backward
{

struct WideTile {
    static const int D = 256, Br = 64, Bc = 64, STAGES = 2;
    static const int PANEL_BYTES = 64 * 128, ROW_PANEL_BYTES = PANEL_BYTES;
    static const int BOX = 64 * D * 2, ROWS_BYTES = BOX, STATS_BYTES = Br * 8;
    static const int PAIRS = 64 * 64 * 2; /* P or dS */
    static const int K = 0, V = BOX, Q = V + BOX, dO = Q + STAGES * BOX, P = dO + STAGES * BOX;
    static const int dS = P + 2 * PAIRS, STATS = dS + 2 * PAIRS,
                     KV_FULL = STATS + STAGES * STATS_BYTES;
    static const int Q_FULL = KV_FULL + 8, dO_FULL = Q_FULL + 8 * STAGES;
    static const int Q_FREE = dO_FULL + 8 * STAGES, dO_FREE = Q_FREE + 8 * STAGES;
    static const int ORDER_OPEN = dO_FREE + 8 * STAGES, ORDER_DONE = ORDER_OPEN + 8 * 2;
    static const int TICKET = ORDER_DONE + 8 * 2, ALL = TICKET + 16;
    static_assert(ALL <= 227 * 1024, "tiles do not fit");
};

/* A warpgroup's share of dK and dV. */
struct WideChannels {
    static const int D = 128, PANEL_BYTES = WideTile::PANEL_BYTES;
};

/* A warpgroup's share of S and dP. */
struct WideRows {
    static const int Br = 32;
};

/* P^T or dS^T of this warpgroup's queries to the tile that both read. */
static __device__ __forceinline__ void store_half(uint32_t tile, const uint32_t (&A)[2][4],
                                                  int warpgroup)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const uint32_t row = tile + (16 * warp + lane % 16) * 128;
#pragma unroll
    for (int k = 0; k < 2; k++)
        store_matrices(row + ((warpgroup * 4 + k * 2 + lane / 16) ^ lane % 8) * 16, A[k]);
}

/* Issues S^T or dP^T of all keys and this warpgroup's queries. */
template <typename T>
static __device__ __forceinline__ void multiply_half(float (&S)[4][4], uint32_t keys, uint32_t rows,
                                                     int warpgroup)
{
    const uint64_t A = tile_descriptor(keys, WideTile::PANEL_BYTES);
    const uint64_t B = tile_descriptor(rows + warpgroup * 32 * 128, WideTile::PANEL_BYTES);
    multiply_narrow<T, 0>(S, A, B);
#pragma unroll
    for (int k = 1; k < WideTile::D / 16; k++)
        multiply_narrow<T, 1>(S, A + row_tile_step(k, WideTile::PANEL_BYTES),
                              B + row_tile_step(k, WideTile::PANEL_BYTES));
    wgmma_commit();
}

/* Issues dV += P^T dO or dK += dS^T Q of this warpgroup's channels. factor, rows: of both. */
template <typename T>
static __device__ __forceinline__ void add_wide(float (&sum)[16][4], uint32_t factor, uint32_t rows,
                                                int warpgroup)
{
    const uint64_t A = tile_descriptor(factor, WideTile::PANEL_BYTES);
    const uint64_t B =
        tile_descriptor(rows + 2 * warpgroup * WideTile::PANEL_BYTES, WideTile::PANEL_BYTES);
#pragma unroll
    for (int k = 0; k < 4; k++)
        multiply_wide<T, 1, false>(sum, A + row_tile_step(k, WideTile::PANEL_BYTES),
                                   B + key_tile_step(k));
    wgmma_commit();
}

/* Issues dQ = dS K of this warpgroup's channels. */
template <typename T>
static __device__ __forceinline__ void multiply_dS_K_wide(float (&dQ)[16][4], uint32_t dS,
                                                          uint32_t K, int warpgroup)
{
    const uint64_t A = tile_descriptor(dS, WideTile::PANEL_BYTES);
    const uint64_t B =
        tile_descriptor(K + 2 * warpgroup * WideTile::PANEL_BYTES, WideTile::PANEL_BYTES);
    multiply_wide<T, 0, true>(dQ, A, B);
#pragma unroll
    for (int k = 1; k < 4; k++)
        multiply_wide<T, 1, true>(dQ, A + key_tile_step(k), B + key_tile_step(k));
    wgmma_commit();
}

/* dK and dV of 64 keys over a walk; dQ is added. P and dS of tile t + 2 may be written where those
 * of tile t were: at the meeting of tile t + 1 both warpgroups had done with them. */
template <typename T, bool ORDERED>
static __device__ __forceinline__ void
consume_wide(float (&dK)[16][4], float (&dV)[16][4], const AttnArgs &a, const Pass &pass,
             const RowSight &sight, const KeyBlock &block, KeyWalk walk, unsigned char *smem_bytes,
             int warpgroup)
{
    typedef WideTile C;
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int j = block.j0 + warp * 16 + lane / 4;
    const int Tr = divide_up((int)a.shape.Nq, 64);
    const RowRange seeing = {sight.first_row, sight.end_row};
    start_sums<WideChannels>(dK, dV);
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
#pragma unroll 1
    for (int tile = 0; tile < walk.count; tile++) {
        const int stage = tile % 2, parity = tile / 2 % 2, Nq = (int)a.shape.Nq;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        const uint32_t P = smem + C::P + stage * C::PAIRS, dS = P + C::dS - C::P;
        const float2 *stats =
            (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES) + 32 * warpgroup;
        float S[4][4], dP[4][4], dQ[16][4];
        uint32_t factor[2][4];
        barrier_wait(smem + C::Q_FULL + 8 * stage, parity, WAIT_Q);
        barrier_wait(smem + C::dO_FULL + 8 * stage, parity, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + (Q - smem), seeing, walk.i0, Nq);
        clear_unseen_rows<C>(smem_bytes + (dO - smem), seeing, walk.i0, Nq);
        wgmma_begin();
        multiply_half<T>(S, smem + C::K, Q, warpgroup);
        multiply_half<T>(dP, smem + C::V, dO, warpgroup);
        wgmma_wait<1>(S);
        if (!sees_all<C>(sight, walk.i0))
            hide_pairs<WideRows>(S, {rows_of_key(sight, j), rows_of_key(sight, j + 8)},
                                 walk.i0 + 32 * warpgroup);
        exponentiate<WideRows>(S, stats, a.scale * (float)M_LOG2E);
        round_factor<T, WideRows>(factor, S);
        store_half(P, factor, warpgroup);
        wgmma_wait<0>(dP);
        multiply_by_P<WideRows>(dP, S, stats);
        round_factor<T, WideRows>(factor, dP);
        store_half(dS, factor, warpgroup);
        fence_async();
        threads_sync(CONSUMERS_MEET, CONSUMER_THREADS); /* P and dS are there */
        wgmma_begin();
        multiply_dS_K_wide<T>(dQ, dS, smem + C::K, warpgroup);
        add_wide<T>(dV, P, dO, warpgroup);
        add_wide<T>(dK, dS, Q, warpgroup);
        wgmma_wait<2>(dQ);
        if (ORDERED)
            wait_for_order<C>(smem, warpgroup, tile);
        {
            const int64_t t = (int64_t)(block.b * (int)a.shape.H + walk.h) * Tr + walk.i0 / 64;
            float *to =
                pass.dQ_sum + t * (64 * C::D) + (warp * 4 + 2 * warpgroup) * (16 * 64) + lane * 4;
#pragma unroll
            for (int n = 0; n < 16; n++)
                add_4(to + n * 128, dQ[n]);
        }
        if (ORDERED)
            report_order<C>(smem, warpgroup);
        wgmma_wait<1>(dV);
        report(smem + C::dO_FREE + 8 * stage);
        wgmma_wait<0>(dK);
        report(smem + C::Q_FREE + 8 * stage);
        next_tile<C>(walk);
    }
    wgmma_wait<0>(dV);
}

/* dK and dV through the place of K and V, each warpgroup its panels. */
template <typename T>
static __device__ __forceinline__ void
store_wide(const float (&dK)[16][4], const float (&dV)[16][4], float scale, const BoxMaps &boxes,
           const KeyBlock &block, unsigned char *smem, int warpgroup)
{
    unsigned char *K = smem + WideTile::K + 2 * warpgroup * WideTile::PANEL_BYTES;
    threads_sync(CONSUMERS_MEET, CONSUMER_THREADS); /* nobody reads K and V any more */
    round_keys<T, WideChannels>(dK, scale, K);
    round_keys<T, WideChannels>(dV, 1.0f, K + WideTile::V - WideTile::K);
    fence_async();
    threads_sync(CONSUMERS_MEET, CONSUMER_THREADS);
    if (threadIdx.x == 0) {
        const uint32_t from = (uint32_t)__cvta_generic_to_shared(smem);
        store_box(from + WideTile::K, &boxes.dK, block.b, block.h_kv, block.j0);
        store_box(from + WideTile::V, &boxes.dV, block.b, block.h_kv, block.j0);
        store_tiles_read();
    }
}

template <typename T, bool ORDERED>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    wide_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass,
                const __grid_constant__ PanelMaps maps, const __grid_constant__ KeysWork work)
{
    typedef WideTile C;
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        barrier_init(smem + C::KV_FULL, 1);
        for (int stage = 0; stage < 2; stage++) {
            barrier_init(smem + C::Q_FULL + 8 * stage, 1);
            barrier_init(smem + C::dO_FULL + 8 * stage, 1);
            barrier_init(smem + C::Q_FREE + 8 * stage, 8);
            barrier_init(smem + C::dO_FREE + 8 * stage, 8);
        }
        barrier_init_done();
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
        if (threadIdx.x % 128 == 0) {
            barrier_expect(smem + C::KV_FULL, 2 * C::BOX);
            load_box(smem + C::K, &boxes.K, block.b, block.h_kv, block.j0, smem + C::KV_FULL);
            load_box(smem + C::V, &boxes.V, block.b, block.h_kv, block.j0, smem + C::KV_FULL);
#pragma unroll 1
            for (int tile = 0; tile < walk.count; tile++) {
                const int stage = tile % 2, before = tile / 2 % 2 ^ 1;
                barrier_wait(smem + C::Q_FREE + 8 * stage, before, WAIT_FREE_Q);
                load_Q<C>(boxes, block, walk,
                          stats_of_head(pass, block.b * (int)a.shape.H + walk.h, (int)a.shape.Nq),
                          (int)a.shape.Nq, smem, stage);
                barrier_wait(smem + C::dO_FREE + 8 * stage, before, WAIT_FREE_dO);
                load_dO<C>(boxes, block, walk, smem, stage);
                next_tile<C>(walk);
            }
        } else if (ORDERED && threadIdx.x % 32 == 0 && threadIdx.x % 128 <= 64) {
            keep_order<C>(a, pass, work.back, sight, block, walk, smem, threadIdx.x % 128 / 32 - 1);
        }
    } else {
        float dK[16][4], dV[16][4];
        registers_take<CONSUMER_REGISTERS>();
        consume_wide<T, ORDERED>(dK, dV, a, pass, sight, block, walk, smem_bytes, warpgroup);
        if (work.sums.dK)
            add_keys<128>(dK, dV, a, work, block, block.j0, 128 * warpgroup);
        else
            store_wide<T>(dK, dV, a.scale, boxes, block, smem_bytes, warpgroup);
    }
}

} // namespace hopper_backward

#endif
