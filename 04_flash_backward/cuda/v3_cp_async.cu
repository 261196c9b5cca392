/* SPDX-License-Identifier: MIT
 *
 * v3_cp_async: scores the other way round, and tiles that arrive while the tensor cores work.
 *
 *   - S^T instead of S: a warp owns keys, so P^T and dS^T feed dV and dK from registers
 *     (mma_gradients.cuh). v2 sends P and dS through shared memory and reads them back, transposed;
 *     here only dS goes there, for dQ, and P never.
 *   - cp.async: the next tile of Q and dO is on its way while this one is worked on; two buffers.
 *   - Swizzled rows without padding, so that a tile is whole 128-byte lines.
 *   - Tiles that nobody sees are left out; every other one goes through the masked body, also where
 *     all is seen.
 *   - dQ is added to memory in rows and columns: eight rows, 32 bytes of each, for each instruction
 *     of a warp.
 *
 * Prediction (H200, bf16, d = 64, full): v2 waits for every load and passes 2 x 16 bits a score
 * through shared memory both ways; without that, 2 to 3 times v2.
 *
 * Interface:
 * - flash_backward_block_v3_cp_async (block.cuh), flash_backward_v3_cp_async: f16 and bf16,
 *   d <= 256. flash_backward_tiles_v3_cp_async.
 */
#include <type_traits>

#include "block.cuh"
#include "dispatch.cuh"
#include "row_mask.cuh"
#include "score_factors.cuh"
#include "store_keys.cuh"
#include "tile_load.cuh"

/* 64 keys a block (d = 256: 32), 16 a warp, in less than 99 KiB of shared memory. */
template <int D_, int WARPS_ = 4, int Br_ = 64, int ROW_WARPS_ = 2>
struct AsyncTile : GradientTile<D_, WARPS_, 1, Br_, ROW_WARPS_, 1> {
    static const int CHUNK = Br_ < 32 ? Br_ : 32;
};

template <int D> struct AsyncTileFor {
    typedef AsyncTile<D> C;
};
/* ROW_WARPS = 4: each warp has all channels of its rows of dQ. Half of them would start at chunk 6,
 * and skip_chunks of 192-byte rows needs a start on a multiple of 4 chunks. */
template <> struct AsyncTileFor<96> {
    typedef AsyncTile<96, 4, 64, 4> C;
};
template <> struct AsyncTileFor<128> {
    typedef AsyncTile<128, 4, 32> C;
};
template <> struct AsyncTileFor<256> {
    typedef AsyncTile<256, 2, 16, 1> C;
};

/* What the threads share beside the tiles. */
template <class C> struct AsyncState {
    uint32_t words[C::Bc / 32][C::Br]; /* bit c of [w][r]: row r sees key 32w + c */
};

/* The next tile of the group's queries, as head * Tr + i, that sees any of the keys. */
template <class C>
static __device__ __forceinline__ int next_visit(const AttnArgs &a, const AttnRange &keys, int tile,
                                                 int end, bool *clean)
{
    const int Nq = (int)a.shape.Nq, Tr = (Nq + C::Br - 1) / C::Br;
    for (; tile < end; tile++) {
        const int i0 = tile % Tr * C::Br;
        const AttnRange rows = attn_range(a.positions_q, i0, min(C::Br, Nq - i0));
        const AttnTile kind = attn_tile_class(a.rule, rows, keys);
        *clean = kind == ATTN_TILE_CLEAN && !a.mask;
        if (kind != ATTN_TILE_SKIP)
            break;
    }
    return tile;
}

template <class C>
static __device__ __forceinline__ void ask_pairs(AsyncState<C> &state, const AttnArgs &a, int i0,
                                                 int j0, bool clean)
{
    const int Nk = (int)a.shape.Nk;
    for (int e = threadIdx.x; e < C::Br * (C::Bc / 32); e += C::THREADS) {
        const int i = i0 + e % C::Br, j = j0 + e / C::Br * 32;
        uint32_t bits = 0;
        for (int c = 0; c < 32; c++)
            if (i < a.shape.Nq && j + c < Nk && (clean || attn_sees(&a, i, j + c)))
                bits |= 1u << c;
        state.words[e / C::Br][e % C::Br] = bits;
    }
}

