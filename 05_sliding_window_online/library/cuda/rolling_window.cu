/* SPDX-License-Identifier: MIT
 *
 * rolling_window.cu: the forward pass for narrow windows, tensor cores, K and V in a rolling ring.
 *
 * With w = 256 a block of 128 rows is done after six tiles of 64 keys. It has then waited for its
 * first keys about as long as two tiles take, and two thirds of its tiles were cut by an edge of
 * the window. Here one block of threads stays and walks down the rows of a head, 256 at a time.
 * Its eight warps own 32 rows each, and at step s warp p works on
 *
 *     tile  F + s + p / 2         F: the tile of the first key that row 0 sees
 *
 * so that every warp sees something in every step: 64 rows further down, one tile further right.
 *
 *     rows      tiles F ..                  step 0   step 1  ...  step 4
 *     0 - 63    [0 1 2 3 4]                   0        1            4
 *     64 - 127    [1 2 3 4 5]                 1        2            5
 *     128 - 191     [2 3 4 5 6]               2        3            6
 *     192 - 255       [3 4 5 6 7]             3        4            7
 *
 * Four tiles are in use at a time, a fifth is on its way: a ring of five. After step 4 it holds
 * tiles 4 .. 7, and those are the first four of the next 256 rows: each key is loaded once, and
 * nothing is waited for between two blocks of rows but Q, which is fetched while O is written.
 * In step 0 and in step 4 each warp meets an edge of the window and masks, in steps 1 to 3 none
 * does: the warps, which have to wait for each other after each step, have equal work in it.
 *
 * What it asks for: a window of at most WIDEST keys beside the query's own, positions in one
 * segment each, scores as they are (no cap, no mask array, scale > 0), rows on 16 bytes, 224 KiB of
 * shared memory (D = 128). Everything else is left to stage 03's kernel. Where positions do not
 * advance by one, warps cannot be shifted against each other: then all work on the same tile and
 * each block of rows starts anew.
 *
 * Prediction (H200, bf16, N = 16384, w = 256, d = 128): 5 steps of 2.75 us, 8 % more for masks, and
 * 1.5 us for O and Q are 16.4 us for 256 rows, eight times in a row on each SM, and 6 us to start
 * and to end: 137 us, 250 TFLOP/s of visible pairs. Measured, it is faster than stage 03's kernel
 * and misses this: the README of the stage, "What did not pay".
 *
 * Interface:
 * - window_rolling_cuda (window_cuda.h): ATTN_SKIP for all other cases.
 * - window_rolling_tiles_cuda: what it does on a case, for the byte model.
 */
#include "rolling_rows.cuh"
#include "tile_load.cuh"
#include "window_cuda.h"

/* A tile of K and V to its place in the ring, by all threads; nothing outside 0 .. Nk - 1. */
template <typename T, class C>
static __device__ __forceinline__ void load_keys(unsigned char *ring, const AttnArgs &a,
                                                 BlockWork work, int tile)
{
    const int Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    unsigned char *stage = ring + ring_place<C>(tile) * C::STAGE;
    if (tile < 0 || tile * C::Bc >= Nk)
        return;
    load_tile_async<T, C::D, C::Bc, C::THREADS, true>(
        stage, (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv), a.K.stride[1],
        tile * C::Bc, Nk, d, true);
    load_tile_async<T, C::D, C::Bc, C::THREADS, true>(
        stage + C::K_BYTES, (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv),
        a.V.stride[1], tile * C::Bc, Nk, d, true);
}

/* Fetches tiles of the ring until `newest` is there or the next would overwrite tile `oldest`, the
 * first that anybody still reads. All threads load, and each warp counts for itself: equal counts
 * need no exchange. The group is closed even when it is empty, so that a wait for the last group is
 * always a wait for the last tile. */
template <typename T, class C>
static __device__ __forceinline__ void fill_ring(unsigned char *ring, const AttnArgs &a,
                                                 RowBlock &now, int oldest)
{
    const int end = min(now.newest, oldest + C::STAGES - 1);
    int tile = now.loaded + 1;
#pragma unroll 1
    for (; tile <= end; tile++)
        load_keys<T, C>(ring, a, now.work, tile);
    copy_async_commit();
    __syncwarp();
    if (lane_of_thread() == 0)
        now.loaded = tile - 1;
}

