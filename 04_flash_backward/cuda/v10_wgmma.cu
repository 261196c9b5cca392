/* SPDX-License-Identifier: MIT
 *
 * v10_wgmma: the five products by wgmma, tiles by the copy engine.
 *
 * v9 spends its registers twice: on dK and dV, and on the fragments of Q, dO, K and V: mma
 * reads registers only. wgmma reads them from shared memory, and a warpgroup has 64 keys. What v3
 * found still holds: with the scores transposed, P^T and dS^T are where the next product wants its
 * left factor. Only dS has to be seen by the other warpgroup, for dQ: stmatrix puts it into shared
 * memory, with the queries in a row, and wgmma reads it and K by column.
 *
 * One thing after another: thread 0 asks for the next tile, all wait for this one, S and dP, the
 * exponentials, __syncthreads, dV, dQ and dK, red.global beside dK, __syncthreads.
 *
 * Prediction (H200, bf16, N = 16384, full): the products take 2560 clocks a tile, the exponentials
 * 1024 (d = 64) and 512, and nothing but the other warpgroup hides them: 400 TFLOP/s at d = 64,
 * 430 at d = 128 (v9: 334, 308).
 * Measured: docs/lab/04_hopper.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on GPUs of compute capability 9.0 alone:
 *   code for sm_90a runs on no other.
 */
#include "problem.cuh"
#include "units/wgmma_keys.cuh"

template <typename T, class C>
static __global__ void __launch_bounds__(CONSUMER_THREADS, 1)
    wgmma_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass,
                 const __grid_constant__ KeyMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    /* as in 03/cuda/v9_wgmma: one number for all lanes of a warp */
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange seeing = rows_that_see(band);
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const int j = block.j0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; /* this lane's key */
    const uint32_t my_K = smem + C::K + warpgroup * C::BOX, my_V = my_K + C::V - C::K;
    KeyWalk walk = start_walk<C>(block, rows_that_see(band, block.j0, C::Bc));
    auto load_rows = [&](const KeyWalk &of, int stage) {
        load_Q<C>(maps, block, of, stats_of_head(pass, block.b * p.H + of.h, p.Nq), p.Nq, smem,
                  stage);
        load_dO<C>(maps, block, of, smem, stage);
    };
    if (threadIdx.x == 0) {
        start_barriers<C>(smem);
        load_keys<C>(maps, block, smem);
        if (walk.count > 0)
            load_rows(walk, 0);
    }
    __syncthreads();
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
    float dK[C::D / 8][4], dV[C::D / 8][4];
    start_sums<C>(dK, dV);
#pragma unroll 1
    for (int tile = 0; tile < walk.count; tile++) {
        const int stage = tile % 2, parity = tile / 2 % 2;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        const float2 *stats = (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES);
        float S[C::Br / 8][4], dP[C::Br / 8][4], dQ[8][4];
        uint32_t P_factor[C::Br / 16][4], dS_factor[C::Br / 16][4];
        KeyWalk next = walk;
        next_tile<C>(next);
        if (threadIdx.x == 0 && tile + 1 < walk.count)
            load_rows(next, 1 - stage);
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
        store_dS<C>(smem + C::dS, dS_factor, warpgroup);
        fence_async();
        __syncthreads(); /* dS is there */
        wgmma_begin();
        add_product<T, C>(dV, P_factor, dO);
        multiply_dS_K<T, C>(dQ, smem + C::dS, smem + C::K, warpgroup);
        add_product<T, C>(dK, dS_factor, Q);
        wgmma_wait<1>(dQ);
        add_dQ(dQ_slab<C>(pass.dQ_sum, block.b * p.H + walk.h, p.Nq, walk.i0, warpgroup), dQ);
        wgmma_wait<0>(dK);
        wgmma_wait<0>(dV);
        __syncthreads(); /* the stage and dS are free */
        walk = next;
    }
    store_gradients<T, C>(dK, dV, p.scale, maps, block, p.Nk, smem_bytes, warpgroup);
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
    if (!reserve_smem((const void *)wgmma_kernel<T, C>, C::ALL))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    wgmma_kernel<T, C>
        <<<key_blocks(p, C::Bc), CONSUMER_THREADS, C::ALL, stream_of(p)>>>(*p, pass, maps);
    if (!launch_is_done(stream_of(p), "v10_wgmma"))
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

RUNG(flash_backward, v10_wgmma, "wgmma and the copy engine, everything waits for everything",
     F16 | BF16, NULL, backward, work, tiles, SM90A | ATOMICS);
