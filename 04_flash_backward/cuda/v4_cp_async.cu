/* SPDX-License-Identifier: MIT
 *
 * v4_cp_async: the next tile of queries arrives while this one is multiplied.
 *
 * v3 loads a tile and waits for it. Global memory answers after 500 to 1000 clocks, and meanwhile
 * the warps of this block have nothing to do. Here Q, dO and the stats have two buffers, or stages:
 * cp.async copies the next tile into the one while the products read the other. The copy needs no
 * registers, and no thread waits for it before the next tile begins.
 *
 *     wait for tile t;  barrier;  start copying tile t + 1;  S, P, dP, dS, dV, dK of tile t;
 *     barrier (dS of all warps is there);  dQ of tile t
 *
 * The first barrier also says that all warps are done with dS and with the stage that the copy
 * overwrites, so v3's third barrier goes, too.
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): 2 blocks of 4 warps an SM. A tile keeps
 * the tensor cores busy for 2560 clocks of 4 warps at d = 64 and 2560 at d = 128 (half a tile); v3
 * adds a load of about 1000, and the second block hides half of it. Without: 1.2 times v3 at
 * d = 64, 1.2 at d = 128.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 * An mma takes about 8 clocks, so a tile is 1280 clocks of work, and a load hides less well.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 * Namespace v4 holds what this rung adds. warp_keys.cuh has the same words for later rungs; here
 * v4:: is what runs.
 */
#include "problem.cuh"
#include "units/warp_keys.cuh"

namespace v4
{

/* load_tile by cp.async; the caller commits. A thread keeps its chunk and walks down the rows. */
template <typename T, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void copy_tile(uint32_t tile, const T *base, int64_t step,
                                                 int first, RowRange rows, int thread)
{
    const int CHUNKS = D / 8, STEP = THREADS / CHUNKS, r = thread / CHUNKS, x = thread % CHUNKS * 8;
    const T *from = base + (first + r) * step + x;
    tile += (r * (D + 8) + x) * 2;
#pragma unroll
    for (int n = 0; n < ROWS; n += STEP) {
        const int row = first + r + n, valid = row >= rows.begin && row < rows.end;
        copy_async_16(tile + n * (D + 8) * 2, valid ? from : base, valid);
        from += STEP * step;
    }
}

/* stats of COUNT queries, 16 bytes a thread. */
template <int COUNT>
static __device__ __forceinline__ void copy_stats(uint32_t to, const float2 *from, int thread)
{
    if (thread < COUNT / 2)
        copy_async_16(to + thread * 16, from + thread * 2, 1);
}

} // namespace v4

