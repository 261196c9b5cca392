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
 * - flash_forward_v10_warp_specialised, flash_tiles_v10_warp_specialised: as v9.
 */
#include "wgmma_rows.cuh"

/* S, softmax and O of 64 rows, key tile after key tile. */
template <typename T, class C>
static __device__ __forceinline__ void consume(WarpgroupRows<C> &rows, const RowLimits &limits,
                                               const SeenKeys &seen, uint32_t smem, uint32_t my_Q,
                                               int i, float scale_log2)
{
    RingPlace place = {0, 0};
    start_rows(rows);
    barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
#pragma unroll 1
    for (int j = seen.end - 1; j >= seen.begin; j--) {
        float S[C::Bc / 8][4], alpha[2];
        uint32_t P[C::Bc / 16][4];
        const uint32_t at = place.stage * C::K_BYTES, barrier = smem + 8 * place.stage;
        barrier_wait(barrier + C::K_FULL, place.parity, WAIT_K);
        wgmma_begin();
        multiply_QK<T, C>(S, my_Q, smem + C::K + at);
        wgmma_wait<0>(S);
        release(barrier + C::K_FREE);
        if (all_seen(seen, j)) {
            update_rows<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_keys<C>(S, limits, i, j);
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
    specialised_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ TileMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const QueryTile tile = row_tile<C>(a, blockIdx.x);
    const RowLimits limits = row_limits(a);
    const SeenKeys seen = seen_keys<C>(limits, tile.i0, (int)a.shape.Nq);
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == 0) {
        registers_give<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            RingPlace place = {0, 0};
            produce_Q<C>(maps, tile, smem);
            produce_keys<C>(maps, tile, seen, smem, place);
        }
    } else {
        registers_take<C::CONSUMER_REGISTERS>();
        const int i0 = tile.i0 + 64 * (warpgroup - 1); /* first row of the warpgroup, the lane */
        const int i = i0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        const uint32_t my_Q = smem + (warpgroup - 1) * C::Q_BYTES;
        WarpgroupRows<C> rows;
        consume<T, C>(rows, limits, seen, smem, my_Q, i, a.scale * LOG2E);
        store_rows<T, C>(rows, a, &maps.O, tile, i0, my_Q, warpgroup);
        store_tiles_read();
    }
}

template <typename T, int D> struct LaunchSpecialised {
    typedef WgmmaTile<D, 128, D == 64 ? 3 : 2, 2> C;
    static AttnStatus run(const AttnArgs *a)
    {
        return launch_rows<C>(specialised_kernel<T, C>, a, count_row_tiles(a, C::Br),
                              128 * (1 + C::CONSUMERS));
    }
};

FlashTiles flash_tiles_v10_warp_specialised(const AttnArgs *a)
{
    return a->shape.d == 64 ? flash_tiles_of(&a->shape, 192, 128)
                            : flash_tiles_of(&a->shape, 128, 128);
}

AttnStatus flash_forward_v10_warp_specialised(const AttnArgs *a)
{
    return run_on_hopper<LaunchSpecialised>(a);
}
