/* SPDX-License-Identifier: MIT
 *
 * v12_lazy_rescale: v11 with a maximum that follows only when it must.
 *
 * m_i is there to keep 2^(s - m_i) in range, and any m_i near the maximum does that as well as the
 * maximum itself: P, l and O all carry the same factor 2^(-m_i), which the final division takes out
 * again. Floating point loses nothing by it: P = 2^8 is as precise as P = 1. So m_i stays as it is
 * until a score is more than 8 powers of two above it. Then, and only then, the four lanes of a row
 * agree on the new maximum, and l and O are rescaled. After the first tile that is rare, and each
 * tile is spared
 *
 *   - the multiplication of O: d / 2 instructions of each thread, which stand between a tile's
 *     softmax and its next product, where nothing hides them;
 *   - two shuffles for each row, alpha, and the wait for them before the first exponential.
 *
 * All lanes of a warp decide together (__any_sync), so the branch is taken by all or by none. P is
 * at most 2^8, far from the largest f16; the largest P of a row that has been seen is at least 1,
 * so small ones underflow no earlier than before.
 *
 * Prediction (H200, bf16, N = 16384, full): 32 of some 330 instructions a tile go at d = 64, and
 * 64 of 360 at d = 128, and with them the latency of the shuffles: a few percent.
 * Measured: docs/lab/03_hopper.md, beside the prediction.
 *
 * Interface:
 * - flash_forward_v12_lazy_rescale, flash_tiles_v12_lazy_rescale: as v9.
 */
#include "wgmma_rows.cuh"

/* S, softmax and O of 64 rows. P of tile j + 1 is multiplied while S of tile j is exponentiated:
 * `now` is the stage of tile j + 1, `next` that of tile j (tiles go from the last to the first). */
template <typename T, class C>
static __device__ __forceinline__ void consume(WarpgroupRows<C> &rows, const RowLimits &limits,
                                               const SeenKeys &seen, uint32_t smem, uint32_t my_Q,
                                               int i, float scale_log2)
{
    float S[C::Bc / 8][4], alpha[2];
    uint32_t P[C::Bc / 16][4];
    RingPlace now = {0, 0};
    int j = seen.end - 1;
    start_rows(rows);
    barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
    if (j < seen.begin)
        return;
    /* The first tile has nothing to overlap with. It may be masked or not; O is still 0. */
    barrier_wait(smem + C::K_FULL, 0, WAIT_K);
    wgmma_begin();
    multiply_QK<T, C>(S, my_Q, smem + C::K);
    wgmma_wait<0>(S);
    release(smem + C::K_FREE);
    if (!all_seen(seen, j))
        hide_keys<C>(S, limits, i, j);
    update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
    round_P<T, C>(P, S);
#pragma unroll 1
    for (j--; j >= seen.begin; j--) {
        RingPlace next = now;
        advance<C>(next);
        barrier_wait(smem + C::K_FULL + 8 * next.stage, next.parity, WAIT_K);
        wgmma_begin();
        multiply_QK<T, C>(S, my_Q, smem + C::K + next.stage * C::K_BYTES);
        barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
        wgmma_begin();
        multiply_PV<T, C>(rows, P, smem + C::V + now.stage * C::K_BYTES);
        wgmma_wait<1>(S); /* S is there, O may take its time */
        release(smem + C::K_FREE + 8 * next.stage);
        bool grown;
        if (all_seen(seen, j)) {
            grown = update_rows_lazily<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_keys<C>(S, limits, i, j);
            grown = update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
        }
        wgmma_wait<0>(rows.O); /* only now may P and O be touched */
        release(smem + C::V_FREE + 8 * now.stage);
        round_P<T, C>(P, S);
        if (grown)
            rescale_O(rows, alpha);
        now = next;
    }
    barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
    wgmma_begin();
    multiply_PV<T, C>(rows, P, smem + C::V + now.stage * C::K_BYTES);
    wgmma_wait<0>(rows.O);
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 * (1 + C::CONSUMERS), 1)
    lazy_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ TileMaps maps)
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

template <typename T, int D> struct LaunchLazy {
    typedef WgmmaTile<D, 128, D == 64 ? 3 : 2, 2> C;
    static AttnStatus run(const AttnArgs *a)
    {
        return launch_rows<C>(lazy_kernel<T, C>, a, count_row_tiles(a, C::Br),
                              128 * (1 + C::CONSUMERS));
    }
};

FlashTiles flash_tiles_v12_lazy_rescale(const AttnArgs *a)
{
    return a->shape.d == 64 ? flash_tiles_of(&a->shape, 192, 128)
                            : flash_tiles_of(&a->shape, 128, 128);
}

AttnStatus flash_forward_v12_lazy_rescale(const AttnArgs *a)
{
    return run_on_hopper<LaunchLazy>(a);
}
