/* SPDX-License-Identifier: MIT
 *
 * v11_warp_specialised: v10 with one warpgroup that only loads.
 *
 * In v10 all warps meet twice a tile: once because dS has to be there, and once more because the
 * thread that asks for the next tile is one of those that use this one. Here a producer runs ahead,
 * as far as free stages allow, and mbarriers tell when a stage is full or free. The consumers meet
 * once a tile, for dS, and between two such points they go at their own pace. But they leave a
 * meeting together, so most of the time both exponentiate at once (v12 mends it). dS has two
 * places, so that nobody writes what is still read:
 *
 *     dS[0] written | meet | dS[0] read ... dS[1] written | meet | dS[1] read ... dS[0] written
 *
 * The consumers take 240 registers, the producer keeps 24.
 *
 * Prediction (H200, bf16, N = 16384, full): one wait for memory and one barrier a tile are gone:
 * 440 TFLOP/s at d = 64, 480 at d = 128.
 * Measured: docs/lab/04_hopper.md, beside the prediction.
 *
 * Interface:
 * - flash_backward_v11_warp_specialised, flash_backward_tiles_v11_warp_specialised: as v10.
 */
#include "wgmma_keys.cuh"

using namespace rung;

template <typename T, class C>
static __device__ __forceinline__ void
consume(const AttnArgs &a, const Pass &pass, const KeyMaps &maps, const Plain &plain,
        const KeyBlock &block, KeyWalk walk, unsigned char *smem_bytes, int warpgroup)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const uint32_t my_K = smem + C::K + warpgroup * C::BOX, my_V = my_K + C::V - C::K;
    const int j = block.j0 + threadIdx.x % 256 / 32 * 16 + threadIdx.x % 32 / 4;
    float dK[C::D / 8][4], dV[C::D / 8][4];
    start_sums<C>(dK, dV);
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
#pragma unroll 1
    for (int tile = 0; tile < walk.count; tile++) {
        const int stage = tile % 2, parity = tile / 2 % 2, Nq = (int)a.shape.Nq;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        const uint32_t dS = smem + C::dS + stage * C::dS_BYTES;
        const float2 *stats = (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES);
        float S[C::Br / 8][4], dP[C::Br / 8][4], dQ[8][4];
        uint32_t P_factor[C::Br / 16][4], dS_factor[C::Br / 16][4];
        barrier_wait(smem + C::Q_FULL + 8 * stage, parity, WAIT_Q);
        barrier_wait(smem + C::dO_FULL + 8 * stage, parity, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + (Q - smem), plain, walk.i0, Nq);
        clear_unseen_rows<C>(smem_bytes + (dO - smem), plain, walk.i0, Nq);
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, Q);
        multiply_rows<T, C>(dP, my_V, dO);
        wgmma_wait<1>(S);
        if (!sees_all<C>(plain, walk.i0, block.j0))
            hide_pairs<C>(S, plain, walk.i0, j);
        exponentiate<C>(S, stats, a.scale * LOG2E);
        wgmma_wait<0>(dP);
        multiply_by_P<C>(dP, S, stats);
        round_factor<T, C>(P_factor, S);
        round_factor<T, C>(dS_factor, dP);
        store_dS<C>(dS, dS_factor, warpgroup);
        fence_for_tma();
        wgmma_begin();
        add_product<T, C>(dV, P_factor, dO);
        threads_sync(CONSUMERS_MEET, CONSUMER_THREADS); /* dS is there */
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS, smem + C::K, warpgroup);
        add_product<T, C>(dK, dS_factor, Q);
        wgmma_wait<1>(dQ);
        tell(smem + C::dO_FREE + 8 * stage);
        add_dQ(dQ_square<C>(a, pass, block.b, walk, warpgroup), dQ);
        wgmma_wait<0>(dK);
        tell(smem + C::Q_FREE + 8 * stage);
        next_tile<C>(walk);
    }
    wgmma_wait<0>(dV);
    store_gradients<T, C>(dK, dV, a.scale, maps, block, plain.Nk, smem_bytes, warpgroup);
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    specialised_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass,
                       const __grid_constant__ KeyMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const Plain plain = plain_of(a);
    const KeyBlock block = block_of_keys(a, C::Bc);
    const KeyWalk walk = start_walk<C>(block, plain);
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            produce<C>(a, pass, maps, block, walk, smem);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume<T, C>(a, pass, maps, plain, block, walk, smem_bytes, warpgroup);
    }
}

template <typename T, int D> struct LaunchV11 {
    static AttnStatus run(const AttnArgs *a, const Pass &pass)
    {
        typedef KeyTile<D> C;
        return launch_keys<T, C>(specialised_kernel<T, C>, a, pass, 128 + CONSUMER_THREADS);
    }
};

FlashTiles flash_backward_tiles_v11_warp_specialised(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, a->shape.d == 64 ? 128 : 64, 128);
}

AttnStatus flash_backward_v11_warp_specialised(const AttnArgs *a)
{
    return run_on_hopper<LaunchV11>(a);
}
