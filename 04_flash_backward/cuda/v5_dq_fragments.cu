/* SPDX-License-Identifier: MIT
 *
 * v5_dq_fragments: dQ is added up in the order of the accumulators.
 *
 * Every block adds every tile of dQ to device memory. In rows and columns, one instruction of a
 * warp adds to eight rows, 32 bytes of each: lanes 4g .. 4g + 3 hold pairs of channels of row g,
 * and an add takes every other float of them. But nobody reads this dQ before it is complete, so
 * it may lie in any order. Here it lies as the accumulators do,
 *
 *     dQ_sum [B][H][Tr][warp][m16 tile][n8 tile][32 lanes][4]
 *
 * so a warp adds 512 neighbouring bytes at a time, four floats a lane (from sm_90 on in one
 * instruction). A last kernel puts the elements in their places, multiplies by the scale and
 * rounds.
 *
 * Prediction (H200, bf16, N = 16384, 2048 channels in all): dQ of all tiles is Nk / 64 times 128
 * MiB: 34 GB to add. v4 adds it by 8.6e9 single floats; the L2 cache takes about 2500 of them a
 * clock, and each instruction needs 8 sectors of 32 bytes half used. Now 1/4 of the instructions
 * and half of the sectors: where v4 waits for its adds, 1.5 times v4; at d = 128 (the same bytes,
 * twice the products for each of them) 1.3 times.
 * Measured: docs/lab/04_rungs.md, beside the prediction.
 * 2500 floats a clock would be 2 ms of v4's 36, and v5 saved 13: the L2 takes far fewer of these
 * adds.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 * Namespace v5 holds what this rung adds. warp_keys.cuh has the same words for later rungs; here
 * v5:: is what runs.
 */
#include "problem.cuh"
#include "units/warp_keys.cuh"

namespace v5
{

/* In memory += c. From sm_90 on one instruction adds four floats. */
static __device__ __forceinline__ void add_4(float *to, const float (&c)[4])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3])
                 : "memory");
#else
#pragma unroll
    for (int e = 0; e < 4; e++)
        atomicAdd(to + e, c[e]);
#endif
}

/* dQ_sum [B][H][Tr][WARPS][dQ_M][dQ_N][32 lanes][4]: 512 neighbouring bytes for each tile of 16 x 8
 * elements. head: b * H + h. */
template <class C>
static __device__ __forceinline__ void add_dQ_fragments(float *dQ_sum, int head, int Tr, int i,
                                                        const float (&dQ)[C::dQ_M][C::dQ_N][4],
                                                        int thread)
{
    float *to = dQ_sum + ((int64_t)head * Tr + i) * (C::Br * C::D) +
                (thread / 32 * (C::dQ_M * C::dQ_N) * 32 + thread % 32) * 4;
#pragma unroll
    for (int m = 0; m < C::dQ_M; m++)
#pragma unroll
        for (int n = 0; n < C::dQ_N; n++)
            add_4(to + (m * C::dQ_N + n) * 128, dQ[m][n]);
}

/* dQ [B][Nq][H][D] = scale * dQ_sum, rounded, each element in its place. A thread takes four
 * neighbouring lanes' floats of one 16 x 8 tile: eight channels of row g and of row g + 8. */
template <typename T, class C>
static __global__ void __launch_bounds__(256)
    fragments_kernel(const __grid_constant__ PassSizes n, float scale, const float *dQ_sum, T *dQ)
{
    const int64_t item = blockIdx.x * (int64_t)256 + threadIdx.x; /* of 8 x 4 floats */
    const int64_t tile = item / (C::Br * C::D / 16);              /* [B][H][Tr] */
    const int rest = (int)(item % (C::Br * C::D / 16)), g = rest % 8, fragment = rest / 8;
    const int Nq = n.band.Nq, Tr = divide_up(Nq, C::Br), head = (int)(tile / Tr), b = head / n.H;
    if (b >= n.B)
        return;
    const int column = fragment % C::dQ_N, m = fragment / C::dQ_N % C::dQ_M;
    const int warp = fragment / C::dQ_N / C::dQ_M;
    const int i = (int)(tile % Tr) * C::Br + (warp / C::CHANNEL_WARPS * C::dQ_M + m) * 16 + g;
    const int x = (warp % C::CHANNEL_WARPS * C::dQ_N + column) * 8;
    const float *from = dQ_sum + item * 16;
    uint32_t low[4], high[4]; /* of rows g and g + 8 */
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const float4 lane = *reinterpret_cast<const float4 *>(from + 4 * t);
        low[t] = pack2<T>(lane.x * scale, lane.y * scale);
        high[t] = pack2<T>(lane.z * scale, lane.w * scale);
    }
    const int64_t step = (int64_t)n.H * C::D; /* row to row */
    T *row = dQ + ((int64_t)b * Nq + i) * step + head % n.H * C::D + x;
    if (i < Nq)
        *reinterpret_cast<uint4 *>(row) = make_uint4(low[0], low[1], low[2], low[3]);
    if (i + 8 < Nq)
        *reinterpret_cast<uint4 *>(row + 8 * step) = make_uint4(high[0], high[1], high[2], high[3]);
}

