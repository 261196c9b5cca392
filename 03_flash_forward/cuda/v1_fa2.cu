/* SPDX-License-Identifier: MIT
 *
 * v1_fa2: the loops of v0 exchanged, FlashAttention-2's order (arXiv 2307.08691).
 *
 *     for each tile of queries i:                    its own block
 *         O_i = 0, l_i = 0, m_i = -inf               in registers
 *         for each tile of keys j:                   K_j, V_j to shared memory
 *             add tile j
 *         O_i / l_i and lse_i to memory              once
 *
 * The state of a row is needed by nobody else, so it stays in the registers of its warp, O is
 * divided once instead of once for each tile, and every tile of rows is a block of its own:
 * B * H * Nq / 32 of them.
 *
 * What it costs: K and V are read once for each tile of rows, not once. The L2 cache has them.
 *
 * The arithmetic is v0's, instruction for instruction (warp_row.cuh). What is slow now: for each
 * FMA of Q K^T a lane reads one word of K and one of Q from shared memory, which delivers 32 words
 * a clock to the whole multiprocessor; its units could do 128 FMA in that clock.
 *
 * Prediction (H200, f32, d=64): all 132 multiprocessors, limited by shared memory to about an
 * eighth of the FMA rate: 6-12 TFLOP/s.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f32, d = 64 and 128.
 */
#include "problem.cuh"
#include "units/warp_row.cuh"

/* One block: Br rows of one head, ROWS of them for each warp. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS) fa2_kernel(const __grid_constant__ Problem p)
{
    extern __shared__ float smem_f32[];
    float *Q_smem = smem_f32, *K_smem = Q_smem + C::Br * C::D, *V_smem = K_smem + C::Bc * C::LD;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const BlockWork work = work_of_block(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const float *Q = queries_of((const float *)p.Q, p, work);
    const float *K = keys_of((const float *)p.K, p, work);
    const float *V = keys_of((const float *)p.V, p, work);

    float m_i[C::ROWS], l_i[C::ROWS], O_reg[C::ROWS][C::D / 32];
#pragma unroll
    for (int n = 0; n < C::ROWS; n++) {
        m_i[n] = -INFINITY;
        l_i[n] = 0.0f;
#pragma unroll
        for (int x = 0; x < C::D / 32; x++)
            O_reg[n][x] = 0.0f;
    }
    load_rows<C>(Q_smem, C::D, Q, Q_step, work.i0, p.Nq);
    for (int j = tiles.begin; j < tiles.end; j++) {
        const int j0 = j * C::Bc;
        __syncthreads(); /* nobody reads the last tile any more */
        load_rows<C>(K_smem, C::LD, K, K_step, j0, p.Nk);
        load_rows<C>(V_smem, C::LD, V, K_step, j0, p.Nk);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < C::ROWS; n++) {
            const int r = warp + n * C::WARPS, i = work.i0 + r;
            if (i < p.Nq) /* the same for all lanes of the warp */
                step_row<C>(p.scale, first_key(&p, i), end_key(&p, i), j0, Q_smem + r * C::D,
                            K_smem, V_smem, m_i[n], l_i[n], O_reg[n]);
        }
    }
    const BlockWork done = work_of_block(p, C::Br); /* once more: no registers were kept for it */
#pragma unroll
    for (int n = 0; n < C::ROWS; n++) {
        const int i = done.i0 + warp + n * C::WARPS;
        if (i >= p.Nq)
            continue;
        float *O_i = (float *)p.O + query_row(&p, done.b, done.h, i);
        const float inverse = l_i[n] == 0.0f ? 0.0f : 1.0f / l_i[n];
#pragma unroll
        for (int x = 0; x < C::D / 32; x++)
            O_i[lane + 32 * x] = O_reg[n][x] * inverse;
        if (lane == 0)
            p.lse[lse_row(&p, done.b, done.h, i)] = m_i[n] + logf(l_i[n]);
    }
}

template <int D> static void launch(const Problem *p)
{
    typedef RowTile<D> C;
    if (reserve_smem((const void *)fa2_kernel<C>, C::SMEM))
        fa2_kernel<C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p);
}

static void forward(const Problem *p)
{
    RUN_F32(launch, p);
}

static Tiles tiles(const Problem *)
{
    return {RowTile<64>::Br, RowTile<64>::Bc};
}

RUNG(flash_forward, v1_fa2, "queries outside, state in registers", F32, forward, NULL, NULL, tiles,
     0);
