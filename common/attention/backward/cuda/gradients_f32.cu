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
 * As in stage 03's library a thread keeps pieces of the results in registers. The walk, with its
 * products and the slices of their factors, is owner_walk.cuh; here is what makes P of S and dS of
 * P and dP, and the launches.
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
#include "owner_walk.cuh"

/* Weights that are the probabilities themselves. */
template <class C> struct Probabilities {
    static const bool ANY_dO = true;

    __device__ __forceinline__ void weigh(float (&S_reg)[C::ROWS][C::COLS], const TilePart<C> &part,
                                          int, int j, bool clean)
    {
        if (clean)
            ::weigh<C, false>(S_reg, part.a, part.mask, part.lse_smem, part.W_smem, part.row0,
                              part.column0, j);
        else
            ::weigh<C, true>(S_reg, part.a, part.mask, part.lse_smem, part.W_smem, part.row0,
                             part.column0, j);
    }
    __device__ __forceinline__ void finish_dS(const float (&P_reg)[C::ROWS][C::COLS],
                                              const float (&dP_reg)[C::ROWS][C::COLS],
                                              const TilePart<C> &part)
    {
        ::finish_dS<C>(P_reg, dP_reg, part.delta_smem, part.W_smem);
    }
};

template <class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    gradient_kernel(const __grid_constant__ View view)
{
    Probabilities<C> weighing;
    walk_tiles<C>(view, weighing);
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
    typedef OwnerTile<D, PASS_ROWS> C;
    static AttnStatus run(const AttnArgs *a, const View *view)
    {
        return launch_gradient<C>(a, view);
    }
};

template <typename T, int D> struct LaunchKeys {
    typedef OwnerTile<D, PASS_KEYS> C;
    static AttnStatus run(const AttnArgs *a, const View *view)
    {
        return launch_gradient<C>(a, view);
    }
};

/* For the byte model: the own rows of either kernel. */
template <typename T, int D> struct OwnTiles {
    struct C {
        static const int Br = OwnerTile<D, PASS_ROWS>::OWN, Bc = OwnerTile<D, PASS_KEYS>::OWN;
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
