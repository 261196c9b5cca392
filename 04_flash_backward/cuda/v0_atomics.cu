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
 * - RUNG at the end: f32, d = 64 and 128.
 */
#include "problem.cuh"
#include "units/block_tile.cuh"

/* One block: Bc keys of one kv head, all queries of its group. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    atomics_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
{
    extern __shared__ float smem_f32[];
    float *Q_smem = smem_f32, *dO_smem = Q_smem + C::Br * C::D; /* [Br][D] */
    float *K_smem = dO_smem + C::Br * C::D;                     /* [Bc][LD] */
    float *V_smem = K_smem + C::Bc * C::LD;                     /* [Bc][LD] */
    float *P_smem = V_smem + C::Bc * C::LD;                     /* [Br][Bc] */
    float *dS_smem = P_smem + C::Br * C::Bc;                    /* [Br][Bc] */
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange keys = {0, p.Nk}, seen = rows_that_see(band);
    const RowRange rows = rows_that_see(band, block.j0, C::Bc);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const int64_t key_0 = key_row(&p, block.b, block.h_kv, 0);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    float dK_reg[C::Bc / C::WARPS][C::D / 32] = {}, dV_reg[C::Bc / C::WARPS][C::D / 32] = {};
    load_rows<C>(K_smem, C::LD, (const float *)p.K + key_0, K_step, block.j0, C::Bc, keys);
    load_rows<C>(V_smem, C::LD, (const float *)p.V + key_0, K_step, block.j0, C::Bc, keys);
    for (int h = block.h_kv * block.group; h < (block.h_kv + 1) * block.group; h++)
        for (int i0 = rows.begin / C::Br * C::Br; i0 < rows.end; i0 += C::Br) {
            const int64_t query_0 = query_row(&p, block.b, h, 0);
            __syncthreads(); /* nobody reads the last tile any more */
            load_rows<C>(Q_smem, C::D, (const float *)p.Q + query_0, Q_step, i0, C::Br, seen);
            load_rows<C>(dO_smem, C::D, (const float *)p.dO + query_0, Q_step, i0, C::Br, seen);
            __syncthreads();
            score_tile<C>(band, stats_of_head(pass, block.b * p.H + h, p.Nq) + i0, p.scale, i0,
                          block.j0, Q_smem, dO_smem, K_smem, V_smem, P_smem, dS_smem);
            __syncthreads();
            add_product<C>(dV_reg, P_smem, 1, C::Bc, dO_smem, C::D, C::Br);
            add_product<C>(dK_reg, dS_smem, 1, C::Bc, Q_smem, C::D, C::Br);
            float dQ_reg[C::Br / C::WARPS][C::D / 32] = {};
            add_product<C>(dQ_reg, dS_smem, C::Bc, 1, K_smem, C::LD, C::Bc);
#pragma unroll
            for (int n = 0; n < C::Br / C::WARPS; n++) {
                const int i = i0 + warp + C::WARPS * n;
                float *dQ_i = pass.dQ_sum + query_0 + i * Q_step + lane;
#pragma unroll
                for (int x = 0; x < C::D / 32; x++)
                    if (i < p.Nq)
                        atomicAdd(dQ_i + 32 * x, dQ_reg[n][x]);
            }
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
    const PassSizes sizes = sizes_of(p);
    if (!reserve_smem((const void *)atomics_kernel<C>, C::SMEM))
        return;
    const Pass pass = start_pass(sizes, (const float *)p->O, (const float *)p->dO, p->lse, p->work,
                                 true, stream_of(p));
    atomics_kernel<C><<<key_blocks(p, C::Bc), C::THREADS, C::SMEM, stream_of(p)>>>(*p, pass);
    round_sums(sizes, p->scale, pass.dQ_sum, (float *)p->dQ, stream_of(p));
}

static void backward(const Problem *p)
{
    RUN_F32(launch, p);
}

static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), true);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? BlockTile<64>::Br : BlockTile<128>::Br, BlockTile<64>::Bc};
}

RUNG(flash_backward, v0_atomics, "a block for each tile of keys, dQ by atomicAdd", F32, NULL,
     backward, work, tiles, ATOMICS);
