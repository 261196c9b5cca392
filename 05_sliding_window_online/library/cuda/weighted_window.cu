/* SPDX-License-Identifier: MIT
 *
 * weighted_window.cu: attention over the tiles that the window leaves, in float32, with every
 * option.
 *
 * With weights that are P itself the kernels are those of stages 03 and 04: nothing is missing
 * there. This file has what they do not know, weights that are not P:
 *
 *   1. lse, by stage 03's kernel: clipping needs the final P, and P = exp(s - lse) is final.
 *   2. A second walk over the same tiles: S again, W from P (weight_walk.cuh), O = W V.
 *   backward, with clipping: 3. delta = sum_j P dP, a walk (rowsum(dO * O) is another number then)
 *   4. dQ, its rows own.     5. dK and dV, their rows own.
 *
 * Walks 2 to 5 are one kernel in four settings. O = W V and dV = W^T dO are the same product seen
 * from the queries and from the keys, and so are dQ and dK. Each row of a result has one owner that
 * adds in the order of its walk: no atomics, the same bits on every run.
 *
 * Two arithmetic facts keep memory at O(N d): neither S nor W leaves the chip, and a dropped pair
 * is computed from its place whenever it is needed (philox.h), not remembered.
 *
 * All arithmetic is float32: 16-bit tensors are copied to float32 first, results are rounded once.
 *
 * Interface: window_tiles_run_cuda, window_tiles_add_cuda (window_cuda.h).
 */
#include "../../../03_flash_forward/library/cuda/block.cuh"
#include "../../../04_flash_backward/library/cuda/block.cuh"
#include "float_copies.cuh"
#include "library/backward_library.h"
#include "weight_walk.cuh"
#include "window_cuda.h"

/* delta of this thread's rows: the sum over the threads that share them. */
template <class C>
static __device__ __forceinline__ void store_delta(const float (&delta_row)[C::ROWS],
                                                   const AttnArgs &a, const BlockWork &work,
                                                   int row0, int column0, float *delta_out)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const float sum = sum_of_row(delta_row[r]);
        if (column0 == 0 && work.i0 + row0 + row_of(r) < (int)a.shape.Nq)
            delta_out[lse_row(a, work, work.i0 + row0 + row_of(r))] = sum;
    }
}

/* One block: OWN rows of one head; of what is summed up OUT channels. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    weight_kernel(const __grid_constant__ View view, const __grid_constant__ Weights weights,
                  float *delta_out)
{
    extern __shared__ __align__(16) float smem_f32[]; /* W or dS [OTHER][LD_OWN], two slices */
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
    const float dP_factor = weights.clip_span * weights.kept;

    /* The plan: which tiles, which of them clean, and what each row sees in the others. */
    const BlockWork work = longest_first<C>(view);
    const AttnRange own = attn_range(a.positions_q, work.i0, min(C::OWN, N_own - work.i0));
    const KeyTiles tiles = find_key_tiles<C::OTHER>(a, own);
    Walk walk;
    walk.head = C::KEYS ? work.h * group : work.h / group;
    walk.head_end = C::KEYS ? walk.head + group : walk.head + 1;
    walk.j = next_key_tile<C::OTHER>(a, tiles, own, tiles.end, &walk.clean);
    publish_plan(mask, a, work, NULL, NULL, own, tiles);

    /* Slice `step` of the tile that `walk` is at, into buffer `stage`: channels of both sides for
     * S and dP, some rows of the others for a sum. */
    int stage = 0;
    auto fetch = [&](int step) {
        const bool of_S = step < C::PAIRS || step >= C::DP_END;
        const Tensor &mine = of_S ? view.own_S : view.own_dP;
        const Tensor &theirs = of_S ? view.other_S : view.other_dP;
        const int j0 = walk.j * C::OTHER;
        float *slice = slices + stage * C::SLICE;
        if (step < C::PAIRS || (step >= C::W_END && step < C::DP_END)) {
            const int x = (step < C::PAIRS ? step : step - C::W_END) * C::CHANNELS;
            load_tile_f32<true, C::OWN, C::CHANNELS, C::LD_OWN, C::THREADS>(
                slice, f32_row(mine, mask.work.b, mask.work.i0, mask.work.h) + x, mine.stride[1],
                N_own - mask.work.i0, d - x);
            load_tile_f32<true, C::OTHER, C::CHANNELS, C::LD_OTHER, C::THREADS>(
                slice + C::PAIR_OTHER, f32_row(theirs, mask.work.b, j0, walk.head) + x,
                theirs.stride[1], N_other - j0, d - x);
        } else {
            const int row = j0 + (step - (of_S ? C::DP_END : C::PAIRS)) * C::ROWS_OF_SLICE;
            load_tile_f32<false, C::ROWS_OF_SLICE, C::OUT, C::OUT, C::THREADS>(
                slice, f32_row(theirs, mask.work.b, row, walk.head) + out0, theirs.stride[1],
                N_other - row, d - out0);
        }
        if (C::KEYS && step == 0)
            fetch_numbers<C>(lse_smem, delta_smem, view, mask.work.b, walk.head, j0, N_other);
        copy_async_commit();
    };

    float S_reg[C::ROWS][C::COLS], dP_reg[C::ROWS][C::COLS], delta_row[C::ROWS] = {};
    float sum_S[C::ROWS][C::OUT / 8] = {}, sum_dP[C::ROWS][C::OUT / 8] = {}; /* if in use */
    PairBits<C> passes;
    __syncthreads(); /* the plan is published */
    if (walk.j >= 0) {
        if (!C::KEYS)
            fetch_numbers<C>(lse_smem, delta_smem, view, work.b, work.h, work.i0, N_own);
        fetch(0);
    }
    /* The slice that was fetched last; the one after it is fetched, of the next tile if `step` was
     * the last of this one. */
    auto take_slice = [&](int step) -> const float * {
        const bool last = step + 1 == C::STEPS;
        if (last)
            advance<C>(walk, view, mask);
        copy_async_wait<0>();
        __syncthreads(); /* the slice is here, and nobody reads the one before it any more */
        const float *slice = slices + stage * C::SLICE;
        stage ^= 1;
        if (walk.j >= 0)
            fetch(last ? 0 : step + 1);
        return slice;
    };