/* This warp's rows and its tile: S = Q K^T, mask, softmax, O += P V. What is known of the tile is
 * read from shared memory again before each product: kept, it would cost registers (see RowBlock).
 */
template <typename T, class C>
static __device__ __forceinline__ void step_strip(StripRows<C> &rows, const Sight<C> &sight,
                                                  uint32_t smem_address, float scale_log2)
{
    float S_reg[C::MT][C::Bc / 8][4];
    float base[4];
    {
        const int lane = lane_of_thread(), strip = strip_of_thread();
        const StripKeys &see = sight.strip[strip];
        const int c0 = sight.now[strip].c0;
        if (see.from > c0 + C::Bc - 1 || see.to < c0)
            return;
        multiply_scores<T, C>(
            S_reg, smem_address + strip * C::Q_BYTES + swizzle<C::D>(lane % 16, lane / 16),
            sight.now[strip].K + swizzle<C::D>(lane % 8 + lane / 16 * 8, lane / 8 % 2));
    }
    {
        const int strip = strip_of_thread(), c0 = sight.now[strip].c0;
        const StripKeys &see = sight.strip[strip];
        if (see.all_from > c0 || see.all_to < c0 + C::Bc - 1)
            hide_keys<C>(S_reg, sight.run + strip * C::ROWS, c0);
    }
    raise_maxima<C>(base, S_reg, rows, scale_log2);
    __syncwarp();
    const int lane = lane_of_thread();
    add_values<T, C>(rows, base, S_reg,
                     sight.now[strip_of_thread()].K + C::K_BYTES +
                         swizzle<C::D>(lane % 16, lane / 16),
                     scale_log2);
}

/* Of all row blocks of all heads an equal share, one after the other: a block of threads stays on
 * its SM for the whole launch. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 1)
    rolling_kernel(const __grid_constant__ AttnArgs a, int row_blocks)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q of each strip, the ring, Sight */
    Sight<C> &sight = *reinterpret_cast<Sight<C> *>(smem + C::SIGHT);
    unsigned char *ring = smem + C::RING;
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const int begin = (int)(blockIdx.x * (int64_t)row_blocks / gridDim.x);
    const int end = (int)((blockIdx.x + (int64_t)1) * row_blocks / gridDim.x);

    load_strip<T, C>(smem_address, a, begin);
    bool anew = enter_rows<C>(sight, a, begin, end, true);
#pragma unroll 1
    for (;;) {
        StripRows<C> rows;
        if (anew) {
            RowBlock &now = sight.now[strip_of_thread()];
            __syncthreads(); /* all warps are done with what is in the ring */
            fill_ring<T, C>(ring, a, now, now.F);
        }
        clear_rows(rows);
#pragma unroll 1
        for (int step = 0;; step++) {
            const int strip = strip_of_thread();
            RowBlock &now = sight.now[strip];
            if (step >= now.steps)
                break;
            const int tile = now.F + step + (now.shift ? strip * C::ROWS / C::Bc : 0);
            copy_async_wait<0>(); /* the tile that was fetched in the last step; at first, Q too */
            __syncthreads(); /* all threads' copies are there, and the last step's work is done:
                              * nobody reads its first tile any more, whose place is now free */
            fill_ring<T, C>(ring, a, now, min(now.F + step, now.keep));
            if (lane_of_thread() == 0) {
                now.c0 = tile * C::Bc;
                now.K = smem_address + C::RING + ring_place<C>(tile) * C::STAGE;
            }
            __syncwarp();
            step_strip<T, C>(rows, sight, smem_address, a.scale * LOG2E);
        }
        /* Q is the warp's own: no other waits for it. (Without a single step it may still be on its
         * way to where the next one goes.) */
        copy_async_wait<0>();
        __syncwarp();
        const BlockWork done = sight.now[strip_of_thread()].work;
        if (sight.now[strip_of_thread()].index + 1 < sight.now[strip_of_thread()].end)
            load_strip<T, C>(smem_address, a, sight.now[strip_of_thread()].index + 1);
        copy_async_commit();
        store_strip<T, C>(rows, a, done);
        const RowBlock &now = sight.now[strip_of_thread()];
        if (now.index + 1 == now.end)
            break;
        anew = enter_rows<C>(sight, a, now.index + 1, now.end, false);
    }
}

