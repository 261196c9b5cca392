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
 *         add dK_j, dV_j to the sums                 nobody else has these keys
 *
 * dK_j and dV_j belong to one block, with grouped heads too, because the block walks through all
 * heads of the group. dQ_i belongs to nobody: every block has something to add to it, all of them
 * at the same time. `dQ[x] += y` would be three steps, load, add, store, and what another block
 * stores in between would be lost. atomicAdd makes it one step, done by the L2 cache. The order in
 * which blocks get there is a matter of luck, float addition is not associative, and so the last
 * bits of dQ differ from run to run.
 *
 * One thread for each pair (row, key) of S and dP; then threads are dealt out anew, a warp for each
 * key (dK, dV) or row (dQ), its lanes neighbouring channels.
 *
 * Prediction (H200, f32, d=64): as in stage 03's v1_fa2 each FMA takes one or two words from shared
 * memory, which delivers 32 of them a clock where 128 could be multiplied: 6-10 TFLOP/s.
 *
 * Interface:
 * - flash_backward_v0_atomics: f32, d <= 256. flash_backward_block_v0_atomics (block.cuh).
 */
#include "block.cuh"
#include "warp_row.cuh"

/* All within 64 KiB of shared memory, what GPUs from sm_75 on give a block. */
template <int D_> struct AtomicTile {
    static const int D = D_, WARPS = 8, THREADS = WARPS * 32;
    static const int Bc = D <= 128 ? 32 : 16, Br = D <= 96 ? 32 : D <= 128 ? 16 : 8;
    static const int LD = D + 1; /* odd: lanes that read one channel of 32 keys hit 32 banks */
    static const int SMEM = (2 * Br * D + 2 * Bc * LD + 2 * Br * Bc) * (int)sizeof(float);
};

struct KeyWork {
    int b, h_kv, j0; /* batch, kv head, first key */
};

/* sum[n][x]: the element of row warp + 8n and channel lane + 32x. */
template <class C, int ROWS>
static __device__ __forceinline__ void add_product(float (&sum)[ROWS][C::D / 32],
                                                   const float *A_smem, int row_step, int k_step,
                                                   const float *B_smem, int ld, int K)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            const float factor = A_smem[(warp + C::WARPS * n) * row_step + k * k_step];
#pragma unroll
            for (int x = 0; x < C::D / 32; x++)
                sum[n][x] = fmaf(factor, B_smem[k * ld + lane + 32 * x], sum[n][x]);
        }
}

/* P and dS of one tile. Pairs outside the mask or the tensors get P = dS = 0. */
template <class C>
static __device__ __forceinline__ void
score_tile(const AttnArgs &a, const float *lse, const float *delta, int i0, int j0, bool ask,
           const float *Q_smem, const float *dO_smem, const float *K_smem, const float *V_smem,
           float *P_smem, float *dS_smem)
{
    for (int e = threadIdx.x; e < C::Br * C::Bc; e += C::THREADS) {
        const int r = e / C::Bc, c = e % C::Bc, i = i0 + r, j = j0 + c;
        float p = 0.0f, dS = 0.0f;
        if (i < a.shape.Nq && j < a.shape.Nk && (!ask || attn_sees(&a, i, j))) {
            float qk = 0.0f, dP = 0.0f;
            for (int x = 0; x < C::D; x++) {
                qk = fmaf(Q_smem[r * C::D + x], K_smem[c * C::LD + x], qk);
                dP = fmaf(dO_smem[r * C::D + x], V_smem[c * C::LD + x], dP);
            }
            const float s = attn_score(&a, qk);
            p = expf(s - lse[i]);
            dS = p * (dP - delta[i]);
            if (a.softcap > 0.0f) /* the slope of cap * tanh(s / cap) */
                dS *= 1.0f - (s / a.softcap) * (s / a.softcap);
        }
        P_smem[e] = p;
        dS_smem[e] = dS;
    }
}

