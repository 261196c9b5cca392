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
 * - flash_forward_v1_fa2: f32, the plain problem.
 */
#include "warp_row.cuh"

using namespace plain;

namespace v1
{

/* One block: Br rows of one head, ROWS of them for each warp. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS) fa2_kernel(const __grid_constant__ AttnArgs a)
{
    extern __shared__ float smem_f32[];
    float *Q_smem = smem_f32, *K_smem = Q_smem + C::Br * C::D, *V_smem = K_smem + C::Bc * C::LD;
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
    const Band band = band_of(a);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const BlockWork work = work_of_block(a, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(a, band, work.i0);
    const float *Q = head_of<const float>(a.Q, work.b, work.h);
    const float *K = head_of<const float>(a.K, work.b, work.h_kv);
    const float *V = head_of<const float>(a.V, work.b, work.h_kv);

    float m_i[C::ROWS], l_i[C::ROWS], O_reg[C::ROWS][C::D / 32];
#pragma unroll
    for (int n = 0; n < C::ROWS; n++) {
        m_i[n] = -INFINITY;
        l_i[n] = 0.0f;
#pragma unroll
        for (int x = 0; x < C::D / 32; x++)
            O_reg[n][x] = 0.0f;
    }
    load_rows<C>(Q_smem, C::D, Q, a.Q.stride[1], work.i0, Nq);
    for (int j = tiles.begin; j < tiles.end; j++) {
        const int j0 = j * C::Bc;
        __syncthreads(); /* nobody reads the last tile any more */
        load_rows<C>(K_smem, C::LD, K, a.K.stride[1], j0, Nk);
        load_rows<C>(V_smem, C::LD, V, a.V.stride[1], j0, Nk);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < C::ROWS; n++) {
            const int r = warp + n * C::WARPS, i = work.i0 + r;
            if (i < Nq) /* the same for all lanes of the warp */
                step_row<C>(a, band, i, j0, Q_smem + r * C::D, K_smem, V_smem, m_i[n], l_i[n],
                            O_reg[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < C::ROWS; n++) {
        const int i = work.i0 + warp + n * C::WARPS;
        if (i >= Nq)
            continue;
        float *O_i = head_of<float>(a.O, work.b, work.h) + i * a.O.stride[1];
        const float inverse = l_i[n] == 0.0f ? 0.0f : 1.0f / l_i[n];
#pragma unroll
        for (int x = 0; x < C::D / 32; x++)
            O_i[lane + 32 * x] = O_reg[n][x] * inverse;
        if (lane == 0)
            a.lse[lse_row(a, work, i)] = m_i[n] + logf(l_i[n]);
    }
}

template <typename T, int D> struct Launch {
    static AttnStatus run(const AttnArgs *a)
    {
        return launch<RowTile<D>>(fa2_kernel<RowTile<D>>, a);
    }
};

} // namespace v1

FlashTiles flash_tiles_v1_fa2(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, RowTile<64>::Br, RowTile<64>::Bc);
}

AttnStatus flash_forward_v1_fa2(const AttnArgs *a)
{
    return a->Q.dtype == ATTN_F32 ? run_for_dim<v1::Launch, float>(a) : ATTN_SKIP;
}
