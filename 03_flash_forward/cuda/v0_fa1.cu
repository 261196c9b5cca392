/* SPDX-License-Identifier: MIT
 *
 * v0_fa1: FlashAttention's Algorithm 1 as published (arXiv 2205.14135), on the GPU.
 *
 *     for each tile of keys j:                       K_j, V_j to shared memory
 *         for each tile of queries i:                Q_i to shared memory
 *             O_i, l_i, m_i from memory  ->  add tile j  ->  O_i, l_i, m_i to memory
 *
 * Nothing of size N x N is ever written. But the outer loop carries no state, so O, l and m of all
 * rows make a round trip through memory for every tile of keys, and the tiles of keys cannot go to
 * different blocks: all blocks would need to add to the same O. One block a head is all the
 * parallelism there is, 16 heads leave 116 of 132 multiprocessors idle.
 *
 * As in the paper O is kept normalised in memory: times l_i on the way in, over l_i on the way out.
 *
 * Prediction (H200, f32, d=64): B*H blocks, each at most one FMA instruction for every two reads of
 * shared memory (no reuse in registers): 16 of 132 multiprocessors at a fifth of their FMA rate, 1
 * to 2 TFLOP/s with 16 heads.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 * (That is Q K^T. P V has one read for each FMA.)
 *
 * Interface:
 * - flash_forward_v0_fa1: f32, the plain problem. Device memory: m and l, 8 bytes for each row.
 */
#include "alloc.h"
#include "warp_row.cuh"

using namespace plain;

namespace v0
{

/* Could any row of tile i0 see any key of tile j0? The same answer in all threads. */
template <class C> static __device__ __forceinline__ bool visits(Band band, int i0, int j0)
{
    return band.from <= j0 + C::Bc - 1 - i0 && j0 - (i0 + C::Br - 1) <= band.to;
}

/* One block: one head. m_dev, l_dev [B][H][Nq]; O in place. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    fa1_kernel(const __grid_constant__ AttnArgs a, float *m_dev, float *l_dev)
{
    extern __shared__ float smem_f32[];
    float *Q_smem = smem_f32, *K_smem = Q_smem + C::Br * C::D, *V_smem = K_smem + C::Bc * C::LD;
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
    const Band band = band_of(a);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const BlockWork work = work_of_head(a, blockIdx.x, 0);
    const float *Q = head_of<const float>(a.Q, work.b, work.h);
    const float *K = head_of<const float>(a.K, work.b, work.h_kv);
    const float *V = head_of<const float>(a.V, work.b, work.h_kv);
    float *O = head_of<float>(a.O, work.b, work.h);

    /* A row always belongs to the same warp, and an element of O to the same lane. */
    for (int i = warp; i < Nq; i += C::WARPS) {
        for (int x = lane; x < C::D; x += 32)
            O[i * a.O.stride[1] + x] = 0.0f;
        if (lane == 0) {
            m_dev[lse_row(a, work, i)] = -INFINITY;
            l_dev[lse_row(a, work, i)] = 0.0f;
        }
    }
    for (int j0 = 0; j0 < Nk; j0 += C::Bc) {
        load_rows<C>(K_smem, C::LD, K, a.K.stride[1], j0, Nk);
        load_rows<C>(V_smem, C::LD, V, a.V.stride[1], j0, Nk);
        for (int i0 = 0; i0 < Nq; i0 += C::Br) {
            if (!visits<C>(band, i0, j0))
                continue;
            load_rows<C>(Q_smem, C::D, Q, a.Q.stride[1], i0, Nq);
            __syncthreads(); /* the tiles, and what the last step left in O, m and l */
            for (int r = warp; r < C::Br && i0 + r < Nq; r += C::WARPS) {
                const int64_t row = lse_row(a, work, i0 + r);
                float *O_i = O + (i0 + r) * a.O.stride[1] + lane;
                float m_i = m_dev[row], l_i = l_dev[row], O_reg[C::D / 32];
#pragma unroll
                for (int n = 0; n < C::D / 32; n++)
                    O_reg[n] = O_i[32 * n] * l_i;
                step_row<C>(a, band, i0 + r, j0, Q_smem + r * C::D, K_smem, V_smem, m_i, l_i,
                            O_reg);
                __syncwarp(); /* all lanes have read m and l */
#pragma unroll
                for (int n = 0; n < C::D / 32; n++)
                    O_i[32 * n] = l_i == 0.0f ? 0.0f : O_reg[n] / l_i;
                if (lane == 0) {
                    m_dev[row] = m_i;
                    l_dev[row] = l_i;
                }
            }
            __syncthreads(); /* Q_smem may be overwritten */
        }
        __syncthreads(); /* so may K_smem and V_smem, if no row tile was visited */
    }
    for (int i = warp; i < Nq; i += C::WARPS)
        if (lane == 0) {
            const int64_t row = lse_row(a, work, i);
            a.lse[row] = m_dev[row] + logf(l_dev[row]); /* nothing seen: -inf + log(0) */
        }
}

template <typename T, int D> struct Launch {
    typedef RowTile<D> C;
    static AttnStatus run(const AttnArgs *a)
    {
        const int64_t heads = a->shape.B * a->shape.H, rows = heads * a->shape.Nq;
        AttnStatus status = cuda_reserve_smem((const void *)fa1_kernel<C>, C::SMEM);
        if (status != ATTN_OK)
            return status;
        float *m_dev = (float *)workspace_alloc_device((size_t)(2 * rows) * sizeof(float));
        if (!m_dev)
            return ATTN_NO_MEMORY;
        fa1_kernel<C><<<(unsigned)heads, C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(
            *a, m_dev, m_dev + rows);
        const cudaError_t error = cudaGetLastError();
        workspace_free_device(m_dev); /* kept until the kernel is done */
        CUDA_TRY(error);
        return ATTN_OK;
    }
};

} // namespace v0

FlashTiles flash_tiles_v0_fa1(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, RowTile<64>::Br, RowTile<64>::Bc);
}

AttnStatus flash_forward_v0_fa1(const AttnArgs *a)
{
    return a->Q.dtype == ATTN_F32 ? run_for_dim<v0::Launch, float>(a) : ATTN_SKIP;
}