#pragma unroll 1
    while (walk.j >= 0) {
        const bool clean = walk.clean;
        const int j = walk.j, head = C::KEYS ? walk.head : work.h;
        if (!clean && !mask.by_run)
            make_words<C>(mask, view, j);
        clear(S_reg);
#pragma unroll 1
        for (int step = 0; step < C::PAIRS; step++) { /* S = own_S other_S^T */
            const float *slice = take_slice(step);
            multiply_add<C::CHANNELS, C::LD_OWN, C::LD_OTHER>(S_reg, slice + row0,
                                                              slice + C::PAIR_OTHER + column0);
        }
        find_kept<C>(passes, weights, a, work.b, head, work.i0 + row0, j * C::OTHER + column0);
        weigh_tile<C>(S_reg, passes, a, weights, mask, lse_own, W_own, row0, column0, j, !clean);
        if constexpr (C::ADDS_W) {
#pragma unroll 1
            for (int step = C::PAIRS; step < C::W_END; step++) { /* O += W V, dV += W^T dO */
                const float *slice = take_slice(step);
                multiply_add<C::ROWS_OF_SLICE, C::LD_OWN, C::OUT>(
                    sum_dP, W_rows + (step - C::PAIRS) * C::BAND_W, slice + column0);
            }
        }
        if constexpr (C::NEEDS_dP) {
            clear(dP_reg);
#pragma unroll 1
            for (int step = C::W_END; step < C::DP_END; step++) { /* dO V^T */
                const float *slice = take_slice(step);
                multiply_add<C::CHANNELS, C::LD_OWN, C::LD_OTHER>(dP_reg, slice + row0,
                                                                  slice + C::PAIR_OTHER + column0);
            }
        }
        if constexpr (C::PASS == PASS_DELTA)
            add_delta<C>(delta_row, S_reg, dP_reg, passes, dP_factor);
        if constexpr (C::ADDS_dS) {
            finish_weighted_dS<C>(S_reg, dP_reg, passes, dP_factor, delta_own, W_own);
#pragma unroll 1
            for (int step = C::DP_END; step < C::STEPS; step++) { /* dQ += dS K, dK += dS^T Q */
                const float *slice = take_slice(step);
                multiply_add<C::ROWS_OF_SLICE, C::LD_OWN, C::OUT>(
                    sum_S, W_rows + (step - C::DP_END) * C::BAND_W, slice + column0);
            }
        }
    }
    if constexpr (C::ADDS_dS)
        store_gradient<C>(sum_S, view.gradient_S, work, out0, row0, column0, a.scale, view.add);
    if constexpr (C::ADDS_W)
        store_gradient<C>(sum_dP, view.gradient_dP, work, out0, row0, column0, 1.0f, view.add);
    if constexpr (C::PASS == PASS_DELTA)
        store_delta<C>(delta_row, a, work, row0, column0, delta_out);
}

/* --- host --------------------------------------------------------------------------------------*/

