/* SPDX-License-Identifier: MIT
 *
 * v0_atomics: the loops of the CPU's v1_fa2_backward, each tile of keys a block of its own.
 *
 *     for each tile of keys j:                       its own block
 *         K_j, V_j to shared memory                  dK_j = dV_j = 0, in registers
 *         for each query head of the group, for each tile of queries i:
 *             Q_i, dO_i to shared memory
 *             P  = exp(S - lse)                      dS = P * (dP - delta)
 *             dV_j += P^T dO_i                       dK_j += scale * dS^T Q_i
 *             dQ_i += scale * dS K_j                 by atomicAdd
 *         store dK_j, dV_j                           nobody else has these keys
 *
 * dK_j and dV_j belong to one block, with grouped heads too, because the block walks through all
 * heads of the group. dQ_i belongs to nobody: every block has something to add to it, all of them
 * at the same time. `dQ[x] += y` would be three steps, load, add, store, and what another block
 * stores in between would be lost. atomicAdd makes it one step, done by the L2 cache. The order in
 * which blocks get there is a matter of luck, float addition is not associative, and so the last
 * bits of dQ differ from run to run.
 *
 * Prediction (H200, f32, N = 16384, 2048 channels in all): as in stage 03's v1_fa2 each FMA takes
 * one or two words from shared memory, which delivers 32 of them a clock where 128 could be
 * multiplied: 60 TFLOP/s / 4 to 60 / 8, 7 to 15 TFLOP/s, at d = 64 and at d = 128.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 *
 * Interface:
 * - flash_backward_v0_atomics, flash_backward_tiles_v0_atomics: f32, d = 64 and 128.
 */
#include "block_tile.cuh"

using namespace rung;

/* One block: Bc keys of one kv head, all queries of its group. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    atomics_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass)
{
    extern __shared__ float smem_f32[];
    float *Q_smem = smem_f32, *dO_smem = Q_smem + C::Br * C::D; /* [Br][D] */
    float *K_smem = dO_smem + C::Br * C::D;                     /* [Bc][LD] */
    float *V_smem = K_smem + C::Bc * C::LD;                     /* [Bc][LD] */
    float *P_smem = V_smem + C::Bc * C::LD;                     /* [Br][Bc] */
    float *dS_smem = P_smem + C::Br * C::Bc;                    /* [Br][Bc] */
    __shared__ Plain plain;
    const KeyBlock block = block_of_keys(a, C::Bc);
    publish_plain(plain, a);
    const Rows seen = {plain.first_row, plain.end_row};
    const Rows rows = rows_that_see(plain, block.j0, C::Bc), keys = {0, plain.Nk};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, b = block.b;

    float dK_reg[C::Bc / C::WARPS][C::D / 32] = {}, dV_reg[C::Bc / C::WARPS][C::D / 32] = {};
    load_rows<C>(K_smem, C::LD, a.K, b, block.h_kv, block.j0, C::Bc, keys);
    load_rows<C>(V_smem, C::LD, a.V, b, block.h_kv, block.j0, C::Bc, keys);
    for (int h = block.h_kv * block.group; h < (block.h_kv + 1) * block.group; h++)
        for (int i0 = rows.begin / C::Br * C::Br; i0 < rows.end; i0 += C::Br) {
            __syncthreads(); /* nobody reads the last tile any more */
            load_rows<C>(Q_smem, C::D, a.Q, b, h, i0, C::Br, seen);
            load_rows<C>(dO_smem, C::D, a.dO, b, h, i0, C::Br, seen);
            __syncthreads();
            score_tile<C>(plain, stats_of_head(a, pass, b, h) + i0, a.scale, i0, block.j0, Q_smem,
                          dO_smem, K_smem, V_smem, P_smem, dS_smem);
            __syncthreads();
            add_product<C>(dV_reg, P_smem, 1, C::Bc, dO_smem, C::D, C::Br);
            add_product<C>(dK_reg, dS_smem, 1, C::Bc, Q_smem, C::D, C::Br);
            float dQ_reg[C::Br / C::WARPS][C::D / 32] = {};
            add_product<C>(dQ_reg, dS_smem, C::Bc, 1, K_smem, C::LD, C::Bc);
#pragma unroll
            for (int n = 0; n < C::Br / C::WARPS; n++) {
                const int i = i0 + warp + C::WARPS * n;
                float *dQ_i = pass.dQ_sum + ((b * a.shape.Nq + i) * a.shape.H + h) * C::D + lane;
#pragma unroll
                for (int x = 0; x < C::D / 32; x++)
                    if (i < a.shape.Nq)
                        atomicAdd(dQ_i + 32 * x, dQ_reg[n][x]);
            }
        }
    store_rows<C>(a.dK, b, block.h_kv, block.j0, dK_reg, a.scale);
    store_rows<C>(a.dV, b, block.h_kv, block.j0, dV_reg, 1.0f);
}

template <class C> static AttnStatus launch_atomics(const AttnArgs *a, const Pass &pass)
{
    const unsigned blocks =
        (unsigned)(a->shape.B * a->shape.Hkv * divide_up((int)a->shape.Nk, C::Bc));
    const AttnStatus status = cuda_reserve_smem((const void *)atomics_kernel<C>, C::SMEM);
    if (status != ATTN_OK)
        return status;
    atomics_kernel<C><<<blocks, C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(*a, pass);
    CUDA_TRY_LAUNCH();
    return round_dQ(a, pass);
}

FlashTiles flash_backward_tiles_v0_atomics(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, a->shape.d == 64 ? BlockTile<64>::Br : BlockTile<128>::Br,
                          BlockTile<64>::Bc);
}

AttnStatus flash_backward_v0_atomics(const AttnArgs *a)
{
    return run_pass(
        a, a->shape.d == 64 ? launch_atomics<BlockTile<64>> : launch_atomics<BlockTile<128>>, true);
}
