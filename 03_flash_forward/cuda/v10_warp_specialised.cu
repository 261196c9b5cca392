/* SPDX-License-Identifier: MIT
 *
 * v10_warp_specialised: v9 with one warpgroup that only loads.
 *
 * In v9 all warps meet at a __syncthreads after each tile, because the thread that asks for the
 * next tile is one of those that use this one. Here the roles are apart. A producer runs ahead
 * through the key tiles, as far as free stages allow; two or three consumer warpgroups follow,
 * each at its own pace, and nobody meets anybody. What they tell each other are mbarriers:
 *
 *     K_full, V_full   the copy engine: the bytes of this stage are there
 *     K_free, V_free   4 arrivals of each consumer: its warps have read the stage
 *
 * While one consumer is in its softmax, another may have the tensor cores.
 *
 * Registers. 65,536 are shared by all warps; at launch each thread gets the same number. The
 * producer gives most of its own back (setmaxnreg), the consumers take them: 240 each where there
 * are two (d = 128), 160 where there are three (d = 64).
 *
 * Prediction (H200, bf16, N = 16384, full): the consumers drift out of step by themselves, so half
 * of the softmax hides behind products: 560 at d = 128, 430 at d = 64.
 * Measured: docs/lab/03_hopper.md, beside the prediction; they hardly drift.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 * What stands in namespace v10 later rungs have in wgmma_rows.cuh.
 */
#include "problem.cuh"
#include "units/wgmma_rows.cuh"

namespace v10
{

/* By one thread: all barriers of a block with a producer. A stage is free when each warp of the
 * consumers has said so. */
template <class C> static __device__ __forceinline__ void start_barriers(uint32_t smem)
{
    barrier_init(smem + C::Q_FULL, 1);
    barrier_init(smem + C::Q_FREE, 4 * C::CONSUMERS);
    for (int stage = 0; stage < C::STAGES; stage++) {
        barrier_init(smem + C::K_FULL + 8 * stage, 1);
        barrier_init(smem + C::V_FULL + 8 * stage, 1);
        barrier_init(smem + C::K_FREE + 8 * stage, 4 * C::CONSUMERS);
        barrier_init(smem + C::V_FREE + 8 * stage, 4 * C::CONSUMERS);
    }
    barrier_init_done();
}

/* By one thread: K and V of kv head h, tile after tile from `end` - 1 to `begin`, each as soon as
 * its stage is free. */
template <class C>
static __device__ __forceinline__ void produce_keys(const TileMaps &maps, int b, int h, int begin,
                                                    int end, uint32_t smem, RingPlace &place)
{
#pragma unroll 1
    for (int j = end - 1; j >= begin; j--) {
        const uint32_t at = place.stage * C::K_BYTES, barrier = smem + 8 * place.stage;
        barrier_wait(barrier + C::K_FREE, place.parity ^ 1, WAIT_FREE_K);
        barrier_expect(barrier + C::K_FULL, C::K_BYTES);
        load_tile(smem + C::K + at, &maps.K, b, h, j * C::Bc, barrier + C::K_FULL);
        barrier_wait(barrier + C::V_FREE, place.parity ^ 1, WAIT_FREE_V);
        barrier_expect(barrier + C::V_FULL, C::K_BYTES);
        load_tile(smem + C::V + at, &maps.V, b, h, j * C::Bc, barrier + C::V_FULL);
        advance<C>(place);
    }
}

} // namespace v10

/* S, softmax and O of 64 rows, key tile after key tile. */
template <typename T, class C>
static __device__ __forceinline__ void consume(WarpgroupRows<C> &rows, const Problem &p,
                                               const KeyTiles &tiles, const KeyTiles &full,
                                               uint32_t smem, uint32_t my_Q, int i)
{
    const float scale_log2 = p.scale * (float)M_LOG2E;
    RingPlace place = {0, 0};
    start_rows(rows);
    barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
#pragma unroll 1
    for (int j = tiles.end - 1; j >= tiles.begin; j--) {
        float S[C::Bc / 8][4], alpha[2];
        uint32_t P[C::Bc / 16][4];
        const uint32_t at = place.stage * C::K_BYTES, barrier = smem + 8 * place.stage;
        barrier_wait(barrier + C::K_FULL, place.parity, WAIT_K);
        wgmma_begin();
        multiply_QK<T, C>(S, my_Q, smem + C::K + at);
        wgmma_wait<0>(S);
        release(barrier + C::K_FREE);
        if (full.begin <= j && j < full.end) {
            update_rows<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_keys<C>(S, p.from, p.to, p.Nk, i, j);
            update_rows<C, true>(S, rows, alpha, scale_log2);
        }
        round_P<T, C>(P, S);
        rescale_O(rows, alpha);
        barrier_wait(barrier + C::V_FULL, place.parity, WAIT_V);
        wgmma_begin();
        multiply_PV<T, C>(rows, P, smem + C::V + at);
        wgmma_wait<0>(rows.O);
        release(barrier + C::V_FREE);
        advance<C>(place);
    }
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 * (1 + C::CONSUMERS), 1)
    specialised_kernel(const __grid_constant__ Problem p, const __grid_constant__ TileMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const BlockWork work = last_rows_first(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const KeyTiles full = full_tiles<C::Br, C::Bc>(p, work.i0, tiles);
    if (threadIdx.x == 0)
        v10::start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == 0) {
        registers_give<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            RingPlace place = {0, 0};
            produce_Q<C>(maps, work.b, work.h, work.i0, smem);
            v10::produce_keys<C>(maps, work.b, work.h_kv, tiles.begin, tiles.end, smem, place);
        }
    } else {
        registers_take<C::CONSUMER_REGISTERS>();
        const int i0 = work.i0 + 64 * (warpgroup - 1); /* first row of the warpgroup, the lane */
        const int i = i0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        const uint32_t my_Q = smem + (warpgroup - 1) * C::Q_BYTES;
        WarpgroupRows<C> rows;
        consume<T, C>(rows, p, tiles, full, smem, my_Q, i);
        store_rows<T, C>(rows, &maps.O, p.lse + lse_row(&p, work.b, work.h, 0), work.b, work.h, i0,
                         p.Nq, my_Q, warpgroup);
        store_tiles_read();
    }
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef WgmmaTile<D, 128, D == 64 ? 3 : 2, 2> C;
    TileMaps maps;
    if (!make_maps<T, C>(&maps, p->B, p->H, p->Hkv, p->Nq, p->Nk, p->Q, p->K, p->V, p->O))
        return note_failure();
    if (reserve_smem((const void *)specialised_kernel<T, C>, C::ALL))
        specialised_kernel<T, C>
            <<<row_blocks(p, C::Br), 128 * (1 + C::CONSUMERS), C::ALL, stream_of(p)>>>(*p, maps);
    if (!launch_is_done(stream_of(p), "v10_warp_specialised"))
        note_failure();
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? 192 : 128, 128};
}

RUNG(flash_forward, v10_warp_specialised, "one warpgroup loads, the others compute", F16 | BF16,
     forward, NULL, NULL, tiles, SM90A);
