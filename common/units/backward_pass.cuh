/* SPDX-License-Identifier: MIT
 *
 * backward_pass.cuh: what comes before and after a rung's own kernel in the backward pass, and
 * which keys and queries a block of that kernel works on.
 *
 *     stats = (lse * log2(e), delta)     start_pass, once for each query
 *     dQ_sum = 0                         start_pass, if many blocks add to the same dQ
 *     dK, dV, and dQ or dQ_sum           the rung's own kernel
 *     dQ = scale * dQ_sum                round_sums, or the rung, if there is a dQ_sum
 *
 * A block of that kernel owns keys, and needs the queries that see any of them. Query i sees key j
 * when from <= j - i <= to, so key j is seen by queries j - to <= i <= j - from.
 *
 * A query that sees no key has P = 0 everywhere. Its dO may still hold anything, padding for
 * example, and 0 * NaN is NaN. So its rows are treated like rows past the end: zeros are loaded.
 *
 * Interface:
 * - Band, pair_is_seen. RowRange, rows_that_see: the queries that see any key, or any of some keys.
 * - KeyBlock, block_of_keys: which keys a block of threads owns. divide_up.
 * - Pass, stats_of_head: what a kernel gets. PassSizes, pass_bytes, start_pass, round_sums (host).
 */
#ifndef UNITS_BACKWARD_PASS_CUH
#define UNITS_BACKWARD_PASS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#define PAD_ROWS 64 /* stats and dQ_sum have a multiple of so many rows */

static __host__ __device__ __forceinline__ int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* --- who sees whom -----------------------------------------------------------------------------*/

/* Query i < Nq sees key j < Nk when from <= j - i <= to. */
struct Band {
    int from, to, Nq, Nk;
};

static __device__ __forceinline__ bool pair_is_seen(const Band &band, int i, int j)
{
    return j - i >= band.from && j - i <= band.to && j < band.Nk;
}

struct RowRange {
    int begin, end;
};

/* The queries that see any key. */
static __device__ __forceinline__ RowRange rows_that_see(const Band &band)
{
    return {max(0, -band.to), min(band.Nq, band.Nk - band.from)};
}

/* The queries that see any of keys j0 .. j0 + count - 1. */
static __device__ __forceinline__ RowRange rows_that_see(const Band &band, int j0, int count)
{
    const RowRange all = rows_that_see(band);
    return {max(all.begin, j0 - band.to), min(all.end, j0 + count - band.from)};
}

/* A block of threads owns Bc keys of one kv head. Neighbouring blocks have the same head, so its Q
 * and dO are in the L2 cache for all of them. */
struct KeyBlock {
    int b, h_kv, j0, group; /* group: query heads that share it */
};

/* block: its number. */
static __device__ __forceinline__ KeyBlock block_of_keys(unsigned block, int H, int Hkv, int Nk,
                                                         int Bc)
{
    const int tiles = divide_up(Nk, Bc), head = block / tiles;
    return {head / Hkv, head % Hkv, (int)(block % tiles) * Bc, H / Hkv};
}

/* --- what comes before and after ---------------------------------------------------------------*/

/* What a kernel gets beside the problem, in device memory. */
struct Pass {
    const float2 *stats; /* [B][H][Nq, padded] of (lse * log2(e), delta); (inf, 0): sees no key */
    float *dQ_sum;       /* zeros for B*H*[Nq, padded]*d sums, in the rung's own order, or NULL */
};

static __host__ __device__ __forceinline__ int padded_rows(int Nq)
{
    return divide_up(Nq, PAD_ROWS) * PAD_ROWS;
}

/* Where the stats of a head begin. head: b * H + h. */
static __device__ __forceinline__ const float2 *stats_of_head(const Pass &pass, int head, int Nq)
{
    return pass.stats + (int64_t)head * padded_rows(Nq);
}

struct PassSizes {
    int B, H, d;
    Band band;
};

/* A warp takes a row: its lanes read neighbouring channels, so one load of the warp covers whole
 * sectors of memory. */
enum { ROW_THREADS = 256, ROWS_OF_BLOCK = ROW_THREADS / 32 };

/* O, dO [B][Nq][H][d], lse [B][H][Nq] to stats [B][H][Nq, padded]. */
template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    stats_kernel(const __grid_constant__ PassSizes n, const T *O, const T *dO, const float *lse,
                 float2 *stats)
{
    const int64_t row = blockIdx.x * (int64_t)ROWS_OF_BLOCK + threadIdx.x / 32;
    const int rows = padded_rows(n.band.Nq), lane = threadIdx.x % 32;
    const int i = (int)(row % rows), head = (int)(row / rows), b = head / n.H, h = head % n.H;
    const RowRange seen = rows_that_see(n.band);
    if (b >= n.B)
        return;
    float2 pair = make_float2(INFINITY, 0.0f); /* P = 2^(s - inf) = 0 */
    if (i >= seen.begin && i < seen.end) {
        const int64_t first = (((int64_t)b * n.band.Nq + i) * n.H + h) * n.d;
        float delta = 0.0f;
        for (int x = lane; x < n.d; x += 32)
            delta = fmaf((float)dO[first + x], (float)O[first + x], delta);
        for (int distance = 16; distance > 0; distance /= 2)
            delta += __shfl_xor_sync(0xffffffffu, delta, distance);
        pair = make_float2(lse[(int64_t)head * n.band.Nq + i] * (float)M_LOG2E, delta);
    }
    if (lane == 0)
        stats[row] = pair;
}

/* dQ = scale * dQ_sum, both [B][Nq][H][d]. */
template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    round_kernel(const __grid_constant__ PassSizes n, float scale, const float *dQ_sum, T *dQ)
{
    const int64_t row = blockIdx.x * (int64_t)ROWS_OF_BLOCK + threadIdx.x / 32;
    if (row >= (int64_t)n.B * n.band.Nq * n.H)
        return;
    for (int x = threadIdx.x % 32; x < n.d; x += 32)
        dQ[row * n.d + x] = T(scale * dQ_sum[row * n.d + x]);
}

static inline int64_t rows_of_pass(const PassSizes &n)
{
    return (int64_t)n.B * n.H * padded_rows(n.band.Nq);
}

/* Work space: stats and, behind them, dQ_sum. */
static inline int64_t pass_bytes(const PassSizes &n, bool sums)
{
    return rows_of_pass(n) * (int64_t)(sizeof(float2) + (sums ? n.d * sizeof(float) : 0));
}

static inline unsigned blocks_of_rows(int64_t rows)
{
    return (unsigned)((rows + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK);
}

/* work: pass_bytes. */
template <typename T>
static inline Pass start_pass(const PassSizes &n, const T *O, const T *dO, const float *lse,
                              void *work, bool sums, cudaStream_t stream)
{
    float2 *stats = (float2 *)work;
    float *dQ_sum = sums ? (float *)(stats + rows_of_pass(n)) : NULL;
    if (sums)
        cudaMemsetAsync(dQ_sum, 0, rows_of_pass(n) * n.d * sizeof(float), stream);
    stats_kernel<<<blocks_of_rows(rows_of_pass(n)), ROW_THREADS, 0, stream>>>(n, O, dO, lse, stats);
    return {stats, dQ_sum};
}

template <typename T>
static inline void round_sums(const PassSizes &n, float scale, const float *dQ_sum, T *dQ,
                              cudaStream_t stream)
{
    round_kernel<<<blocks_of_rows((int64_t)n.B * n.band.Nq * n.H), ROW_THREADS, 0, stream>>>(
        n, scale, dQ_sum, dQ);
}

#endif
