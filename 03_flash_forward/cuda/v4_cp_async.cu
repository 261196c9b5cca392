/* SPDX-License-Identifier: MIT
 *
 * v4_cp_async: v3 with its tensor cores fed in time.
 *
 *   - ldmatrix: one instruction of a warp loads four 8x8 matrices as fragments, transposed if
 *   asked.
 *     For 16 keys x 16 channels of V, one ldmatrix replaces sixteen 2-byte loads and eight moves of
 *     a thread.
 *   - Swizzle: the 16-byte chunks of row r are stored in the order chunk XOR (r mod 8). The 8 rows
 *     of an 8x8 matrix then lie in different banks without padding, and every tile keeps a size of
 *     2^n bytes.
 *   - cp.async: copies global to shared memory without passing registers, and without waiting. Two
 *     stages of K and V: while tile j is multiplied, the next one is on its way.
 *
 *        tile        j               j - 1             j - 2
 *        copy     |  K V of j - 1  |  K V of j - 2  |  ...
 *        compute  |  S, P, O of j  |  S, P, O of j-1|  ...
 *                 ^ wait, __syncthreads: the only one of the tile
 *
 * One barrier does two jobs: every thread's part of tile j has arrived, and every warp is done with
 * the other stage, which may be overwritten now.
 *
 * Prediction (H200, bf16, d=64, full): shared memory now delivers a K or V fragment of 16x16 for
 * every 8 mma of a warp, tensor cores become the limit of the loop, softmax takes about as long as
 * the products do: 230-280 TFLOP/s.
 *
 * Interface:
 * - flash_forward_v4_cp_async: f16 and bf16, d <= 256, any shape, mask and layout.
 */
#include "mma_rows.cuh"
#include "tile_load.cuh"

/* S_reg = Q K_j^T of this warp's rows. Q_smem [Br][D], K_smem [Bc][D], swizzled. */
template <typename T, class C>
static __device__ __forceinline__ void multiply_QK(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                   uint32_t Q_smem, uint32_t K_smem)
{
    /* Which row and chunk this lane points ldmatrix at. Q: matrices (rows 0-7, rows 8-15) x (chunk
     * 0, chunk 1) in the order a0 .. a3. K: b0, b1 of keys 0-7, then of keys 8-15. */
    const int lane = threadIdx.x % 32, row_warp = threadIdx.x / 32 * 16;
    const uint32_t Q_lane = Q_smem + swizzle<C::D>(row_warp + lane % 16, lane / 16);
    const uint32_t K_lane = K_smem + swizzle<C::D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
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
        for (int mt = 0; mt < C::MT; mt++)
            ldmatrix_x4(Q_frag[mt], skip_chunks<C::D>(Q_lane, k) + mt * C::WARPS * 16 * C::D * 2);
#pragma unroll
        for (int n = 0; n < C::Bc / 16; n++) {
            uint32_t K_frag[4];
            ldmatrix_x4(K_frag, skip_chunks<C::D>(K_lane, k) + n * 16 * C::D * 2);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                mma_16816<T>(S_reg[mt][2 * n], Q_frag[mt], K_frag[0], K_frag[1]);
                mma_16816<T>(S_reg[mt][2 * n + 1], Q_frag[mt], K_frag[2], K_frag[3]);
            }
        }
    }
}

