/* SPDX-License-Identifier: MIT
 *
 * v9_wgmma: Hopper's own copies and products, in the simplest order that works.
 *
 * The portable kernels stop at half of what an H200 gives, and no schedule helps: mma.sync, the
 * instruction of one warp, cannot feed this chip's tensor cores. wgmma can. It multiplies for 128
 * threads at once and reads its right factor, K or V, straight from shared memory. So the ladder
 * starts again with new units (hopper.cuh), and with everything else as plain as in v3:
 *
 *     thread 0:     tell the copy engine to fetch K and V of the next tile
 *     all:          wait for this tile; S = Q K^T; wait; softmax; O += P V; wait; __syncthreads
 *
 * Two warpgroups share the tiles of a block, each has 64 query rows. What is new for a reader of
 * v8:
 *
 *   - A tile is fetched by one instruction of one thread. The engine computes the addresses, writes
 *     zeros for rows past the end, and swizzles. The threads have no part in it, and no registers.
 *   - Nobody loads fragments: K and V are named to the product by a descriptor of 64 bits. V is
 *     read "by column" by a bit of the instruction, where v4 needed ldmatrix.trans.
 *   - P is still the left factor from registers, in the layout in which S was accumulated.
 *
 * The products wait for the softmax and the softmax for the products: at d = 128 a tile of 128 keys
 * keeps the tensor cores busy for 2048 clocks and the exponential units for 1024, one after the
 * other, unless the two warpgroups happen to be out of step.
 *
 * Prediction (H200, bf16, N = 16384, full): 2048 / (2048 + 1024 + waits) of 800 TFLOP/s, about 430
 * at d = 128; at d = 64, where both take 1024, 380.
 * Measured: docs/lab/03_hopper.md, beside the prediction; more than half of a softmax coincides
 * with the other warpgroup's.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on GPUs of compute capability 9.0 alone:
 *   code for sm_90a runs on no other.
 */
#include "problem.cuh"
#include "units/wgmma_rows.cuh"

template <typename T, class C>
static __global__ void __launch_bounds__(128 * C::CONSUMERS, C::D == 64 ? 2 : 1)
    wgmma_kernel(const __grid_constant__ Problem p, const __grid_constant__ TileMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    const uint32_t Q_smem = (uint32_t)__cvta_generic_to_shared(smem);
    const uint32_t Q_full = Q_smem + C::Q_FULL, keys_full = Q_smem + C::K_FULL;
    /* The shuffle changes nothing, but tells the compiler that all lanes of a warp have one number:
     * addresses made from it take uniform registers, and branches on it no masks. */
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const BlockWork work = last_rows_first(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const KeyTiles full = full_tiles<C::Br, C::Bc>(p, work.i0, tiles);
    auto load_keys = [&](int j, int stage) {
        barrier_expect(keys_full + 8 * stage, 2 * C::K_BYTES);
        load_tile(Q_smem + C::K + stage * C::K_BYTES, &maps.K, work.b, work.h_kv, j * C::Bc,
                  keys_full + 8 * stage);
        load_tile(Q_smem + C::V + stage * C::K_BYTES, &maps.V, work.b, work.h_kv, j * C::Bc,
                  keys_full + 8 * stage);
    };
    if (threadIdx.x == 0) {
        barrier_init(Q_full, 1);
        for (int stage = 0; stage < 2; stage++)
            barrier_init(keys_full + 8 * stage, 1);
        barrier_init_done();
        produce_Q<C>(maps, work.b, work.h, work.i0, Q_smem);
        if (tiles.begin < tiles.end)
            load_keys(tiles.end - 1, 0);
    }
    __syncthreads();

    const int i0 = work.i0 + 64 * warpgroup; /* this warpgroup's rows, and this lane's first */
    const int i = i0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const uint32_t my_Q = Q_smem + warpgroup * C::Q_BYTES;
    const float scale_log2 = p.scale * (float)M_LOG2E;
    WarpgroupRows<C> rows;
    start_rows(rows);
    barrier_wait(Q_full, 0, WAIT_Q);
    int stage = 0, parity = 0;
#pragma unroll 1
    for (int j = tiles.end - 1; j >= tiles.begin; j--) {
        float S[C::Bc / 8][4], alpha[2];
        uint32_t P[C::Bc / 16][4];
        if (threadIdx.x == 0 && j > tiles.begin)
            load_keys(j - 1, 1 - stage);
        barrier_wait(keys_full + 8 * stage, parity, WAIT_K);
        wgmma_begin();
        multiply_QK<T, C>(S, my_Q, Q_smem + C::K + stage * C::K_BYTES);
        wgmma_wait<0>(S);
        if (full.begin <= j && j < full.end) {
            update_rows<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_keys<C>(S, p.from, p.to, p.Nk, i, j);
            update_rows<C, true>(S, rows, alpha, scale_log2);
        }
        round_P<T, C>(P, S);
        rescale_O(rows, alpha);
        wgmma_begin();
        multiply_PV<T, C>(rows, P, Q_smem + C::V + stage * C::K_BYTES);
        wgmma_wait<0>(rows.O);
        __syncthreads(); /* all warps are done with the stage: it may be filled again */
        parity ^= stage;
        stage ^= 1;
    }
    store_rows<T, C>(rows, &maps.O, p.lse + lse_row(&p, work.b, work.h, 0), work.b, work.h, i0,
                     p.Nq, my_Q, 1 + warpgroup);
    store_tiles_read();
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef WgmmaTile<D, 128, 2, 2> C;
    TileMaps maps;
    if (!make_maps<T, C>(&maps, p->B, p->H, p->Hkv, p->Nq, p->Nk, p->Q, p->K, p->V, p->O))
        return note_failure();
    if (reserve_smem((const void *)wgmma_kernel<T, C>, C::ALL))
        wgmma_kernel<T, C>
            <<<row_blocks(p, C::Br), 128 * C::CONSUMERS, C::ALL, stream_of(p)>>>(*p, maps);
    if (!launch_is_done(stream_of(p), "v9_wgmma"))
        note_failure();
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *)
{
    return {128, 128};
}

RUNG(flash_forward, v9_wgmma, "wgmma and the copy engine, everything waits for everything",
     F16 | BF16, forward, NULL, NULL, tiles, SM90A);