/* dQ of this warp, added to the sums in rows and columns. */
template <class C>
static __device__ __forceinline__ void add_rows(const float (&dQ)[C::dQ_M][C::dQ_N][4], float *sum,
                                                const AttnArgs &a, KeyWork work, int h, int i0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = (int)a.shape.d;
    const int row0 = warp / C::CHANNEL_WARPS * C::dQ_M * 16 + lane / 4;
    const int x0 = work.share * C::CHANNELS + warp % C::CHANNEL_WARPS * C::dQ_N * 8 + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < C::dQ_M; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = i0 + row0 + m * 16 + e / 2 * 8;
            float *to = sum + ((work.b * a.shape.Nq + i) * a.shape.H + h) * d;
#pragma unroll
            for (int n = 0; n < C::dQ_N; n++)
                if (i < a.shape.Nq && x0 + n * 8 + e % 2 < d)
                    atomicAdd(to + x0 + n * 8 + e % 2, a.scale * dQ[m][n][e]);
        }
}

template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    cp_async_gradients_kernel(const __grid_constant__ AttnArgs a, const float *delta,
                              FlashSums sums, bool aligned)
{
    typedef GradientBytes<C> Bytes;
    extern __shared__ __align__(1024) unsigned char smem[];
    __shared__ AsyncState<C> state;
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const int H = (int)a.shape.H, Hkv = (int)a.shape.Hkv, group = H / Hkv;
    const int Tr = (Nq + C::Br - 1) / C::Br, Tc = (Nk + C::Bc - 1) / C::Bc;
    KeyWork work;
    work.share = blockIdx.x % C::SHARES;
    work.j0 = blockIdx.x / C::SHARES % Tc * C::Bc;
    work.h_kv = blockIdx.x / C::SHARES / Tc % Hkv;
    work.b = blockIdx.x / C::SHARES / Tc / Hkv;

    auto load = [&](const Tensor &from, int h, int to, int first, int N, auto rows) {
        load_tile_async<T, C::D, rows.value, C::THREADS, false>(
            smem + to, (const T *)from.data + tensor_offset(&from, work.b, 0, h), from.stride[1],
            first, N, d, aligned);
    };
    auto load_rows = [&](int tile, int stage) {
        const int h = work.h_kv * group + tile / Tr, i0 = tile % Tr * C::Br;
        float2 *stats = (float2 *)(smem + Bytes::STATS + stage * Bytes::STATS_STAGE);
        const int at = Bytes::STAGES + stage * Bytes::STAGE;
        load(a.Q, h, at, i0, Nq, std::integral_constant<int, C::Br>());
        load(a.dO, h, at + Bytes::dO, i0, Nq, std::integral_constant<int, C::Br>());
        for (int r = threadIdx.x; r < C::Br; r += C::THREADS) {
            const int64_t row = ((int64_t)work.b * H + h) * Nq + i0 + r;
            const float lse = i0 + r < Nq ? a.lse[row] : -INFINITY;
            stats[r] = lse == -INFINITY ? make_float2(INFINITY, 0.0f)
                                        : make_float2(lse * LOG2E, delta[row]);
        }
    };
    load(a.K, work.h_kv, Bytes::K, work.j0, Nk, std::integral_constant<int, C::Bc>());
    load(a.V, work.h_kv, Bytes::V, work.j0, Nk, std::integral_constant<int, C::Bc>());
    const AttnRange keys = attn_range(a.positions_k, work.j0, min(C::Bc, Nk - work.j0));
    bool clean = false, clean_next = false;
    int tile = next_visit<C>(a, keys, 0, group * Tr, &clean);
    if (tile < group * Tr)
        load_rows(tile, 0);
    copy_async_commit();

    float dK[1][C::WARP_CHANNELS / 8][4] = {}, dV[1][C::WARP_CHANNELS / 8][4] = {};
    const LaneAddresses start = lane_addresses<C>(smem_address, threadIdx.x, work.share);
    for (int stage = 0; tile < group * Tr; stage = 1 - stage) {
        const int next = next_visit<C>(a, keys, tile + 1, group * Tr, &clean_next);
        const int i0 = tile % Tr * C::Br;
        ask_pairs<C>(state, a, i0, work.j0, clean);
        copy_async_wait<0>();
        __syncthreads(); /* the tile is there, and all warps are done with dS and the other stage */
        if (next < group * Tr)
            load_rows(next, 1 - stage);
        copy_async_commit();

        LaneAddresses at = start;
        at.right += stage * Bytes::STAGE;
        at.turned += stage * Bytes::STAGE;
        const float2 *stats = (const float2 *)(smem + Bytes::STATS + stage * Bytes::STATS_STAGE);
#pragma unroll
        for (int q0 = 0; q0 < C::Br; q0 += C::CHUNK) {
            ScoreFactors<C, C::CHUNK> f;
            compute_scores<T, C, TILE_GENERAL, C::CHUNK>(f, a, at, stats, {state.words[0], -1}, q0,
                                                         q0 * C::D * 2);
            store_factor<C, C::CHUNK>(smem + Bytes::dS, f.dS, q0);
#pragma unroll
            for (int k = 0; k < C::CHUNK / 16; k++) {
                const int down = Bytes::STAGES + (q0 + k * 16) * C::D * 2;
                accumulate<T, C>(dV, f.P[k], at.turned, down + Bytes::dO);
                accumulate<T, C>(dK, f.dS[k], at.turned, down);
            }
        }
        __syncthreads(); /* dS of all keys: now dQ */
        float dQ[C::dQ_M][C::dQ_N][4];
        multiply_dS_K<T, C>(dQ, start.dS, Bytes::dS, start.K_turned, Bytes::K);
        add_rows<C>(dQ, sums.dQ, a, work, work.h_kv * group + tile / Tr, i0);
        tile = next;
        clean = clean_next;
    }
    copy_async_wait<0>();
    __syncthreads();
    /* wide = false: float by float, not by way of shared memory */
    store_keys<T, C>(dK, a.scale, a.dK, sums.dK, smem + Bytes::K, a, work, false);
    store_keys<T, C>(dV, 1.0f, a.dV, sums.dV, smem + Bytes::V, a, work, false);
}