template <typename T, class C>
static inline void finish_fragments(const PassSizes &n, float scale, const float *dQ_sum, T *dQ,
                                    cudaStream_t stream)
{
    const int64_t tiles = (int64_t)n.B * n.H * divide_up(n.band.Nq, C::Br);
    const int64_t items = tiles * (C::Br * C::D / 16);
    const auto fragments = fragments_kernel<T, C>; /* that above: a call might find another */
    fragments<<<(unsigned)((items + 255) / 256), 256, 0, stream>>>(n, scale, dQ_sum, dQ);
}

} // namespace v5

/* 64 keys, 64 or 32 queries, 4 warps: v3's. */
template <int D> using TileV5 = WarpKeys<D, 4, 1, D == 64 ? 64 : 32, 2>;

/* One block: Bc keys of one kv head, all queries of its group. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    dq_fragments_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass)
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
    const int Tr = divide_up(p.Nq, C::Br);
    const int end = end_of_walk(block);
    const uint32_t left = lane_plain(threadIdx.x, C::LD) + warp * 16 * C::LD * 2; /* K, V */
    const uint32_t right = lane_crossed(threadIdx.x, C::LD);                      /* Q, dO */
    const uint32_t turned = lane_plain(threadIdx.x, C::LD); /* Q, dO as right factors of dK, dV */

    auto copy_rows = [&](WalkTile tile, int stage) {
        const int64_t query_0 = query_row(&p, block.b, tile.h, 0);
        const float2 *stats = stats_of_head(pass, block.b * p.H + tile.h, p.Nq) + tile.i0;
        copy_tile<T, C::D, C::Br, C::THREADS>(Q_smem + stage * STAGE, (const T *)p.Q + query_0,
                                              Q_step, tile.i0, seen, threadIdx.x);
        copy_tile<T, C::D, C::Br, C::THREADS>(dO_smem + stage * STAGE, (const T *)p.dO + query_0,
                                              Q_step, tile.i0, seen, threadIdx.x);
        copy_stats<C::Br>(K_smem + STATS_BYTE + stage * C::STATS, stats, threadIdx.x);
    };
    copy_tile<T, C::D, C::Bc, C::THREADS>(K_smem, (const T *)p.K + key_0, K_step, block.j0, keys,
                                          threadIdx.x);
    copy_tile<T, C::D, C::Bc, C::THREADS>(V_smem, (const T *)p.V + key_0, K_step, block.j0, keys,
                                          threadIdx.x);
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
        multiply_dS_K<T, C>(dQ, K_smem + dS_BYTE, K_smem, read_thread());
        v5::add_dQ_fragments<C>(pass.dQ_sum, block.b * p.H + tile.h, Tr, tile.i0 / C::Br, dQ,
                                read_thread());
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
    typedef TileV5<D> C;
    const int bytes = 2 * C::KEY_TILE + 4 * C::ROW_TILE + C::dS_TILE + 2 * C::STATS;
    const PassSizes sizes = sizes_of(p);
    if (!reserve_smem((const void *)dq_fragments_kernel<T, C>, bytes))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    dq_fragments_kernel<T, C><<<key_blocks(p, C::Bc), C::THREADS, bytes, stream_of(p)>>>(*p, pass);
    v5::finish_fragments<T, C>(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
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
    return {p->d == 64 ? TileV5<64>::Br : TileV5<128>::Br,
            p->d == 64 ? TileV5<64>::Bc : TileV5<128>::Bc};
}

RUNG(flash_backward, v5_dq_fragments, "dQ is added up in the order of the accumulators", F16 | BF16,
     NULL, backward, work, tiles, ATOMICS | SM80);
