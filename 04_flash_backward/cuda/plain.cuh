/* SPDX-License-Identifier: MIT
 *
 * plain.cuh: the problem that the rungs on the GPU solve, and the pass around their kernels.
 *
 * The plain problem. Queries and keys each stand in one run of positions, so query i sees the keys
 * j with low <= j - i <= high: all keys, the keys up to a diagonal, or a band beside it. Two
 * numbers say for each tile whether it is skipped, and for each pair whether it is seen.
 *
 *     no mask              low = -far              high = far
 *     causal               low = -far              high = offset
 *     window of L and R    low = offset - L        high = offset + R
 *
 * where offset is the distance of the two first positions: 0 for the upper-left corner, Nk - Nq for
 * the lower-right one.
 *
 * A query that sees no key has P = 0 everywhere. Its dO may still hold anything, padding for
 * example, and 0 * NaN is NaN. So such rows count as rows that do not exist: they become zeros when
 * they are loaded.
 *
 * The pass. Every rung needs delta before and the rounding of dQ after its own kernel (v13 makes
 * stats and zeros itself):
 *
 *     stats = (lse * log2(e), delta)     run_pass, once for each query
 *     dQ_sum = 0                         run_pass, for rungs that add to dQ from many blocks
 *     dK, dV, dQ or dQ_sum               the rung
 *     dQ = scale * dQ_sum                round_dQ, or the rung
 *
 * Interface:
 * - Plain, plain_of, publish_plain: low, high and the rows that see any key. Rows, rows_that_see,
 *   stats_of_head, pair_is_seen.
 * - Pass, run_pass: what a rung gets. round_dQ, run_16_bit: for its launcher.
 * - KeyBlock, block_of_keys: which keys a block of threads owns. divide_up.
 */
#ifndef FLASH_BACKWARD_PLAIN_CUH
#define FLASH_BACKWARD_PLAIN_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "attn_band.h"
#include "cuda/cuda_check.h"
#include "flash_backward.h"

#define LOG2E    1.4426950408889634f
#define PAD_ROWS 64        /* stats and dQ_sum have whole tiles of rows */
#define FAR      (1 << 30) /* no tensor has so many rows */

namespace rung
{

struct Plain {
    int low, high;          /* query i sees keys i + low .. i + high, as far as they exist */
    int first_row, end_row; /* queries first_row .. end_row - 1 see some key */
    int Nk;
};

/* What a kernel gets beside the arguments, in device memory. */
struct Pass {
    const float2 *stats; /* [B][H][Nq, padded] of (lse * log2(e), delta); (inf, 0): sees no key */
    float *dQ_sum;       /* zeros for B*H*[Nq, padded]*d sums, in the rung's own order, or NULL */
};

static __host__ __device__ __forceinline__ int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

static __device__ __forceinline__ Plain plain_of(const AttnArgs &a)
{
    const AttnBand band = attn_band(&a);
    Plain plain;
    plain.low = band.from;
    plain.high = band.to;
    plain.Nk = (int)a.shape.Nk;
    plain.first_row = max(0, -plain.high);
    plain.end_row = min((int)a.shape.Nq, plain.Nk - plain.low);
    return plain;
}

/* To shared memory, for all threads of the block: positions lie in device memory, and one thread
 * that waits for them is enough. With a barrier. */
static __device__ __forceinline__ void publish_plain(Plain &plain_smem, const AttnArgs &a)
{
    if (threadIdx.x == 0)
        plain_smem = plain_of(a);
    __syncthreads();
}

typedef AttnStatus (*LaunchFn)(const AttnArgs *args, const Pass &pass);

/* The whole pass around a rung's kernel. sums: dQ_sum, with room for whole tiles of rows; many
 * blocks add to it in any order, so with --deterministic the answer is ATTN_SKIP. */
AttnStatus run_pass(const AttnArgs *args, LaunchFn launch, bool sums);
/* dQ = scale * dQ_sum [B][Nq][H][d], rounded to the dtype. */
AttnStatus round_dQ(const AttnArgs *args, const Pass &pass);

/* Launch<T, D>::run for the dtype and the d of the arguments. */
template <template <typename, int> class Launch>
static AttnStatus run_16_bit(const AttnArgs *a, const Pass &pass)
{
    if (a->Q.dtype == ATTN_F32 || cuda_capability() < 80)
        return ATTN_SKIP;
    if (a->Q.dtype == ATTN_BF16)
        return a->shape.d == 64 ? Launch<__nv_bfloat16, 64>::run(a, pass)
                                : Launch<__nv_bfloat16, 128>::run(a, pass);
#ifdef ATTN_NO_CUDA_F16 /* a machine without a GPU that asks whether all compiles */
    return ATTN_SKIP;
#else
    return a->shape.d == 64 ? Launch<__half, 64>::run(a, pass) : Launch<__half, 128>::run(a, pass);
#endif
}

struct Rows {
    int begin, end;
};

/* The queries that see any of keys j0 .. j0 + count - 1. */
static __device__ __forceinline__ Rows rows_that_see(const Plain &plain, int j0, int count)
{
    Rows rows;
    rows.begin = max(plain.first_row, j0 - plain.high);
    rows.end = min(plain.end_row, j0 + count - plain.low);
    return rows;
}

static __device__ __forceinline__ bool pair_is_seen(const Plain &plain, int i, int j)
{
    return j - i >= plain.low && j - i <= plain.high && j < plain.Nk;
}

/* A block of threads owns Bc keys of one kv head. Neighbouring blocks have the same head, so its Q
 * and dO are in the L2 cache for all of them. */
struct KeyBlock {
    int b, h_kv, j0, group; /* group: query heads of the kv head */
};

static __device__ __forceinline__ KeyBlock block_of_keys(const AttnArgs &a, int Bc)
{
    const int tiles = divide_up((int)a.shape.Nk, Bc), Hkv = (int)a.shape.Hkv;
    KeyBlock block;
    block.b = blockIdx.x / tiles / Hkv;
    block.h_kv = blockIdx.x / tiles % Hkv;
    block.j0 = blockIdx.x % tiles * Bc;
    block.group = (int)a.shape.H / Hkv;
    return block;
}

/* Where the stats of head (b, h) begin. */
static __device__ __forceinline__ const float2 *stats_of_head(const AttnArgs &a, const Pass &pass,
                                                              int b, int h)
{
    return pass.stats +
           (int64_t)(b * (int)a.shape.H + h) * divide_up((int)a.shape.Nq, PAD_ROWS) * PAD_ROWS;
}

} // namespace rung

#endif