template <typename T, int D> struct LaunchCpAsync {
    typedef typename AsyncTileFor<D>::C C;
    static AttnStatus run(const AttnArgs *a, const float *delta, FlashSums sums)
    {
        const AttnShape *n = &a->shape;
        const unsigned blocks = (unsigned)(n->B * n->Hkv * tile_count(n->Nk, C::Bc) * C::SHARES);
        /* All but v4's words, which come last: v3 has its own in AsyncState. */
        const AttnStatus status =
            reserve_smem(cp_async_gradients_kernel<T, C>, GradientBytes<C>::WORDS);
        if (status != ATTN_OK)
            return status;
        cp_async_gradients_kernel<T, C>
            <<<blocks, C::THREADS, GradientBytes<C>::WORDS, (cudaStream_t)a->stream>>>(
                *a, delta, sums, all_rows_on_16_bytes(a) && rows_on_16_bytes(&a->dO));
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

FlashTiles flash_backward_tiles_v3_cp_async(const AttnArgs *a)
{
    return tiles_for_dim<LaunchCpAsync, __half>(a);
}

AttnStatus flash_backward_block_v3_cp_async(const AttnArgs *a, const float *delta_dev,
                                            FlashSums sums_dev)
{
    if (flash_backward_deterministic())
        return ATTN_SKIP;
    return run_for_16_bit<LaunchCpAsync>(a, delta_dev, sums_dev);
}

AttnStatus flash_backward_v3_cp_async(const AttnArgs *a)
{
    return flash_backward_by_block_cuda(a, flash_backward_block_v3_cp_async);
}
