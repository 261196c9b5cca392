/* SPDX-License-Identifier: MIT
 *
 * v3_mma: the loops of v1 and v2, the products on tensor cores.
 *
 * A tensor core does in one instruction of a warp (mma.m16n8k16, mma.cuh) what takes a warp 64 FMA
 * instructions. Inputs are 16-bit, sums are float32. What changes against v2:
 *   - The layout of registers is not ours to choose. A row of S lies in the four lanes of a quad
 *     (mma_rows.cuh).
 *   - P never sees shared memory: the accumulators of S, exponentiated and rounded to 16 bits, are
 *     already laid out as the left factor of P V.
 *   - V is needed "by column": a fragment register holds channel x of two neighbouring keys, which
 *     lie a row apart in shared memory. Here: two 2-byte loads and a move for each register. This
 *     is the bottleneck that v4's ldmatrix removes.
 *
 * Rows in shared memory are padded by 16 bytes: then the 8 rows x 4 words that a warp reads at a
 * time fall into 32 different banks.
 *
 * Still plain: load a tile, wait, compute, wait. The tensor cores idle during each load unless
 * another block of the multiprocessor has work.
 *
 * Prediction (H200, bf16, d=64, full): for each 16 keys and 16 channels of V, 8 2-byte loads
 * against 4 mma; shared memory delivers one load instruction every cycle to the whole
 * multiprocessor, so loads take about three times as long as the products: 100-150 TFLOP/s. (That
 * count was wrong. An mma takes 8 clocks, but there are four tensor cores: 8 clocks for the 4 mma,
 * as many as for the loads.)
 *
 * Interface:
 * - flash_forward_v3_mma: f16 and bf16, d <= 256, any shape, mask and layout.
 * - flash_block_v3_mma (block.cuh): the same, resuming from (O, lse).
 */
#include "block.cuh"
#include "mma_rows.cuh"
#include "tile_load.cuh"

/* Two neighbouring elements as one register. */
template <typename T> static __device__ __forceinline__ uint32_t load_pair(const T *from)
{
    return *reinterpret_cast<const uint32_t *>(from);
}

/* Two elements that lie `step` apart as one register. */
template <typename T>
static __device__ __forceinline__ uint32_t gather_pair(const T *from, int step)
{
    const uint16_t *bits = reinterpret_cast<const uint16_t *>(from);
    return bits[0] | (uint32_t)bits[step] << 16;
}

/* S_reg = Q K_j^T of this warp's rows. Q_smem [Br][D + 8], K_smem [Bc][D + 8] */
template <typename T, class C>
static __device__ __forceinline__ void multiply_QK(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                   const T *Q_smem, const T *K_smem)
{
    const int LD = C::D + 8, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                S_reg[mt][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
        uint32_t Q_frag[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++) {
            const T *Q_row = Q_smem + first_row_of<C>(mt) * LD + k * 16 + 2 * t;
            Q_frag[mt][0] = load_pair(Q_row);
            Q_frag[mt][1] = load_pair(Q_row + 8 * LD);
            Q_frag[mt][2] = load_pair(Q_row + 8);
            Q_frag[mt][3] = load_pair(Q_row + 8 * LD + 8);
        }
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++) {
            const T *K_row = K_smem + (n * 8 + g) * LD + k * 16 + 2 * t;
            const uint32_t b0 = load_pair(K_row), b1 = load_pair(K_row + 8);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++)
                mma_16816<T>(S_reg[mt][n], Q_frag[mt], b0, b1);
        }
    }
}

/* O += P V_j. V_smem [Bc][D + 8] */
template <typename T, class C>
static __device__ __forceinline__ void
multiply_PV(TileRows<C> &rows, float (&P_reg)[C::MT][C::Bc / 8][4], const T *V_smem)
{
    const int LD = C::D + 8, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++) {
        uint32_t P_frag[C::MT][4]; /* columns 16k .. 16k + 15: two accumulator tiles of S */
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *P_pair = P_reg[mt][2 * k + e / 2] + e % 2 * 2;
                P_frag[mt][e] = pack2<T>(P_pair[0], P_pair[1]);
            }
