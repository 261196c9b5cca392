/* SPDX-License-Identifier: MIT
 *
 * weighted_window.cu: attention over the tiles that the window leaves, in float32, with every
 * option.
 *
 * With weights that are P itself the kernels are those of stages 03 and 04: nothing is missing
 * there. This file has what they do not know, weights that are not P:
 *
 *   1. lse, by stage 03's kernel: clipping needs the final P, and P = exp(s - lse) is final but for
 *      the rounding of lse, which at scores of 10^5 is a hundredth of P, at 10^9 all of it.
 *   2. So a walk over the same tiles for what these P sum to in the arithmetic of the next walk,
 *   3. and one with S again, P divided by that sum, W from P (weight_walk.cuh), O = W V.
 *   backward, with clipping: 4. delta = sum_j P dP, a walk (rowsum(dO * O) is another number then)
 *   5. dQ, its rows own.     6. dK and dV, their rows own.
 *
 * Walks 2 to 6 are stage 04's (owner_walk.cuh) in five settings. O = W V and dV = W^T dO are the
 * same product seen from the queries and from the keys, and so are dQ and dK. Each row of a result
 * has one owner that adds in the order of its walk: no atomics, the same bits on every run.
 *
 * Two arithmetic facts keep memory at O(N d): neither S nor W leaves the chip, and a dropped pair
 * is computed from its place whenever it is needed (philox.h), not remembered.
 *
 * All arithmetic is float32: 16-bit tensors are copied to float32 first, results are rounded once.
 *
 * Interface: window_tiles_run_cuda, window_tiles_add_cuda (window_cuda.h).
 */
#include "attention/backward/backward_library.h"
#include "attention/backward/cuda/block.cuh"
#include "attention/forward/cuda/block_kernels.cuh"
#include "attn_options.h"
#include "float_copies.cuh"
#include "weight_walk.cuh"
#include "window_cuda.h"

/* Weights that clipping and dropout make of P. */
template <class C> struct Weighing {
    static const bool ANY_dO = false; /* float_copies.cuh makes them zeros */
    const Weights &weights;
    float *delta_out; /* PASS_DELTA, PASS_SUM: [B][H][Nq] */
    float dP_factor;  /* of a pair that passes */
    PairBits<C> passes;
    float delta_row[C::ROWS], top[C::ROWS];

    __device__ __forceinline__ void weigh(float (&S_reg)[C::ROWS][C::COLS], const TilePart<C> &part,
                                          int head, int j, bool clean)
    {
        if (C::PASS != PASS_SUM)
            find_kept<C>(passes, weights, part.a, part.mask.work.b, head,
                         part.mask.work.i0 + part.row0, j * C::OTHER + part.column0);
        weigh_tile<C>(S_reg, passes, part.a, weights, part.mask, part.lse_smem, part.delta_smem,
                      part.W_smem, part.row0, part.column0, j, !clean);
        if (C::PASS == PASS_SUM)
            add_sum<C>(top, delta_row, S_reg);
    }
    __device__ __forceinline__ void add_delta(const float (&P_reg)[C::ROWS][C::COLS],
                                              const float (&dP_reg)[C::ROWS][C::COLS])
    {
        ::add_delta<C>(delta_row, P_reg, dP_reg, passes, dP_factor);
    }
    __device__ __forceinline__ void finish_dS(const float (&P_reg)[C::ROWS][C::COLS],
                                              const float (&dP_reg)[C::ROWS][C::COLS],
                                              const TilePart<C> &part)
    {
        finish_weighted_dS<C>(P_reg, dP_reg, passes, dP_factor, part.delta_smem, part.W_smem);
    }
    /* The sum over the threads that share a row. */
    __device__ __forceinline__ void store_delta(const TilePart<C> &part)
    {
        const BlockWork work = part.mask.work;
#pragma unroll
        for (int r = 0; r < C::ROWS; r++) {
            float sum = delta_row[r];
            if (C::PASS == PASS_SUM) { /* log2 of the sum; 0 where no key is seen */
                const float mine = sum == 0.0f ? -INFINITY : top[r], high = max_of_row(mine);
                sum = sum_of_row(high == -INFINITY ? 0.0f : sum * exp2_sfu(mine - high));
                sum = sum == 0.0f ? 0.0f : high + log2f(sum);
            } else {
                sum = sum_of_row(sum);
            }
            const int i = work.i0 + part.row0 + row_of(r);
            if (part.column0 == 0 && i < (int)part.a.shape.Nq)
                delta_out[lse_row(part.a, work, i)] = sum;
        }
    }
};