/* 64 keys, 64 or 32 queries, 4 warps: v3's. */
template <int D> using TileV4 = WarpKeys<D, 4, 1, D == 64 ? 64 : 32, 2>;

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    cp_async_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
{
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t K_smem = smem_address(smem), V_smem = K_smem + C::KEY_TILE;    /* [Bc][LD] */
    const uint32_t Q_smem = V_smem + C::KEY_TILE, dO_smem = Q_smem + C::ROW_TILE; /* [Br][LD] */
    const int STAGE = 2 * C::ROW_TILE, dS_BYTE = 2 * C::KEY_TILE + 2 * STAGE; /* dS [Bc][LD_dS] */
    const int STATS_BYTE = dS_BYTE + C::dS_TILE;                              /* [2][Br] */
    const KeyBlock block = block_of_keys(read_block(), p.H, p.Hkv, p.Nk, C::Bc);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const RowRange keys = {0, p.Nk}, seen = rows_that_see(band);
    const RowRange rows = rows_that_see(band, block.j0, C::Bc);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const int64_t key_0 = key_row(&p, block.b, block.h_kv, 0);
    const int warp = threadIdx.x / 32;
    const int end = end_of_walk(block);
    const uint32_t left = lane_plain(threadIdx.x, C::LD) + warp * 16 * C::LD * 2; /* K, V */
    const uint32_t right = lane_crossed(threadIdx.x, C::LD);                      /* Q, dO */
    const uint32_t turned = lane_plain(threadIdx.x, C::LD); /* Q, dO as right factors of dK, dV */

    auto copy_rows = [&](WalkTile tile, int stage) {
        const int64_t query_0 = query_row(&p, block.b, tile.h, 0);
        const float2 *stats = stats_of_head(pass, block.b * p.H + tile.h, p.Nq) + tile.i0;
        v4::copy_tile<T, C::D, C::Br, C::THREADS>(Q_smem + stage * STAGE, (const T *)p.Q + query_0,
                                                  Q_step, tile.i0, seen, threadIdx.x);
        v4::copy_tile<T, C::D, C::Br, C::THREADS>(
            dO_smem + stage * STAGE, (const T *)p.dO + query_0, Q_step, tile.i0, seen, threadIdx.x);
        v4::copy_stats<C::Br>(K_smem + STATS_BYTE + stage * C::STATS, stats, threadIdx.x);
    };
    v4::copy_tile<T, C::D, C::Bc, C::THREADS>(K_smem, (const T *)p.K + key_0, K_step, block.j0,
                                              keys, threadIdx.x);
    v4::copy_tile<T, C::D, C::Bc, C::THREADS>(V_smem, (const T *)p.V + key_0, K_step, block.j0,
                                              keys, threadIdx.x);
    WalkTile tile = first_tile(block, rows, C::Br);
    if (tile.h < end)
        copy_rows(tile, 0);
    copy_async_commit();

    float dK[1][C::WARP_N][4] = {}, dV[1][C::WARP_N][4] = {};
    for (int stage = 0; tile.h < end; stage = 1 - stage) {
        const WalkTile next = next_tile(tile, rows, C::Br);
        const uint32_t Q_stage = Q_smem + stage * STAGE, dO_stage = dO_smem + stage * STAGE;
        const float2 *stats = (const float2 *)(smem + STATS_BYTE + stage * C::STATS);
        copy_async_wait<0>();
        __syncthreads(); /* the tile is there, and dS and the other stage are free */
        if (next.h < end)
            copy_rows(next, 1 - stage);
        copy_async_commit();
        const KeyMask<1> mask = mask_of_keys<C>(band, block.j0, tile.i0);
#pragma unroll
        for (int q0 = 0; q0 < C::Br; q0 += C::CHUNK) {
            LeftFactors<1, C::CHUNK> f;
            compute_scores<T, C, true, C::CHUNK>(
                f, K_smem + left, V_smem + left, Q_stage + right + q0 * C::LD * 2,
                dO_stage + right + q0 * C::LD * 2, stats, q0, mask, p.scale * (float)M_LOG2E);
            store_factor<C>(smem + dS_BYTE, f.dS, q0);
#pragma unroll
            for (int k = 0; k < C::CHUNK / 16; k++) {
                const int down = (q0 + k * 16) * C::LD * 2;
                accumulate<T, C>(dV, f.P[k], dO_stage + turned + down);
                accumulate<T, C>(dK, f.dS[k], Q_stage + turned + down);
            }
        }
        __syncthreads(); /* dS of all keys is there: dQ */
        float dQ[C::dQ_M][C::dQ_N][4];
        multiply_dS_K<T, C>(dQ, K_smem + dS_BYTE, K_smem, threadIdx.x);
        const int row = tile.i0 + warp / C::CHANNEL_WARPS * C::dQ_M * 16;
#pragma unroll
        for (int m = 0; m < C::dQ_M; m++)
            add_dQ_rows(pass.dQ_sum + query_row(&p, block.b, tile.h, 0) +
                            warp % C::CHANNEL_WARPS * C::dQ_N * 8,
                        Q_step, row + m * 16, p.Nq, dQ[m]);
        tile = next;
    }
    /* Once more: no registers were kept for it. */
    const KeyBlock done = block_of_keys(read_block(), p.H, p.Hkv, p.Nk, C::Bc);
    const int64_t key_0_done = key_row(&p, done.b, done.h_kv, 0);
    store_keys((T *)p.dK + key_0_done, K_step, done.j0 + warp * 16, p.Nk, dK[0], p.scale);
    store_keys((T *)p.dV + key_0_done, K_step, done.j0 + warp * 16, p.Nk, dV[0], 1.0f);
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef TileV4<D> C;
    const int bytes = 2 * C::KEY_TILE + 4 * C::ROW_TILE + C::dS_TILE + 2 * C::STATS;
    const PassSizes sizes = sizes_of(p);
    if (!reserve_smem((const void *)cp_async_kernel<T, C>, bytes))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    cp_async_kernel<T, C><<<key_blocks(p, C::Bc), C::THREADS, bytes, stream_of(p)>>>(*p, pass);
    round_sums(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
}

static void backward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), true);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? TileV4<64>::Br : TileV4<128>::Br,
            p->d == 64 ? TileV4<64>::Bc : TileV4<128>::Bc};
}

RUNG(flash_backward, v4_cp_async, "the next tile arrives while this one is multiplied", F16 | BF16,
     NULL, backward, work, tiles, ATOMICS | SM80);
