/* SPDX-License-Identifier: MIT
 *
 * v4_cp_async: v3 with its tensor cores fed in time.
 *
 *   - ldmatrix: one instruction of a warp loads four 8x8 matrices as fragments, transposed if
 *     asked (mma_products.cuh). For 16 keys x 16 channels of V it replaces eight 2-byte loads and
 *     four moves of a thread.
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
 * Prediction (H200, bf16, d=64, full): one load instruction now delivers a K or V fragment of 16x16
 * for every 4 mma of a warp, tensor cores become the limit of the loop, softmax takes about as long
 * as the products do: 230-280 TFLOP/s.
 *
 * Interface:
 * - flash_forward_v4_cp_async: f16 and bf16, d <= 256, any shape, mask and layout.
 * - flash_block_v4_cp_async (block.cuh): the same, resuming from (O, lse).
 */
#include "block.cuh"
#include "mma_products.cuh"
#include "tile_load.cuh"

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    cp_async_kernel(const __grid_constant__ AttnArgs a, float *O_state, bool aligned, bool O_pairs)
{
    typedef TileBytes<C> Bytes;
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    __shared__ RowMask<C::Br, C::Bc> mask;
    const TileAddresses at =
        tile_addresses<C>((uint32_t)__cvta_generic_to_shared(smem), threadIdx.x);
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const BlockWork work = work_of_block(a, C::Br);
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, work.b, 0, work.h);
    const T *K = (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);
    auto load_keys = [&](const void *K, const void *V, int j, int stage) {
        unsigned char *tile = smem + Bytes::Q + stage * Bytes::STAGE;
        load_tile_async<T, C::D, C::Bc, C::THREADS, false>(tile, (const T *)K, a.K.stride[1],
                                                           j * C::Bc, Nk, d, aligned);
        load_tile_async<T, C::D, C::Bc, C::THREADS, false>(
            tile + Bytes::K, (const T *)V, a.V.stride[1], j * C::Bc, Nk, d, aligned);
    };

    load_tile_async<T, C::D, C::Br, C::THREADS, false>(smem, Q, a.Q.stride[1], work.i0, Nq, d,
                                                       aligned);
    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::Br, Nq - work.i0));
    const KeyTiles tiles = find_key_tiles<C::Bc>(a, q);
    bool clean;
    int j = next_key_tile<C::Bc>(a, tiles, q, tiles.end, &clean);
    if (j >= 0)
        load_keys(K, V, j, 0);
    copy_async_commit();
    publish_plan(mask, a, work, K, V, q, tiles);
    TileRows<C> rows;
    start_rows(rows, a, work, O_state, no_rows(), 1.0f);

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
        multiply_QK<T, C, 0, C::MT, false>(S_reg, NULL, at.Q, at.K + stage * Bytes::STAGE);
        update_rows<C>(S_reg, rows, a, mask, j, stage);
        multiply_PV<T, C, 0, C::MT>(rows, S_reg, at.V + stage * Bytes::STAGE);
        stage = 1 - stage;
        j = j_next;
    }
    copy_async_wait<0>(); /* nothing may be in flight when a block ends */
    store_rows<T, C>(rows, a, mask.work, O_state, a.lse, no_rows(), O_pairs, 1.0f);
}

template <typename T, int D> struct LaunchCpAsync {
    typedef Tile<D> C;
    static AttnStatus run(const AttnArgs *a, float *O_state)
    {
        const int smem = TileBytes<C>::ALL;
        const AttnStatus status = reserve_smem(cp_async_kernel<T, C>, smem);
        if (status != ATTN_OK)
            return status;
        cp_async_kernel<T, C>
            <<<launch_blocks(a, C::Br), C::THREADS, smem, (cudaStream_t)a->stream>>>(
                *a, O_state, all_rows_on_16_bytes(a), rows_on_16_bytes(&a->O));
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

FlashTiles flash_tiles_v4_cp_async(const AttnArgs *a)
{
    return tiles_for_dim<LaunchCpAsync, __half>(a);
}

AttnStatus flash_block_v4_cp_async(const AttnArgs *a, float *O_state_dev)
{
    return run_for_16_bit<LaunchCpAsync>(a, O_state_dev);
}

AttnStatus flash_forward_v4_cp_async(const AttnArgs *a)
{
    return flash_block_v4_cp_async(a, NULL);
}