template <int D, Pass PASS>
static AttnStatus launch_pass(const View *view, const Weights *weights, float *delta_out)
{
    typedef WeightTile<D, PASS> C;
    const AttnArgs *a = &view->a;
    const int64_t tiles = tile_count(a->shape.Nq, C::OWN);
    const dim3 grid((unsigned)(a->shape.B * view->own_S.shape[2] * tiles), C::D / C::OUT);
    const AttnStatus status = reserve_smem(weight_kernel<C>, C::SMEM);
    if (status != ATTN_OK)
        return status;
    weight_kernel<C>
        <<<grid, C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(*view, *weights, delta_out);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

template <typename T, int D> struct LaunchPass {
    static AttnStatus run(const AttnArgs *, Pass pass, const View *view, const Weights *weights,
                          float *delta_out)
    {
        if (pass == PASS_OUTPUT)
            return launch_pass<D, PASS_OUTPUT>(view, weights, delta_out);
        if (pass == PASS_DELTA)
            return launch_pass<D, PASS_DELTA>(view, weights, delta_out);
        return pass == PASS_ROWS ? launch_pass<D, PASS_ROWS>(view, weights, delta_out)
                                 : launch_pass<D, PASS_KEYS>(view, weights, delta_out);
    }
};

static AttnStatus run_pass(const AttnArgs *a, Pass pass, const View *view, const Weights *weights,
                           float *delta_out)
{
    return run_for_dim<LaunchPass, float>(a, pass, view, weights, delta_out);
}

/* a: float32. O = W V with the lse that is there. */
static AttnStatus weighted_output(const AttnArgs *a, const Weights *weights)
{
    View view = view_of_queries(a, a->lse); /* no delta yet: any numbers will do */
    view.gradient_dP = a->O;
    return run_pass(a, PASS_OUTPUT, &view, weights, NULL);
}

/* a: float32. Adds to sums; delta_dev [B][H][Nq] holds rowsum(dO * O). */
static AttnStatus weighted_gradients(const AttnArgs *a, const Weights *weights, float *delta_dev,
                                     FlashSums sums)
{
    View rows = view_of_queries(a, delta_dev), keys = view_of_keys(a, delta_dev);
    AttnStatus status = ATTN_OK;
    rows.gradient_S = tensor_of_sums(sums.dQ, &a->Q);
    keys.gradient_S = tensor_of_sums(sums.dK, &a->K);
    keys.gradient_dP = tensor_of_sums(sums.dV, &a->V);
    rows.add = keys.add = true;
    if (weights->clips)
        status = run_pass(a, PASS_DELTA, &rows, weights, delta_dev);
    if (status == ATTN_OK)
        status = run_pass(a, PASS_ROWS, &rows, weights, NULL);
    return status == ATTN_OK ? run_pass(a, PASS_KEYS, &keys, weights, NULL) : status;
}

static int weights_are_plain(const AttnArgs *a)
{
    return !window_clips(a) && !window_drops(a);
}

AttnStatus window_tiles_run_cuda(const AttnArgs *plain)
{
    FloatCopies copies;
    Weights weights;
    const size_t tokens = window_drops(plain) ? (size_t)(plain->shape.Nq + plain->shape.Nk) : 0;
    AttnStatus status = float_copies_make(&copies, plain, FLOATS_FORWARD, tokens * sizeof(Token));
    if (status == ATTN_OK)
        status = flash_cuda_run(&copies.args, NULL, NULL); /* O and lse, or lse alone */
    if (status == ATTN_OK && !weights_are_plain(plain)) {
        status = make_weights(plain, &weights, (Token *)copies.extra);
        if (status == ATTN_OK)
            status = weighted_output(&copies.args, &weights);
    }
    if (status == ATTN_OK)
        status = float_copies_store_O(&copies, plain);
    float_copies_free(&copies);
    return status;
}

AttnStatus window_tiles_add_cuda(const AttnArgs *plain, FlashSums sums)
{
    const AttnShape *n = &plain->shape;
    const size_t rows = (size_t)(n->B * n->H * n->Nq);
    const size_t tokens = window_drops(plain) ? (size_t)(n->Nq + n->Nk) : 0;
    FloatCopies copies;
    Weights weights;
    AttnStatus status = float_copies_make(&copies, plain, FLOATS_BACKWARD,
                                          tokens * sizeof(Token) + rows * sizeof(float));
    Token *tokens_dev = (Token *)copies.extra;
    float *delta_dev = (float *)(tokens_dev + tokens);
    if (status == ATTN_OK)
        status = flash_backward_delta_cuda(plain, delta_dev);
    if (status == ATTN_OK && weights_are_plain(plain)) {
        status = flash_gradients_f32_run(&copies.args, delta_dev, sums);
    } else if (status == ATTN_OK) {
        status = make_weights(plain, &weights, tokens_dev);
        if (status == ATTN_OK)
            status = weighted_gradients(&copies.args, &weights, delta_dev, sums);
    }
    float_copies_free(&copies);
    return status;
}
