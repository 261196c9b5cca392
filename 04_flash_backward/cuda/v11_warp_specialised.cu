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
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 * What stands in namespace v11 later rungs have in wgmma_keys.cuh.
 */
#include "problem.cuh"
#include "units/wgmma_keys.cuh"

namespace v11
{

/* By the producer: all tiles, each as soon as its stage is free. */
template <class C>
static __device__ __forceinline__ void produce(const KeyMaps &maps, const KeyBlock &block,
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

} // namespace v11

template <typename T, class C>
static __device__ __forceinline__ void
consume(const Problem &p, const Pass &pass, const KeyMaps &maps, const Band &band,
        const KeyBlock &block, KeyWalk walk, unsigned char *smem_bytes, int warpgroup)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const uint32_t my_K = smem + C::K + warpgroup * C::BOX, my_V = my_K + C::V - C::K;
    const int j = block.j0 + threadIdx.x % 256 / 32 * 16 + threadIdx.x % 32 / 4;
    const RowRange seeing = rows_that_see(band);
    float dK[C::D / 8][4], dV[C::D / 8][4];
    start_sums<C>(dK, dV);
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
#pragma unroll 1
    for (int tile = 0; tile < walk.count; tile++) {
        const int stage = tile % 2, parity = tile / 2 % 2;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        const uint32_t dS = smem + C::dS + stage * C::dS_BYTES;
        const float2 *stats = (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES);
        float S[C::Br / 8][4], dP[C::Br / 8][4], dQ[8][4];
        uint32_t P_factor[C::Br / 16][4], dS_factor[C::Br / 16][4];
        barrier_wait(smem + C::Q_FULL + 8 * stage, parity, WAIT_Q);
        barrier_wait(smem + C::dO_FULL + 8 * stage, parity, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + (Q - smem), seeing, walk.i0, p.Nq);
        clear_unseen_rows<C>(smem_bytes + (dO - smem), seeing, walk.i0, p.Nq);
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, Q);
        multiply_rows<T, C>(dP, my_V, dO);
        wgmma_wait<1>(S);
        if (!sees_all<C>(band, walk.i0, block.j0))
            hide_pairs<C>(S, {rows_of_key(band, j), rows_of_key(band, j + 8)}, walk.i0);
        exponentiate<C>(S, stats, p.scale * (float)M_LOG2E);
        wgmma_wait<0>(dP);
        multiply_by_P<C>(dP, S, stats);
        round_factor<T, C>(P_factor, S);
        round_factor<T, C>(dS_factor, dP);
        store_dS<C>(dS, dS_factor, warpgroup);
        fence_async();
        wgmma_begin();
        add_product<T, C>(dV, P_factor, dO);
        threads_sync(CONSUMERS_MEET, CONSUMER_THREADS); /* dS is there */
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS, smem + C::K, warpgroup);
        add_product<T, C>(dK, dS_factor, Q);
        wgmma_wait<1>(dQ);
        report(smem + C::dO_FREE + 8 * stage);
        add_dQ(dQ_slab<C>(pass.dQ_sum, block.b * p.H + walk.h, p.Nq, walk.i0, warpgroup), dQ);
        wgmma_wait<0>(dK);
        report(smem + C::Q_FREE + 8 * stage);
        next_tile<C>(walk);
    }
    wgmma_wait<0>(dV);
    store_gradients<T, C>(dK, dV, p.scale, maps, block, p.Nk, smem_bytes, warpgroup);
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    specialised_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass,
                       const __grid_constant__ KeyMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const KeyWalk walk = start_walk<C>(block, rows_that_see(band, block.j0, C::Bc));
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            v11::produce<C>(maps, block, pass, p.H, p.Nq, walk, smem);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume<T, C>(p, pass, maps, band, block, walk, smem_bytes, warpgroup);
    }
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef WgmmaKeys<D> C;
    const PassSizes sizes = sizes_of(p);
    KeyMaps maps;
    if (!make_key_maps<T, D>(&maps, sizes, p->Hkv, p->Q, p->K, p->V, p->dO, p->dK, p->dV))
        return note_failure();
    if (!reserve_smem((const void *)specialised_kernel<T, C>, C::ALL))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    specialised_kernel<T, C>
        <<<key_blocks(p, C::Bc), 128 + CONSUMER_THREADS, C::ALL, stream_of(p)>>>(*p, pass, maps);
    if (!launch_is_done(stream_of(p), "v11_warp_specialised"))
        return note_failure();
    round_slabs<T, D>(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
}

static void backward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), true);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? 128 : 64, 128};
}

RUNG(flash_backward, v11_warp_specialised, "one warpgroup loads, two compute, and meet once a tile",
     F16 | BF16, NULL, backward, work, tiles, SM90A | ATOMICS);