/* Blocks of threads: one for each SM, where there are that many row blocks. */
static int64_t block_count(const AttnShape &n, int places)
{
    const int64_t row_blocks = n.B * n.H * tile_count(n.Nq, Strip<128>::Br);
    return row_blocks < places ? row_blocks : places;
}

template <typename T, int D> struct LaunchRolling {
    typedef Strip<D> C;
    static const int SMEM = C::SIGHT + sizeof(Sight<C>);
    static_assert(SMEM <= 227 * 1024, "a block of sm_90 has no more");
    static AttnStatus run(const AttnArgs *a, int places)
    {
        const int64_t row_blocks = a->shape.B * a->shape.H * tile_count(a->shape.Nq, C::Br);
        const AttnStatus status = reserve_smem(rolling_kernel<T, C>, SMEM);
        if (status != ATTN_OK)
            return status;
        rolling_kernel<T, C><<<(unsigned)block_count(a->shape, places), C::THREADS, SMEM,
                               (cudaStream_t)a->stream>>>(*a, (int)row_blocks);
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

template <typename T> static AttnStatus run_rolling(const AttnArgs *a, int places)
{
    return a->shape.d <= 64 ? LaunchRolling<T, 64>::run(a, places)
                            : LaunchRolling<T, 128>::run(a, places);
}

/* The case as such, whatever the device. */
static bool fits_kernel(const AttnArgs *a)
{
    const AttnRule *rule = &a->rule;
    const AttnShape *n = &a->shape;
#ifdef ATTN_NO_CUDA_F16
    const bool dtype = a->Q.dtype == ATTN_BF16;
#else
    const bool dtype = a->Q.dtype == ATTN_BF16 || a->Q.dtype == ATTN_F16;
#endif
    const bool narrow = rule->left >= 0 && rule->right >= 0 && rule->left <= WIDEST &&
                        rule->right <= WIDEST - rule->left;
    const bool plain = !a->mask && !(a->softcap > 0.0f) && a->scale > 0.0f;
    return dtype && narrow && plain && n->d <= 128 && n->Nq < FAR / 2 && n->Nk < FAR / 2 &&
           n->B * n->H * tile_count(n->Nq, Strip<128>::Br) <= INT32_MAX &&
           a->positions_q.count == 1 && a->positions_k.count == 1 && all_rows_on_16_bytes(a) &&
           rows_on_16_bytes(&a->O);
}

/* places: SMs of this device. ATTN_SKIP: the case or the device is none for the kernel. */
static AttnStatus find_places(const AttnArgs *a, int *places)
{
    int device = 0, bytes = 0, major = 0;
    if (!fits_kernel(a))
        return ATTN_SKIP;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    CUDA_TRY(cudaDeviceGetAttribute(places, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (flash_smem_limit() > 0 && flash_smem_limit() < bytes) /* --smem-limit: a smaller GPU */
        bytes = (int)flash_smem_limit();
    return major < 8 || bytes < LaunchRolling<__nv_bfloat16, 128>::SMEM ? ATTN_SKIP : ATTN_OK;
}

AttnStatus window_rolling_cuda(const AttnArgs *a)
{
    int places = 0;
    const AttnStatus status = find_places(a, &places);
    if (status != ATTN_OK)
        return status;
#ifndef ATTN_NO_CUDA_F16
    if (a->Q.dtype == ATTN_F16)
        return run_rolling<__half>(a, places);
#endif
    return run_rolling<__nv_bfloat16>(a, places);
}

RollingTiles window_rolling_tiles_cuda(const AttnArgs *a)
{
    typedef Strip<128> C; /* the sizes of all head dimensions */
    RollingTiles tiles = {0, C::Br, C::ROWS, C::Bc};
    int places = 0;
    if (find_places(a, &places) == ATTN_OK)
        tiles.blocks = block_count(a->shape, places);
    return tiles;
}