template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    weight_kernel(const __grid_constant__ View view, const __grid_constant__ Weights weights,
                  float *delta_out)
{
    Weighing<C> weighing = {weights, delta_out, weights.clip_span * weights.kept, {}, {}, {}};
    walk_tiles<C>(view, weighing);
}

/* --- host --------------------------------------------------------------------------------------*/

template <int D, OwnerPass PASS>
static AttnStatus launch_pass(const View *view, const Weights *weights, float *delta_out)
{
    typedef OwnerTile<D, PASS> C;
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
    static AttnStatus run(const AttnArgs *, OwnerPass pass, const View *view,
                          const Weights *weights, float *delta_out)
    {
        if (pass == PASS_SUM)
            return launch_pass<D, PASS_SUM>(view, weights, delta_out);
        if (pass == PASS_OUTPUT)
            return launch_pass<D, PASS_OUTPUT>(view, weights, delta_out);
        if (pass == PASS_DELTA)
            return launch_pass<D, PASS_DELTA>(view, weights, delta_out);
        return pass == PASS_ROWS ? launch_pass<D, PASS_ROWS>(view, weights, delta_out)
                                 : launch_pass<D, PASS_KEYS>(view, weights, delta_out);
    }
};

static AttnStatus run_pass(const AttnArgs *a, OwnerPass pass, const View *view,
                           const Weights *weights, float *delta_out)
{
    return run_for_dim<LaunchPass, float>(a, pass, view, weights, delta_out);
}

/* a: float32. O = W V, with the lse that is there to begin with. sums_dev [B][H][Nq] */
static AttnStatus weighted_output(const AttnArgs *a, const Weights *weights, float *sums_dev)
{
    View first = view_of_queries(a, a->lse), view = view_of_queries(a, sums_dev);
    const AttnStatus status = run_pass(a, PASS_SUM, &first, weights, sums_dev);
    view.gradient_dP = a->O;
    return status == ATTN_OK ? run_pass(a, PASS_OUTPUT, &view, weights, NULL) : status;
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
    return !attn_clips(a) && !attn_drops(a);
}

AttnStatus window_tiles_run_cuda(const AttnArgs *plain)
{
    FloatCopies copies;
    Weights weights;
    const AttnShape *n = &plain->shape;
    const size_t tokens = attn_drops(plain) ? (size_t)(n->Nq + n->Nk) : 0;
    const size_t rows = weights_are_plain(plain) ? 0 : (size_t)(n->B * n->H * n->Nq);
    AttnStatus status = float_copies_make(&copies, plain, FLOATS_FORWARD,
                                          tokens * sizeof(Token) + rows * sizeof(float));
    if (status == ATTN_OK)
        status = flash_cuda_run(&copies.args, NULL, NULL); /* O and lse, or lse alone */
    if (status == ATTN_OK && !weights_are_plain(plain)) {
        status = make_weights(plain, &weights, (Token *)copies.extra);
        if (status == ATTN_OK)
            status =
                weighted_output(&copies.args, &weights, (float *)((Token *)copies.extra + tokens));
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
    const size_t tokens = attn_drops(plain) ? (size_t)(n->Nq + n->Nk) : 0;
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
