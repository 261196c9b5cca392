/* SPDX-License-Identifier: MIT
 *
 * online_row.cuh: what one warp knows of a row while keys of a block come by, and how that is
 * merged into an output which other blocks have written.
 *
 *     lse = max + log1p(exp(min - max))                      of lse_i and lse_ij
 *     O_i = exp(lse_i - lse) O_i + exp(lse_ij - lse) O_ij    rounded to the dtype of O
 *
 * For S and P each lane has one key of a tile, for O it has channels lane, lane + 32, ...; maximum
 * and sum go over lanes by shuffles. This is stage 03's textbook step (warp_row.cuh) with any
 * dtype, and with a merge at its end that can start from any state.
 *
 * A row that sees no key of the block is left alone, to the bit: a step must not touch what it has
 * nothing to add to. That also keeps -inf - -inf, which is NaN, out of the merge.
 *
 * Interface:
 * - BlockRow, empty_row, add_scores, merge_row. load_rows: a tile in shared memory, float32.
 * - keys_of_tile, tile_bytes: how many keys fit. MOST_D: channels.
 */
#ifndef UNITS_ONLINE_ROW_CUH
#define UNITS_ONLINE_ROW_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define MOST_D 256
#define SLOTS  (MOST_D / 32) /* channels of a lane */
#define ALL    0xffffffffu

/* Keys of a tile: K and V of 32 keys in float32 do not fit at d = 256 (48 KiB of shared memory). */
static __host__ __device__ __forceinline__ int keys_of_tile(int d)
{
    return d <= 128 ? 32 : 16;
}

/* K and V of a tile, with a column more than channels: 32 rows, 32 banks. */
static inline int tile_bytes(int d)
{
    return 2 * keys_of_tile(d) * (d + 1) * (int)sizeof(float);
}

/* What a row knows of this block: online softmax, O not yet divided by l. */
struct BlockRow {
    float m, l, O[SLOTS];
};

static __device__ __forceinline__ void empty_row(BlockRow &row)
{
    row.m = -INFINITY;
    row.l = 0.0f;
#pragma unroll
    for (int n = 0; n < SLOTS; n++)
        row.O[n] = 0.0f;
}

/* `count` rows of d channels, `ld` elements apart, to tile_smem [Bc][d + 1] by the `warps` warps of
 * the block. Rows that do not exist: 0. */
template <typename T>
static __device__ __forceinline__ void load_rows(float *tile_smem, const T *from, int64_t ld,
                                                 int count, int Bc, int d, int warps)
{
    for (int c = threadIdx.x / 32; c < Bc; c += warps)
        for (int x = threadIdx.x % 32; x < d; x += 32)
            tile_smem[c * (d + 1) + x] = c < count ? (float)from[c * ld + x] : 0.0f;
}

/* The row meets a tile. score: of this lane's key, -inf where the row does not see it or the lane
 * has none. V_smem [Bc][d + 1] */
static __device__ __forceinline__ void add_scores(BlockRow &row, float score, const float *V_smem,
                                                  int Bc, int d)
{
    const int lane = threadIdx.x % 32;
    if (__all_sync(ALL, score == -INFINITY))
        return; /* nothing to add. (The maximum could not tell: fmaxf(-inf, NaN) is -inf.) */
    float m_new = score;
    for (int distance = 16; distance > 0; distance /= 2)
        m_new = fmaxf(m_new, __shfl_xor_sync(ALL, m_new, distance));
    m_new = fmaxf(m_new, row.m);
    const float p = expf(score - m_new), alpha = expf(row.m - m_new);
    float l_tile = p;
    for (int distance = 16; distance > 0; distance /= 2)
        l_tile += __shfl_xor_sync(ALL, l_tile, distance);
    row.m = m_new;
    row.l = alpha * row.l + l_tile;
#pragma unroll
    for (int n = 0; n < SLOTS; n++)
        row.O[n] *= alpha;
    for (int key = 0; key < Bc; key++) {
        const float p_key = __shfl_sync(ALL, p, key);
#pragma unroll
        for (int n = 0; n < SLOTS; n++)
            if (lane + 32 * n < d)
                row.O[n] = fmaf(p_key, V_smem[key * (d + 1) + lane + 32 * n], row.O[n]);
    }
}

/* lse_i and O_i of the global state, and this block's: log1p keeps what a small addend changes.
 * Not fmaxf and fminf: of NaN and a number both take the number. Compared, NaN stays. */
template <typename T>
static __device__ __forceinline__ void merge_row(const BlockRow &row, T *O_i, float *lse_i, int d)
{
    const int lane = threadIdx.x % 32;
    if (row.l == 0.0f)
        return; /* no key of this block is visible */
    const float lse_old = *lse_i, lse_ij = row.m + logf(row.l);
    const float high = lse_old > lse_ij ? lse_old : lse_ij;
    const float low = lse_old > lse_ij ? lse_ij : lse_old;
    const float lse_new = high + log1pf(expf(low - high));
    /* exp(lse_old - lse_new) and the other, not from a rounded lse_new: their sum is 1 */
    const float of_old = 1.0f / (1.0f + expf(lse_ij - lse_old));
    const float of_block = 1.0f / (1.0f + expf(lse_old - lse_ij)) / row.l;
#pragma unroll
    for (int n = 0; n < SLOTS; n++)
        if (lane + 32 * n < d) {
            T *O = O_i + lane + 32 * n;
            *O = T(of_old * (float)*O + of_block * row.O[n]);
        }
    __syncwarp(); /* all lanes have read lse_old */
    if (lane == 0)
        *lse_i = lse_new;
}

#endif
