/* SPDX-License-Identifier: MIT
 *
 * v5_cp_async: v4 with its tensor cores fed in time.
 *
 * cp.async copies from global to shared memory without passing registers, and without waiting. With
 * two buffers of K and V, the stages of a pipeline, the next tile is on its way while tile j is
 * multiplied.
 *
 *     tile        j               j + 1             j + 2
 *     copy     |  K V of j + 1  |  K V of j + 2  |  ...
 *     compute  |  S, P, O of j  |  S, P, O of j+1|  ...
 *              ^ wait, __syncthreads: the only one of the tile
 *
 * One barrier does two jobs: every thread's part of tile j has arrived, and every warp is done with
 * the other stage, which may be overwritten now.
 *
 * Prediction (H200, bf16, N = 16384, full): a tile of K and V is 16 KiB at d = 64. From the L2
 * cache it comes after about 600 clocks, in which v4 computes nothing; the other block of the
 * multiprocessor fills part of them. The compute of a tile takes about 2500 clocks (four warps of
 * a block, two blocks). So v4 waits 600 of 3100 clocks at most, half of it hidden: 10 to 15 %
 * faster. d = 128: twice the bytes, twice the products, the same.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 * Namespace v5 holds what this rung adds. warp_tile.cuh has the same words for later rungs; here
 * v5:: is what runs.
 */
#include "problem.cuh"
#include "units/warp_tile.cuh"

namespace v5
{

/* ROWS rows from `first` of a head to a swizzled tile, in the background; the caller commits. Rows
 * behind the last one become zeros: memory there may hold NaN, and 0 * NaN is NaN. A thread keeps
 * its chunk and walks down the rows, a multiple of 8 at a time: the swizzle of its address is then
 * the same in every step. */
template <typename T, class C, int ROWS>
static __device__ __forceinline__ void load_tile_async(uint32_t tile_smem, const T *base,
                                                       int64_t stride, int first, int N, int thread)
{
    const int CHUNKS = C::D / 8, STEP = C::THREADS / CHUNKS;
    const int r = thread / CHUNKS, chunk = thread % CHUNKS, left = N - first - r;
    const T *from = base + (first + r) * stride + chunk * 8;
    const uint32_t to = tile_smem + swizzle<C::D>(r, chunk);
#pragma unroll
    for (int row = 0; row < ROWS; row += STEP) {
        copy_async_16(to + row * C::D * 2, row < left ? from : base, row < left);
        from += STEP * stride;
    }
}

} // namespace v5

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    cp_async_kernel(const __grid_constant__ Problem p)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const BlockWork work = work_of_block(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const T *Q = queries_of((const T *)p.Q, p, work);
    const T *K = keys_of((const T *)p.K, p, work), *V = keys_of((const T *)p.V, p, work);
    /* Tile j goes to stage j % 2. */
    auto load_keys = [&](int j) {
        const uint32_t tile = smem_address + C::Q_BYTES + (j & 1) * C::STAGE_BYTES;
        v5::load_tile_async<T, C, C::Bc>(tile, K, K_step, j * C::Bc, p.Nk, read_thread());
        v5::load_tile_async<T, C, C::Bc>(tile + C::K_BYTES, V, K_step, j * C::Bc, p.Nk,
                                         read_thread());
    };

    v5::load_tile_async<T, C, C::Br>(smem_address, Q, Q_step, work.i0, p.Nq, threadIdx.x);
    if (tiles.begin < tiles.end)
        load_keys(tiles.begin);
    copy_async_commit();
    TileRows<C> rows;
    start_rows(rows);
#pragma unroll 1
    for (int j = tiles.begin; j < tiles.end; j++) {
        float S_reg[C::MT][C::Bc / 8][4];
        const TileAddresses at = tile_addresses<C>(smem_address, read_thread());
        const uint32_t stage = (j & 1) * C::STAGE_BYTES;
        copy_async_wait<0>();
        __syncthreads(); /* tile j is there, and all warps are done with the other stage */
        if (j + 1 < tiles.end)
            load_keys(j + 1);
        copy_async_commit();
        /* false, NULL: Q is read from shared memory each time (v8 keeps it in registers) */
        multiply_QK<T, C, false>(S_reg, NULL, at.Q, at.K + stage);
        hide_scores<C>(S_reg, p.from, p.to, work.i0, j * C::Bc, p.Nk);
        update_rows<C>(S_reg, rows, p.scale);
        multiply_PV<T, C>(rows, S_reg, at.V + stage);
    }
    copy_async_wait<
        0>(); /* a block that walks over no tile: no copy may be in flight when it ends */
    const BlockWork done = work_of_block(p, C::Br); /* once more: no registers were kept for it */
    store_rows(rows, queries_of((T *)p.O, p, done), Q_step, p.lse + lse_row(&p, done.b, done.h, 0),
               done.i0, p.Nq, 1.0f);
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef StagedTile<D, 2> C;
    if (reserve_smem((const void *)cp_async_kernel<T, C>, C::SMEM))
        cp_async_kernel<T, C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p);
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *)
{
    return {Tile<64>::Br, Tile<64>::Bc};
}

RUNG(flash_forward, v5_cp_async, "loads that overlap with products", F16 | BF16, forward, NULL,
     NULL, tiles, SM80);