/* O += P V_j. V_smem [Bc][D], swizzled. */
template <typename T, class C>
static __device__ __forceinline__ void
multiply_PV(TileRows<C> &rows, float (&P_reg)[C::MT][C::Bc / 8][4], uint32_t V_smem)
{
    /* V: keys 0-7, 8-15 of channels 0-7, then of channels 8-15, each transposed. */
    const int lane = threadIdx.x % 32;
    const uint32_t V_lane = V_smem + swizzle<C::D>(lane % 16, lane / 16);
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
        for (int n = 0; n < C::D / 16; n++) {
            uint32_t V_frag[4];
            ldmatrix_x4_trans(V_frag, skip_chunks<C::D>(V_lane, n) + k * 16 * C::D * 2);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                mma_16816<T>(rows.O_reg[mt][2 * n], P_frag[mt], V_frag[0], V_frag[1]);
                mma_16816<T>(rows.O_reg[mt][2 * n + 1], P_frag[mt], V_frag[2], V_frag[3]);
            }
        }
    }
}

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    cp_async_kernel(const __grid_constant__ AttnArgs a, bool aligned, bool O_pairs)
{
    const int Q_BYTES = C::Br * C::D * 2, TILE_BYTES = C::Bc * C::D * 2;
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    __shared__ RowMask<C::Br, C::Bc> mask;
    unsigned char *KV = smem + Q_BYTES;
    const uint32_t Q_smem = (uint32_t)__cvta_generic_to_shared(smem);
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const BlockWork work = work_of_block(a, C::Br);
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, work.b, 0, work.h);
    const T *K = (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);
    auto load_keys = [&](const void *K, const void *V, int j, int stage) {
        unsigned char *tile = KV + stage * 2 * TILE_BYTES;
        load_tile_async<T, C::D, C::Bc, C::THREADS>(tile, (const T *)K, a.K.stride[1], j * C::Bc,
                                                    Nk, d, aligned);
        load_tile_async<T, C::D, C::Bc, C::THREADS>(tile + TILE_BYTES, (const T *)V, a.V.stride[1],
                                                    j * C::Bc, Nk, d, aligned);
    };

    load_tile_async<T, C::D, C::Br, C::THREADS>(smem, Q, a.Q.stride[1], work.i0, Nq, d, aligned);
    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::Br, Nq - work.i0));
    const KeyTiles tiles = find_key_tiles<C::Bc>(a, q);
    bool clean;
    int j = next_key_tile<C::Bc>(a, tiles, q, tiles.end, &clean);
    if (j >= 0)
        load_keys(K, V, j, 0);
    copy_async_commit();
    publish_plan(mask, a, work, K, V, q, tiles);
    TileRows<C> rows;
    start_rows(rows, a, work, NULL, 1.0f);

    __syncthreads(); /* what publish_plan wrote */

    int stage = 0;
#pragma unroll 1
    while (j >= 0) {
        float S_reg[C::MT][C::Bc / 8][4];
        if (!mask.by_run)
            make_row_words(mask, a, j, stage);
        copy_async_wait<0>();
        __syncthreads();
        const int j_next = next_key_tile<C::Bc>(a, mask.tiles, mask.q, j, &clean);
        if (j_next >= 0)
            load_keys(mask.K, mask.V, j_next, 1 - stage);
        copy_async_commit();
        const uint32_t K_smem = Q_smem + Q_BYTES + stage * 2 * TILE_BYTES;
        multiply_QK<T, C>(S_reg, Q_smem, K_smem);
        update_rows<C>(S_reg, rows, a, mask, j, stage);
        multiply_PV<T, C>(rows, S_reg, K_smem + TILE_BYTES);
        stage = 1 - stage;
        j = j_next;
    }
    copy_async_wait<0>(); /* nothing may be in flight when a block ends */
    store_rows<T, C>(rows, a, mask.work, NULL, O_pairs, 1.0f);
}

template <typename T, int D> struct LaunchCpAsync {
    typedef Tile<D> C;
    static AttnStatus run(const AttnArgs *a, float *)
    {
        const int smem = (C::Br + 4 * C::Bc) * D * 2;
        const AttnStatus status = reserve_smem(cp_async_kernel<T, C>, smem);
        if (status != ATTN_OK)
            return status;
        cp_async_kernel<T, C>
            <<<launch_blocks(a, C::Br), C::THREADS, smem, (cudaStream_t)a->stream>>>(
                *a, all_rows_on_16_bytes(a), rows_on_16_bytes(&a->O));
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

FlashTiles flash_tiles_v4_cp_async(const AttnArgs *a)
{
    return tiles_for_dim<LaunchCpAsync, __half>(a);
}

AttnStatus flash_forward_v4_cp_async(const AttnArgs *a)
{
    return run_for_16_bit<LaunchCpAsync>(a, NULL);
}
