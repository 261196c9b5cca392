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
 * - RUNG at the end: f32, d = 64 and 128.
 */
#include "problem.cuh"
#include "units/block_tile.cuh"

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
    queries_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
{
    extern __shared__ float smem_f32[];
    const TwoKernelsSmem<C> s(smem_f32);
    const BlockWork work = work_of_block(p, C::Br);
    const int i0 = work.i0;
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange keys = {0, p.Nk}, seen = rows_that_see(band);
    const int begin = max(0, i0 + p.from), end = min(p.Nk, i0 + C::Br + p.to);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const int64_t query_0 = query_row(&p, work.b, work.h, 0);
    const int64_t key_0 = key_row(&p, work.b, work.h_kv, 0);
    const float2 *stats = stats_of_head(pass, work.b * p.H + work.h, p.Nq) + i0;

    float dQ_reg[C::Br / C::WARPS][C::D / 32] = {};
    load_rows<C>(s.Q, C::D, (const float *)p.Q + query_0, Q_step, i0, C::Br, seen);
    load_rows<C>(s.dO, C::D, (const float *)p.dO + query_0, Q_step, i0, C::Br, seen);
    for (int j0 = begin / C::Bc * C::Bc; j0 < end; j0 += C::Bc) {
        __syncthreads(); /* nobody reads the last tile any more */
        load_rows<C>(s.K, C::LD, (const float *)p.K + key_0, K_step, j0, C::Bc, keys);
        load_rows<C>(s.V, C::LD, (const float *)p.V + key_0, K_step, j0, C::Bc, keys);
        __syncthreads();
        score_tile<C>(band, stats, p.scale, i0, j0, s.Q, s.dO, s.K, s.V, s.P, s.dS);
        __syncthreads();
        add_product<C>(dQ_reg, s.dS, C::Bc, 1, s.K, C::LD, C::Bc);
    }
    store_rows<C>((float *)p.dQ + query_0, Q_step, i0, p.Nq, dQ_reg, p.scale);
}

/* One block: Bc keys of one kv head, all queries of its group that see them. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    keys_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
{
    extern __shared__ float smem_f32[];
    const TwoKernelsSmem<C> s(smem_f32);
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange keys = {0, p.Nk}, seen = rows_that_see(band);
    const RowRange rows = rows_that_see(band, block.j0, C::Bc);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const int64_t key_0 = key_row(&p, block.b, block.h_kv, 0);

    float dK_reg[C::Bc / C::WARPS][C::D / 32] = {}, dV_reg[C::Bc / C::WARPS][C::D / 32] = {};
    load_rows<C>(s.K, C::LD, (const float *)p.K + key_0, K_step, block.j0, C::Bc, keys);
    load_rows<C>(s.V, C::LD, (const float *)p.V + key_0, K_step, block.j0, C::Bc, keys);
    for (int h = block.h_kv * block.group; h < (block.h_kv + 1) * block.group; h++)
        for (int i0 = rows.begin / C::Br * C::Br; i0 < rows.end; i0 += C::Br) {
            const int64_t query_0 = query_row(&p, block.b, h, 0);
            __syncthreads(); /* nobody reads the last tile any more */
            load_rows<C>(s.Q, C::D, (const float *)p.Q + query_0, Q_step, i0, C::Br, seen);
            load_rows<C>(s.dO, C::D, (const float *)p.dO + query_0, Q_step, i0, C::Br, seen);
            __syncthreads();
            score_tile<C>(band, stats_of_head(pass, block.b * p.H + h, p.Nq) + i0, p.scale, i0,
                          block.j0, s.Q, s.dO, s.K, s.V, s.P, s.dS);
            __syncthreads();
            add_product<C>(dV_reg, s.P, 1, C::Bc, s.dO, C::D, C::Br);
            add_product<C>(dK_reg, s.dS, 1, C::Bc, s.Q, C::D, C::Br);
        }
    store_rows<C>((float *)p.dK + key_0, K_step, block.j0, p.Nk, dK_reg, p.scale);
    store_rows<C>((float *)p.dV + key_0, K_step, block.j0, p.Nk, dV_reg, 1.0f);
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <int D> static void launch(const Problem *p)
{
    typedef BlockTile<D> C;
    if (!reserve_smem((const void *)queries_kernel<C>, C::SMEM) ||
        !reserve_smem((const void *)keys_kernel<C>, C::SMEM))
        return;
    const Pass pass = start_pass(sizes_of(p), (const float *)p->O, (const float *)p->dO, p->lse,
                                 p->work, false, stream_of(p));
    queries_kernel<C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p, pass);
    keys_kernel<C><<<key_blocks(p, C::Bc), C::THREADS, C::SMEM, stream_of(p)>>>(*p, pass);
}

static void backward(const Problem *p)
{
    RUN_F32(launch, p);
}

static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), false);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? BlockTile<64>::Br : BlockTile<128>::Br, BlockTile<64>::Bc};
}

RUNG(flash_backward, v1_two_kernels,
     "queries own dQ, keys own dK and dV: no atomics, seven products", F32, NULL, backward, work,
     tiles, 0);
