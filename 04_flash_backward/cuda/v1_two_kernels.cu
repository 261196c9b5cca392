/* SPDX-License-Identifier: MIT
 *
 * v1_two_kernels: no atomics. One kernel owns queries and gives dQ, one owns keys and gives dK and
 * dV.
 *
 *     own = queries, walks over keys:    S = Q K^T,  dP = dO V^T,  dQ += scale dS K
 *     own = keys, walks over queries:    S = Q K^T,  dP = dO V^T,  dV += P^T dO,  dK += scale
 *     dS^T Q
 *
 * Whatever is summed up has one owner, which adds in the order of its walk: the same bits on every
 * run, and no sums of dQ in memory. The price: S and dP are computed twice, seven products instead
 * of five. The second kernel is v0's without its third product.
 *
 * Prediction (H200, f32, N = 16384, 2048 channels in all): v0 adds 16384 * 16384 / 32 * 2048 floats
 * of dQ, 17e9, to the L2 cache, which takes about 2500 a clock: 4 ms of some 300. So little is
 * gained, and 7/5 of the products have to be paid for: 0.75 times v0. (The library has the same two
 * kernels with tiles in registers.)
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 *
 * Interface:
 * - flash_backward_v1_two_kernels, flash_backward_tiles_v1_two_kernels: f32, d = 64 and 128.
 */
#include "block_tile.cuh"

using namespace rung;

/* Shared memory of either kernel. */
template <class C> struct TwoKernelsSmem {
    float *Q, *dO, *K, *V, *P, *dS; /* [Br][D] [Br][D] [Bc][LD] [Bc][LD] [Br][Bc] [Br][Bc] */

    __device__ __forceinline__ explicit TwoKernelsSmem(float *smem)
    {
        Q = smem;
        dO = Q + C::Br * C::D;
        K = dO + C::Br * C::D;
        V = K + C::Bc * C::LD;
        P = V + C::Bc * C::LD;
        dS = P + C::Br * C::Bc;
    }
};

/* One block: Br queries of one head, all keys that they see. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    queries_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass)
{
    extern __shared__ float smem_f32[];
    __shared__ Plain plain;
    const TwoKernelsSmem<C> s(smem_f32);
    const int tiles = divide_up((int)a.shape.Nq, C::Br), i0 = blockIdx.x % tiles * C::Br;
    const int h = blockIdx.x / tiles % (int)a.shape.H, b = blockIdx.x / tiles / (int)a.shape.H;
    const int h_kv = h / (int)(a.shape.H / a.shape.Hkv);
    publish_plain(plain, a);
    const Rows seen = {plain.first_row, plain.end_row}, keys = {0, plain.Nk};
    const int begin = max(0, i0 + plain.low);
    const int end = min(plain.Nk, i0 + C::Br + plain.high);

    float dQ_reg[C::Br / C::WARPS][C::D / 32] = {};
    load_rows<C>(s.Q, C::D, a.Q, b, h, i0, C::Br, seen);
    load_rows<C>(s.dO, C::D, a.dO, b, h, i0, C::Br, seen);
    for (int j0 = begin / C::Bc * C::Bc; j0 < end; j0 += C::Bc) {
        __syncthreads(); /* nobody reads the last tile any more */
        load_rows<C>(s.K, C::LD, a.K, b, h_kv, j0, C::Bc, keys);
        load_rows<C>(s.V, C::LD, a.V, b, h_kv, j0, C::Bc, keys);
        __syncthreads();
        score_tile<C>(plain, stats_of_head(a, pass, b, h) + i0, a.scale, i0, j0, s.Q, s.dO, s.K,
                      s.V, s.P, s.dS);
        __syncthreads();
        add_product<C>(dQ_reg, s.dS, C::Bc, 1, s.K, C::LD, C::Bc);
    }
    store_rows<C>(a.dQ, b, h, i0, dQ_reg, a.scale);
}

/* One block: Bc keys of one kv head, all queries of its group that see them. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    keys_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass)
{
    extern __shared__ float smem_f32[];
    const TwoKernelsSmem<C> s(smem_f32);
    __shared__ Plain plain;
    const KeyBlock block = block_of_keys(a, C::Bc);
    publish_plain(plain, a);
    const Rows seen = {plain.first_row, plain.end_row};
    const Rows rows = rows_that_see(plain, block.j0, C::Bc), keys = {0, plain.Nk};
    const int b = block.b;

    float dK_reg[C::Bc / C::WARPS][C::D / 32] = {}, dV_reg[C::Bc / C::WARPS][C::D / 32] = {};
    load_rows<C>(s.K, C::LD, a.K, b, block.h_kv, block.j0, C::Bc, keys);
    load_rows<C>(s.V, C::LD, a.V, b, block.h_kv, block.j0, C::Bc, keys);
    for (int h = block.h_kv * block.group; h < (block.h_kv + 1) * block.group; h++)
        for (int i0 = rows.begin / C::Br * C::Br; i0 < rows.end; i0 += C::Br) {
            __syncthreads(); /* nobody reads the last tile any more */
            load_rows<C>(s.Q, C::D, a.Q, b, h, i0, C::Br, seen);
            load_rows<C>(s.dO, C::D, a.dO, b, h, i0, C::Br, seen);
            __syncthreads();
            score_tile<C>(plain, stats_of_head(a, pass, b, h) + i0, a.scale, i0, block.j0, s.Q,
                          s.dO, s.K, s.V, s.P, s.dS);
            __syncthreads();
            add_product<C>(dV_reg, s.P, 1, C::Bc, s.dO, C::D, C::Br);
            add_product<C>(dK_reg, s.dS, 1, C::Bc, s.Q, C::D, C::Br);
        }
    store_rows<C>(a.dK, b, block.h_kv, block.j0, dK_reg, a.scale);
    store_rows<C>(a.dV, b, block.h_kv, block.j0, dV_reg, 1.0f);
}

template <class C> static AttnStatus launch_two_kernels(const AttnArgs *a, const Pass &pass)
{
    const AttnShape *n = &a->shape;
    const cudaStream_t stream = (cudaStream_t)a->stream;
    AttnStatus status = cuda_reserve_smem((const void *)queries_kernel<C>, C::SMEM);
    if (status == ATTN_OK)
        status = cuda_reserve_smem((const void *)keys_kernel<C>, C::SMEM);
    if (status != ATTN_OK)
        return status;
    queries_kernel<C>
        <<<(unsigned)(n->B * n->H * divide_up((int)n->Nq, C::Br)), C::THREADS, C::SMEM, stream>>>(
            *a, pass);
    CUDA_TRY_LAUNCH();
    keys_kernel<C>
        <<<(unsigned)(n->B * n->Hkv * divide_up((int)n->Nk, C::Bc)), C::THREADS, C::SMEM, stream>>>(
            *a, pass);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

FlashTiles flash_backward_tiles_v1_two_kernels(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, a->shape.d == 64 ? BlockTile<64>::Br : BlockTile<128>::Br,
                          BlockTile<64>::Bc);
}

AttnStatus flash_backward_v1_two_kernels(const AttnArgs *a)
{
    return run_pass(a,
                    a->shape.d == 64 ? launch_two_kernels<BlockTile<64>>
                                     : launch_two_kernels<BlockTile<128>>,
                    false);
}