#pragma unroll
        for (int n = 0; n < C::D / 8; n++) {
            const T *V_column = V_smem + (k * 16 + 2 * t) * LD + n * 8 + g;
            const uint32_t b0 = gather_pair(V_column, LD);
            const uint32_t b1 = gather_pair(V_column + 8 * LD, LD);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++)
                mma_16816<T>(rows.O_reg[mt][n], P_frag[mt], b0, b1);
        }
    }
}

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    mma_kernel(const __grid_constant__ AttnArgs a, float *O_state, bool aligned, bool O_pairs)
{
    extern __shared__ __align__(16) unsigned char smem[];
    __shared__ RowMask<C::Br, C::Bc> mask;
    T *Q_smem = (T *)smem;
    T *K_smem = Q_smem + C::Br * (C::D + 8);
    T *V_smem = K_smem + C::Bc * (C::D + 8);
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const BlockWork work = work_of_block(a, C::Br);
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, work.b, 0, work.h);
    const T *K = (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);

    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::Br, Nq - work.i0));
    const KeyTiles tiles = find_key_tiles<C::Bc>(a, q);
    publish_plan(mask, a, work, K, V, q, tiles);
    TileRows<C> rows;
    start_rows(rows, a, work, O_state, no_rows(), 1.0f);
    load_tile_padded<T, C::D, C::Br, C::THREADS>(Q_smem, Q, a.Q.stride[1], work.i0, Nq, d, aligned);
    __syncthreads();

    bool clean;
    int j = next_key_tile<C::Bc>(a, tiles, q, tiles.end, &clean);
    for (; j >= 0; j = next_key_tile<C::Bc>(a, mask.tiles, mask.q, j, &clean)) {
        float S_reg[C::MT][C::Bc / 8][4];
        load_tile_padded<T, C::D, C::Bc, C::THREADS>(K_smem, K, a.K.stride[1], j * C::Bc, Nk, d,
                                                     aligned);
        load_tile_padded<T, C::D, C::Bc, C::THREADS>(V_smem, V, a.V.stride[1], j * C::Bc, Nk, d,
                                                     aligned);
        if (!mask.by_run)
            make_row_words(mask, a, j, 0);
        __syncthreads(); /* all of K_j and V_j is there */
        multiply_QK<T, C>(S_reg, Q_smem, K_smem);
        update_rows<C>(S_reg, rows, a, mask, j, 0);
        multiply_PV<T, C>(rows, S_reg, V_smem);
        __syncthreads(); /* nobody reads K_j and V_j any more */
    }
    store_rows<T, C>(rows, a, work, O_state, a.lse, no_rows(), O_pairs, 1.0f);
}

template <typename T, int D> struct LaunchMma {
    typedef Tile<D> C;
    static AttnStatus run(const AttnArgs *a, float *O_state)
    {
        const int smem = (C::Br + 2 * C::Bc) * (D + 8) * 2;
        const AttnStatus status = reserve_smem(mma_kernel<T, C>, smem);
        if (status != ATTN_OK)
            return status;
        mma_kernel<T, C><<<launch_blocks(a, C::Br), C::THREADS, smem, (cudaStream_t)a->stream>>>(
            *a, O_state, all_rows_on_16_bytes(a), rows_on_16_bytes(&a->O));
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

FlashTiles flash_tiles_v3_mma(const AttnArgs *a)
{
    return tiles_for_dim<LaunchMma, __half>(a);
}

AttnStatus flash_block_v3_mma(const AttnArgs *a, float *O_state_dev)
{
    return run_for_16_bit<LaunchMma>(a, O_state_dev);
}

AttnStatus flash_forward_v3_mma(const AttnArgs *a)
{
    return flash_block_v3_mma(a, NULL);
}
