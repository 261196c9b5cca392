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
 * shared memory (no reuse in registers; that is Q K^T, P V has one read for each FMA): 16 of 132
 * multiprocessors at a fifth of their FMA rate, 1 to 2 TFLOP/s with 16 heads. (v1 counts Q K^T
 * alone and says an eighth.)
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f32, d = 64 and 128. Work space: m and l, 8 bytes for each row.
 */
#include "problem.cuh"
#include "units/warp_row.cuh"

/* Could any row of tile i0 see any key of tile j0? The same answer in all threads. */
template <class C> static __device__ __forceinline__ bool visits(const Problem &p, int i0, int j0)
{
    return p.from <= j0 + C::Bc - 1 - i0 && j0 - (i0 + C::Br - 1) <= p.to;
}

/* One block: one head. m_dev, l_dev [B][H][Nq]; O in place. There are few heads, so three blocks on
 * an SM will do: told so, the compiler spends registers on loads that run ahead of the products. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS, 3)
    fa1_kernel(const __grid_constant__ Problem p, float *m_dev, float *l_dev)
{
    extern __shared__ float smem_f32[];
    float *Q_smem = smem_f32, *K_smem = Q_smem + C::Br * C::D, *V_smem = K_smem + C::Bc * C::LD;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const BlockWork work = work_of_head(p, blockIdx.x, 0);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const float *Q = queries_of((const float *)p.Q, p, work);
    const float *K = keys_of((const float *)p.K, p, work);
    const float *V = keys_of((const float *)p.V, p, work);
    float *O = queries_of((float *)p.O, p, work);

    /* A row always belongs to the same warp, and an element of O to the same lane. */
    for (int i = warp; i < p.Nq; i += C::WARPS) {
        for (int x = lane; x < C::D; x += 32)
            O[i * Q_step + x] = 0.0f;
        if (lane == 0) {
            m_dev[lse_row(&p, work.b, work.h, i)] = -INFINITY;
            l_dev[lse_row(&p, work.b, work.h, i)] = 0.0f;
        }
    }
    for (int j0 = 0; j0 < p.Nk; j0 += C::Bc) {
        load_rows<C>(K_smem, C::LD, K, K_step, j0, p.Nk);
        load_rows<C>(V_smem, C::LD, V, K_step, j0, p.Nk);
        for (int i0 = 0; i0 < p.Nq; i0 += C::Br) {
            if (!visits<C>(p, i0, j0))
                continue;
            load_rows<C>(Q_smem, C::D, Q, Q_step, i0, p.Nq);
            __syncthreads(); /* the tiles, and what the last step left in O, m and l */
            for (int r = warp; r < C::Br && i0 + r < p.Nq; r += C::WARPS) {
                const int64_t row = lse_row(&p, work.b, work.h, i0 + r);
                float *O_i = O + (i0 + r) * Q_step + lane;
                float m_i = m_dev[row], l_i = l_dev[row], O_reg[C::D / 32];
#pragma unroll
                for (int n = 0; n < C::D / 32; n++)
                    O_reg[n] = O_i[32 * n] * l_i;
                step_row<C>(p.scale, first_key(&p, i0 + r), end_key(&p, i0 + r), j0,
                            Q_smem + r * C::D, K_smem, V_smem, m_i, l_i, O_reg);
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
    for (int i = warp; i < p.Nq; i += C::WARPS)
        if (lane == 0) {
            const int64_t row = lse_row(&p, work.b, work.h, i);
            p.lse[row] = m_dev[row] + logf(l_dev[row]); /* nothing seen: -inf + log(0) */
        }
}

static int64_t count_rows(const Problem *p)
{
    return (int64_t)p->B * p->H * p->Nq;
}

template <int D> static void launch(const Problem *p)
{
    typedef RowTile<D> C;
    float *m_dev = (float *)p->work, *l_dev = m_dev + count_rows(p);
    if (reserve_smem((const void *)fa1_kernel<C>, C::SMEM))
        fa1_kernel<C>
            <<<(unsigned)p->B * p->H, C::THREADS, C::SMEM, stream_of(p)>>>(*p, m_dev, l_dev);
}

static void forward(const Problem *p)
{
    RUN_F32(launch, p);
}

static int64_t work(const Problem *p, int)
{
    return 2 * (int64_t)sizeof(float) * count_rows(p);
}

static Tiles tiles(const Problem *)
{
    return {RowTile<64>::Br, RowTile<64>::Bc};
}

RUNG(flash_forward, v0_fa1, "keys outside: O, m and l through device memory", F32, forward, NULL,
     work, tiles, 0);
