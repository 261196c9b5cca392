/* SPDX-License-Identifier: MIT
 *
 * gradients_f32: float32 gradients without atomics. One kernel owns rows and gives dQ, one owns
 * keys and gives dK and dV, as in the rung v1_two_kernels, but with tiles in registers and for
 * any mask.
 *
 *     own = queries, walks over keys:    S = Q K^T,  dP = dO V^T,  dQ += scale dS K
 *     own = keys, walks over queries:    S^T = K Q^T,  dP^T = V dO^T,
 *                                        dV += P^T dO,  dK += scale dS^T Q
 *
 * Whatever is summed up has one owner, which adds in the order of its walk: the same bits on every
 * run. The price: S and dP are computed twice, seven products instead of five.
 *
 * The second line is the first one with the roles exchanged. So there is one kernel, compiled for
 * each role, and a View that tells it who is who (two_views.cuh): its own rows, and the others, in
 * columns.
 *
 * As in stage 03's library a thread keeps pieces of the results in registers, and all
 * factors come through shared memory in slices (product_f32.cuh). A tile takes STEPS of them:
 *
 *     S     32 channels of the own rows and of the others, for each 32 channels
 *     dV    some rows of the others (dO)                   only where keys own
 *     dP    32 channels of the own rows and of the others
 *     dQ dK some rows of the others (K or Q)
 *
 * While one is multiplied, cp.async brings the next into the other of two buffers. P and dS pass
 * through shared memory on their way from result to factor.
 *
 * Prediction (H200, f32, d=64, full): stage 03's kernel, of the same build, reaches 42 TFLOP/s. The
 * own rows are loaded again for each tile, by 4-byte copies: 35 executed, of which five of seven
 * count: 25 TFLOP/s.
 *
 * Interface:
 * - flash_gradients_f32_run, flash_gradients_f32_tiles (block.cuh): f32, d <= 256, any shape, mask
 *   and layout.
 */
#include "block.cuh"
#include "gradient_f32.cuh"

/* One block: OWN rows of one head, of the gradients OUT channels. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    gradient_kernel(const __grid_constant__ View view)
{
    extern __shared__ __align__(16) float smem_f32[]; /* W [OTHER][LD_OWN], two slices */
    __shared__ __align__(16) float lse_smem[C::QUERIES], delta_smem[C::QUERIES];
    __shared__ RowMask<C::OWN, C::OTHER> mask;
    const AttnArgs &a = view.a;
    const int N_own = (int)a.shape.Nq, N_other = (int)a.shape.Nk, d = (int)a.shape.d;
    const int group = (int)(a.shape.H / a.shape.Hkv), out0 = blockIdx.y * C::OUT;
    const int row0 = threadIdx.x / 32 * 4 * C::ROWS + lane_row(), column0 = lane_column();
    float *slices = smem_f32 + C::OTHER * C::LD_OWN;
    float *W_own = smem_f32 + column0 * C::LD_OWN + row0; /* what this thread makes of it */
    const float *W_rows = smem_f32 + row0;                /* what it multiplies */
    const float *lse_own = lse_smem + (C::KEYS ? column0 : row0);
    const float *delta_own = delta_smem + (C::KEYS ? column0 : row0);
    const BlockWork work = longest_first<C>(view);
    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::OWN, N_own - work.i0));
    const KeyTiles tiles = find_key_tiles<C::OTHER>(a, q);
    Walk walk;
    walk.head = C::KEYS ? work.h * group : work.h / group;
    walk.head_end = C::KEYS ? walk.head + group : walk.head + 1;
    walk.j = next_key_tile<C::OTHER>(a, tiles, q, tiles.end, &walk.clean);
    if (walk.j < 0 && view.add)
        return; /* nothing to add */
    publish_plan(mask, a, work, NULL, NULL, q, tiles);

    /* Slice `step` of the tile that `walk` is at, into buffer `stage`. */
    int stage = 0;
    auto fetch = [&](int step) {
        const bool of_S = step < C::S_END || step >= C::DP_END;
        const Tensor &own = of_S ? view.own_S : view.own_dP;
        const Tensor &other = of_S ? view.other_S : view.other_dP;
        const int j0 = walk.j * C::OTHER;
        float *slice = slices + stage * C::SLICE;
        if (step < C::S_END || (step >= C::DV_END && step < C::DP_END)) {
            const int x = (step < C::S_END ? step : step - C::DV_END) * C::CHANNELS;
            load_tile_f32<true, C::OWN, C::CHANNELS, C::LD_OWN, C::THREADS>(
                slice, f32_row(own, mask.work.b, mask.work.i0, mask.work.h) + x, own.stride[1],
                N_own - mask.work.i0, d - x);
            load_tile_f32<true, C::OTHER, C::CHANNELS, C::LD_OTHER, C::THREADS>(
                slice + C::PAIR_OTHER, f32_row(other, mask.work.b, j0, walk.head) + x,
                other.stride[1], N_other - j0, d - x);
        } else {
            const int row = j0 + (step - (of_S ? C::DP_END : C::S_END)) * C::ROWS_OF_SLICE;
            load_tile_f32<false, C::ROWS_OF_SLICE, C::OUT, C::OUT, C::THREADS>(
                slice, f32_row(other, mask.work.b, row, walk.head) + out0, other.stride[1],
                N_other - row, d - out0);
        }
        if (C::KEYS && step == 0)
            fetch_numbers<C>(lse_smem, delta_smem, view, mask.work.b, walk.head, j0, N_other);
        copy_async_commit();
    };

    float S_reg[C::ROWS][C::COLS], dP_reg[C::ROWS][C::COLS];
    /* dQ or dK, without the scale; dV where keys own */
    float sum_S[C::ROWS][C::OUT / 8] = {}, sum_dP[C::DV_ROWS][C::DV_COLS] = {};
    __syncthreads(); /* the plan is published */
    if (walk.j >= 0) {
        if (!C::KEYS)
            fetch_numbers<C>(lse_smem, delta_smem, view, work.b, work.h, work.i0, N_own);
        fetch(0);
    }
    /* The slice that was fetched last; slice `next` is fetched, of the next tile if it is 0. */
    auto take_slice = [&](int next) -> float * {
        copy_async_wait<0>();
        __syncthreads(); /* the slice is here, and nobody reads the one before it any more */
        float *slice = slices + stage * C::SLICE;
        stage ^= 1;
        if (walk.j >= 0)
            fetch(next);
        return slice;
    };
