/* SPDX-License-Identifier: MIT
 *
 * owner_walk.cuh: a block's walk over the tiles of the others, in float32: which product comes
 * when, and which slice of which factor is on its way meanwhile.
 *
 * All factors come through shared memory in slices (product_f32.cuh). A tile takes STEPS of them:
 *
 *     S        32 channels of the own rows and of the others, for each 32 channels
 *     sum_dP   some rows of the others (V or dO), times W
 *     dP       32 channels of the own rows and of the others
 *     sum_S    some rows of the others (K or Q), times dS
 *
 * While one is multiplied, cp.async brings the next into the other of two buffers. W and dS pass
 * through shared memory on their way from result to factor. What is made of S and of dP between
 * two products is the business of a Weighing: gradients_f32.cu has the one whose weights are the
 * probabilities, stage 05 one with clipping and dropout. It has
 *
 *     weigh(S_reg, part, head, j, clean)       S becomes P, W goes to part.W_smem if C::ADDS_W
 *     finish_dS(S_reg, dP_reg, part)           dS goes to part.W_smem
 *     add_delta(S_reg, dP_reg), store_delta(part)          if C::PASS is PASS_DELTA; for PASS_SUM
 *                                                          weigh adds, store_delta is called too
 *     ANY_dO     may dO hold anything in rows that see no key?
 *
 * Interface:
 * - TilePart: what a Weighing is told. walk_tiles: the walk of a block, up to its sums in memory.
 */
#ifndef FLASH_BACKWARD_OWNER_WALK_CUH
#define FLASH_BACKWARD_OWNER_WALK_CUH

#include "attention/forward/cuda/part_load_f32.cuh"
#include "attn_pairs.h"
#include "gradient_f32.cuh"

/* A thread's part of every tile: rows row0 + row_of(r), columns column0 + column_of(c). */
template <class C> struct TilePart {
    const AttnArgs &a; /* as the owners see it: queries = own, keys = others */
    const RowMask<C::OWN, C::OTHER> &mask;
    int row0, column0;
    const float *lse_smem, *delta_smem; /* from this thread's first query on */
    float *W_smem;                      /* its place in [OTHER][LD_OWN] */
};

/* One block: OWN rows of one head; of what is summed up OUT channels. */
template <class C, class Weighing>
static __device__ __forceinline__ void walk_tiles(const View &view, Weighing &weighing)
{
    extern __shared__ __align__(16) float smem_f32[]; /* W or dS [OTHER][LD_OWN], two slices */
    __shared__ __align__(16) float lse_smem[C::QUERIES], delta_smem[C::QUERIES];
    __shared__ RowMask<C::OWN, C::OTHER> mask;
    const AttnArgs &a = view.a;
    const int N_own = (int)a.shape.Nq, N_other = (int)a.shape.Nk, d = (int)a.shape.d;
    const int group = (int)(a.shape.H / a.shape.Hkv), out0 = blockIdx.y * C::OUT;
    const int row0 = threadIdx.x / 32 * 4 * C::ROWS + lane_row(), column0 = lane_column();
    float *slices = smem_f32 + C::OTHER * C::LD_OWN;
    const float *W_rows = smem_f32 + row0;                /* what this thread multiplies */
    float *W_own = smem_f32 + column0 * C::LD_OWN + row0; /* what it makes of it */
    const float *lse_own = lse_smem + (C::KEYS ? column0 : row0);
    const float *delta_own = delta_smem + (C::KEYS ? column0 : row0);
    const TilePart<C> part = {a, mask, row0, column0, lse_own, delta_own, W_own};
    const BlockWork work = longest_first<C>(view);
    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::OWN, N_own - work.i0));
    const KeyTiles tiles = find_key_tiles<C::OTHER>(a, q);
    Walk walk;
    walk.head = C::KEYS ? work.h * group : work.h / group;
    walk.head_end = C::KEYS ? walk.head + group : walk.head + 1;
    walk.j = next_key_tile<C::OTHER>(a, tiles, q, tiles.end, &walk.clean);
    if (C::ADDS_dS && walk.j < 0 && view.add)
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
        if (step < C::S_END || (step >= C::W_END && step < C::DP_END)) {
            const int x = (step < C::S_END ? step : step - C::W_END) * C::CHANNELS;
            load_part_f32<true, C::OWN, C::CHANNELS, C::LD_OWN, C::THREADS>(
                slice, f32_row(own, mask.work.b, mask.work.i0, mask.work.h) + x, own.stride[1],
                N_own - mask.work.i0, d - x);
            load_part_f32<true, C::OTHER, C::CHANNELS, C::LD_OTHER, C::THREADS>(
                slice + C::PAIR_OTHER, f32_row(other, mask.work.b, j0, walk.head) + x,
                other.stride[1], N_other - j0, d - x);
        } else {
            const int row = j0 + (step - (of_S ? C::DP_END : C::S_END)) * C::ROWS_OF_SLICE;
            load_part_f32<false, C::ROWS_OF_SLICE, C::OUT, C::OUT, C::THREADS>(
                slice, f32_row(other, mask.work.b, row, walk.head) + out0, other.stride[1],
                N_other - row, d - out0);
        }
        if (C::KEYS && step == 0)
            fetch_numbers<C>(lse_smem, delta_smem, view, mask.work.b, walk.head, j0, N_other);
        copy_async_commit();
    };

    float S_reg[C::ROWS][C::COLS], dP_reg[C::ROWS][C::COLS];
    /* dQ or dK, without the scale; O, or dV where keys own */
    float sum_S[C::ROWS][C::OUT / 8] = {}, sum_dP[C::W_ROWS][C::W_COLS] = {};
    __syncthreads(); /* the plan is published */
    if (walk.j >= 0) {
        if (!C::KEYS)
            fetch_numbers<C>(lse_smem, delta_smem, view, work.b, work.h, work.i0, N_own);
        fetch(0);
    }
    /* The slice that was fetched last; slice `next` is fetched, of the next tile if it is STEPS. */
    auto take_slice = [&](int next, bool may_end) -> float * {
        const bool last = may_end && next == C::STEPS;
        if (last)
            advance<C>(walk, view, mask);
        copy_async_wait<0>();
        __syncthreads(); /* the slice is here, and nobody reads the one before it any more */
        float *slice = slices + stage * C::SLICE;
        stage ^= 1;
        if (walk.j >= 0)
            fetch(last ? 0 : next);
        return slice;
    };