/* One block: Bc keys of one kv head, all queries of its group. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS)
    atomics_kernel(const __grid_constant__ AttnArgs a, const float *delta, FlashSums sums)
{
    extern __shared__ float smem_f32[];
    float *Q_smem = smem_f32, *dO_smem = Q_smem + C::Br * C::D; /* [Br][D] */
    float *K_smem = dO_smem + C::Br * C::D;                     /* [Bc][LD] */
    float *V_smem = K_smem + C::Bc * C::LD;                     /* [Bc][LD] */
    float *P_smem = V_smem + C::Bc * C::LD;                     /* [Br][Bc] */
    float *dS_smem = P_smem + C::Br * C::Bc;                    /* [Br][Bc] */
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const int H = (int)a.shape.H, Hkv = (int)a.shape.Hkv, group = H / Hkv;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tiles = (Nk + C::Bc - 1) / C::Bc, head = blockIdx.x / tiles;
    const KeyWork work = {head / Hkv, head % Hkv, (int)(blockIdx.x % tiles) * C::Bc};
    const float *K = (const float *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const float *V = (const float *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);

    float dK_reg[C::Bc / C::WARPS][C::D / 32] = {}, dV_reg[C::Bc / C::WARPS][C::D / 32] = {};
    load_rows_f32<C::D>(K_smem, C::LD, K, a.K.stride[1], work.j0, C::Bc, Nk, d);
    load_rows_f32<C::D>(V_smem, C::LD, V, a.V.stride[1], work.j0, C::Bc, Nk, d);
    for (int h = work.h_kv * group; h < (work.h_kv + 1) * group; h++) {
        const float *Q = (const float *)a.Q.data + tensor_offset(&a.Q, work.b, 0, h);
        const float *dO = (const float *)a.dO.data + tensor_offset(&a.dO, work.b, 0, h);
        const int64_t row0 = ((int64_t)work.b * H + h) * Nq; /* of lse and delta [B][H][Nq] */
        for (int i0 = 0; i0 < Nq; i0 += C::Br) {
            bool ask;
            if (!tile_is_visited(a, i0, C::Br, work.j0, C::Bc, &ask))
                continue;    /* the same decision in all threads */
            __syncthreads(); /* nobody reads the last tile any more */
            load_rows_f32<C::D>(Q_smem, C::D, Q, a.Q.stride[1], i0, C::Br, Nq, d);
            load_rows_f32<C::D>(dO_smem, C::D, dO, a.dO.stride[1], i0, C::Br, Nq, d);
            __syncthreads();
            score_tile<C>(a, a.lse + row0, delta + row0, i0, work.j0, ask, Q_smem, dO_smem, K_smem,
                          V_smem, P_smem, dS_smem);
            __syncthreads();
            add_product<C>(dV_reg, P_smem, 1, C::Bc, dO_smem, C::D, C::Br);
            add_product<C>(dK_reg, dS_smem, 1, C::Bc, Q_smem, C::D, C::Br);
            float dQ_reg[C::Br / C::WARPS][C::D / 32] = {};
            add_product<C>(dQ_reg, dS_smem, C::Bc, 1, K_smem, C::LD, C::Bc);
#pragma unroll
            for (int n = 0; n < C::Br / C::WARPS; n++) {
                const int i = i0 + warp + C::WARPS * n;
                float *dQ_i = sums.dQ + (((int64_t)work.b * Nq + i) * H + h) * d;
#pragma unroll
                for (int x = 0; x < C::D / 32; x++)
                    if (i < Nq && lane + 32 * x < d)
                        atomicAdd(dQ_i + lane + 32 * x, a.scale * dQ_reg[n][x]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < C::Bc / C::WARPS; n++) {
        const int j = work.j0 + warp + C::WARPS * n;
        const int64_t row = (((int64_t)work.b * Nk + j) * Hkv + work.h_kv) * d;
#pragma unroll
        for (int x = 0; x < C::D / 32; x++)
            if (j < Nk && lane + 32 * x < d) {
                sums.dK[row + lane + 32 * x] += a.scale * dK_reg[n][x];
                sums.dV[row + lane + 32 * x] += dV_reg[n][x];
            }
    }
}

template <typename T, int D> struct LaunchAtomics {
    typedef AtomicTile<D> C;
    static AttnStatus run(const AttnArgs *a, const float *delta, FlashSums sums)
    {
        const int64_t blocks = a->shape.B * a->shape.Hkv * tile_count(a->shape.Nk, C::Bc);
        const AttnStatus status = reserve_smem(atomics_kernel<C>, C::SMEM);
        if (status != ATTN_OK)
            return status;
        atomics_kernel<C>
            <<<(unsigned)blocks, C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(*a, delta, sums);
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

FlashTiles flash_backward_tiles_v0_atomics(const AttnArgs *a)
{
    return tiles_for_dim<LaunchAtomics, float>(a);
}

AttnStatus flash_backward_block_v0_atomics(const AttnArgs *a, const float *delta_dev,
                                           FlashSums sums_dev)
{
    if (a->Q.dtype != ATTN_F32 || flash_backward_deterministic())
        return ATTN_SKIP;
    return run_for_dim<LaunchAtomics, float>(a, delta_dev, sums_dev);
}

AttnStatus flash_backward_v0_atomics(const AttnArgs *a)
{
    return flash_backward_by_block_cuda(a, flash_backward_block_v0_atomics);
}