#pragma unroll 1
    while (walk.j >= 0) {
        const bool clean = walk.clean;
        const int j = walk.j;
        if (!clean && !mask.by_run)
            make_words<C>(mask, view, j);
        clear(S_reg);
#pragma unroll 1
        for (int step = 0; step < C::S_END; step++) { /* S = own_S other_S^T */
            const float *slice = take_slice(step + 1);
            multiply_add<C::CHANNELS, C::LD_OWN, C::LD_OTHER>(S_reg, slice + row0,
                                                              slice + C::PAIR_OTHER + column0);
        }
        if (clean)
            weigh<C, false>(S_reg, a, mask, lse_own, W_own, row0, column0, j);
        else
            weigh<C, true>(S_reg, a, mask, lse_own, W_own, row0, column0, j);
        const bool empty = C::KEYS && !clean && has_empty_rows<C>(lse_smem);
#pragma unroll 1
        for (int step = C::S_END; step < C::DV_END; step++) { /* dV += P^T dO */
            float *slice = take_slice(step + 1);
            if (empty)
                clear_empty_rows<C>(slice, lse_smem + (step - C::S_END) * C::ROWS_OF_SLICE);
            multiply_add<C::ROWS_OF_SLICE, C::LD_OWN, C::OUT>(
                sum_dP, W_rows + (step - C::S_END) * C::BAND_W, slice + column0);
        }
        clear(dP_reg);
#pragma unroll 1
        for (int step = C::DV_END; step < C::DP_END; step++) { /* dP = own_dP other_dP^T */
            const float *slice = take_slice(step + 1);
            multiply_add<C::CHANNELS, C::LD_OWN, C::LD_OTHER>(dP_reg, slice + row0,
                                                              slice + C::PAIR_OTHER + column0);
        }
        finish_dS<C>(S_reg, dP_reg, delta_own, W_own);
#pragma unroll 1
        for (int step = C::DP_END; step < C::STEPS; step++) { /* dQ += dS K, dK += dS^T Q */
            const bool last = step + 1 == C::STEPS;
            if (last)
                advance<C>(walk, view, mask);
            const float *slice = take_slice(last ? 0 : step + 1);
            multiply_add<C::ROWS_OF_SLICE, C::LD_OWN, C::OUT>(
                sum_S, W_rows + (step - C::DP_END) * C::BAND_W, slice + column0);
        }
    }
    store_gradient<C>(sum_S, view.gradient_S, mask.work, out0, row0, column0, a.scale, view.add);
    if constexpr (C::KEYS)
        store_gradient<C>(sum_dP, view.gradient_dP, mask.work, out0, row0, column0, 1.0f, view.add);
}

template <class C> static AttnStatus launch_gradient(const AttnArgs *a, const View *view)
{
    const int64_t tiles = tile_count(view->a.shape.Nq, C::OWN);
    const dim3 grid((unsigned)(a->shape.B * view->own_S.shape[2] * tiles), C::D / C::OUT);
    const AttnStatus status = reserve_smem(gradient_kernel<C>, C::SMEM);
    if (status != ATTN_OK || grid.x == 0)
        return status;
    gradient_kernel<C><<<grid, C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(*view);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

template <typename T, int D> struct LaunchRows {
    typedef OwnerTile<D, false> C;
    static AttnStatus run(const AttnArgs *a, const View *view)
    {
        return launch_gradient<C>(a, view);
    }
};

template <typename T, int D> struct LaunchKeys {
    typedef OwnerTile<D, true> C;
    static AttnStatus run(const AttnArgs *a, const View *view)
    {
        return launch_gradient<C>(a, view);
    }
};

/* For the byte model: the own rows of either kernel. */
template <typename T, int D> struct OwnTiles {
    struct C {
        static const int Br = OwnerTile<D, false>::OWN, Bc = OwnerTile<D, true>::OWN;
    };
};

FlashTiles flash_gradients_f32_tiles(const AttnArgs *a)
{
    return tiles_for_dim<OwnTiles, float>(a);
}

AttnStatus flash_gradients_f32_run(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev)
{
    if (a->Q.dtype != ATTN_F32)
        return ATTN_SKIP;
    View rows = view_of_queries(a, delta_dev), keys = view_of_keys(a, delta_dev);
    if (sums_dev.dQ) {
        rows.gradient_S = tensor_of_sums(sums_dev.dQ, &a->Q);
        keys.gradient_S = tensor_of_sums(sums_dev.dK, &a->K);
        keys.gradient_dP = tensor_of_sums(sums_dev.dV, &a->V);
        rows.add = keys.add = true;
    }
    const AttnStatus status = run_for_dim<LaunchRows, float>(a, &rows);
    return status == ATTN_OK ? run_for_dim<LaunchKeys, float>(a, &keys) : status;
}