#pragma unroll 1
    while (walk.j >= 0) {
        const bool clean = walk.clean;
        const int j = walk.j, head = C::KEYS ? walk.head : mask.work.h;
        if (!clean && !mask.by_run)
            make_words<C>(mask, view, j);
        clear(S_reg);
#pragma unroll 1
        for (int step = 0; step < C::S_END; step++) { /* S = own_S other_S^T */
            const float *slice = take_slice(step + 1, C::PASS == PASS_SUM);
            multiply_add<C::CHANNELS, C::LD_OWN, C::LD_OTHER>(S_reg, slice + row0,
                                                              slice + C::PAIR_OTHER + column0);
        }
        weighing.weigh(S_reg, part, head, j, clean);
        if constexpr (C::ADDS_W) {
            const bool empty = Weighing::ANY_dO && C::KEYS && !clean && has_empty_rows<C>(lse_smem);
#pragma unroll 1
            for (int step = C::S_END; step < C::W_END; step++) { /* O += W V, dV += W^T dO */
                float *slice = take_slice(step + 1, !C::NEEDS_dP);
                if (empty)
                    clear_empty_rows<C>(slice, lse_smem + (step - C::S_END) * C::ROWS_OF_SLICE);
                multiply_add<C::ROWS_OF_SLICE, C::LD_OWN, C::OUT>(
                    sum_dP, W_rows + (step - C::S_END) * C::BAND_W, slice + column0);
            }
        }
        if constexpr (C::NEEDS_dP) {
            clear(dP_reg);
#pragma unroll 1
            for (int step = C::W_END; step < C::DP_END; step++) { /* dP = own_dP other_dP^T */
                const float *slice = take_slice(step + 1, !C::ADDS_dS);
                multiply_add<C::CHANNELS, C::LD_OWN, C::LD_OTHER>(dP_reg, slice + row0,
                                                                  slice + C::PAIR_OTHER + column0);
            }
        }
        if constexpr (C::PASS == PASS_DELTA)
            weighing.add_delta(S_reg, dP_reg);
        if constexpr (C::ADDS_dS) {
            weighing.finish_dS(S_reg, dP_reg, part);
#pragma unroll 1
            for (int step = C::DP_END; step < C::STEPS; step++) { /* dQ += dS K, dK += dS^T Q */
                const float *slice = take_slice(step + 1, true);
                multiply_add<C::ROWS_OF_SLICE, C::LD_OWN, C::OUT>(
                    sum_S, W_rows + (step - C::DP_END) * C::BAND_W, slice + column0);
            }
        }
    }
    if constexpr (C::ADDS_dS)
        store_gradient<C>(sum_S, view.gradient_S, mask.work, out0, row0, column0, a.scale,
                          view.add);
    if constexpr (C::ADDS_W)
        store_gradient<C>(sum_dP, view.gradient_dP, mask.work, out0, row0, column0, 1.0f, view.add);
    if constexpr (C::PASS == PASS_DELTA || C::PASS == PASS_SUM)
        weighing.store_delta(part);
}

#endif
