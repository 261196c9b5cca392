/* SPDX-License-Identifier: MIT
 *
 * product_f32.cuh: a warp multiplies two float32 matrices, kept in registers and shared memory.
 *
 * A product is a sum of outer products: sum[r][c] += A[k][r] * B[k][c] for each k, a column of one
 * factor times a row of the other. A thread that owns 8 x 8 of the sum loads 8 + 8 values for 64
 * fused multiply-adds, four instructions if they are float4. For that, A and B lie in shared
 * memory with k outside: what is to be multiplied at one k stands side by side.
 *
 * The warp is 4 x 8 lanes. Lane (ty, tx) owns rows 4*ty + 16*i and columns 4*tx + 32*n, four each.
 * In a clock shared memory serves a float4 to 8 lanes, or to 16 if each of them wants the same as
 * the next lane, or as the next but one. So lanes 0 and 1 differ in tx only, 0 and 2 in ty only:
 * every load takes two clocks. (With tx in the low three bits a load of B would take four.)
 *
 * Interface:
 * - load_tile_f32: part of a tensor to shared memory, as it is or transposed; the caller commits.
 * - multiply_add: sum += A^T B.
 * - lane_row, lane_column, row_of, column_of: which elements a thread owns.
 * - max_of_row, sum_of_row: over the eight lanes that share rows.
 */
#ifndef UNITS_PRODUCT_F32_CUH
#define UNITS_PRODUCT_F32_CUH

#include <stdint.h>

/* One float from global to shared memory, in the background from sm_80 on. */
__device__ __forceinline__ void copy_async_4(float *to_smem, const float *from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to_smem)),
                 "l"(from)
                 : "memory");
#else
    *to_smem = *from;
#endif
}

/* ROWS x CHANNELS of a tensor, row r at from + r * stride, to tile_smem [ROWS][LD] or, TRANSPOSED,
 * [CHANNELS][LD]. What lies past `rows` becomes zero. A warp takes 32 channels of a row.
 * (Transposed, they go to banks 4 apart, four to a bank. An arrangement without conflicts gained
 * nothing: the products read far more.) */
template <bool TRANSPOSED, int ROWS, int CHANNELS, int LD, int THREADS>
__device__ __forceinline__ void load_tile_f32(float *tile_smem, const float *from, int64_t stride,
                                              int rows)
{
    const int WARPS = THREADS / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int ROW = TRANSPOSED ? 1 : LD, CHANNEL = TRANSPOSED ? LD : 1; /* steps in the tile */
    tile_smem += warp * ROW + lane * CHANNEL;
    from += warp * stride + lane;
    if (rows >= ROWS) {
#pragma unroll
        for (int r = 0; r < ROWS; r += WARPS, from += WARPS * stride)
#pragma unroll
            for (int x = 0; x < CHANNELS; x += 32)
                copy_async_4(tile_smem + r * ROW + x * CHANNEL, from + x);
    } else {
#pragma unroll 1
        for (int r = 0; r < ROWS; r += WARPS, from += WARPS * stride)
#pragma unroll 1
            for (int x = 0; x < CHANNELS; x += 32)
                if (r + warp < rows)
                    copy_async_4(tile_smem + r * ROW + x * CHANNEL, from + x);
                else
                    tile_smem[r * ROW + x * CHANNEL] = 0.0f;
    }
}

/* COUNT floats: fours that lie STEP apart. */
template <int COUNT, int STEP>
__device__ __forceinline__ void load_fours(float (&to)[COUNT], const float *from_smem)
{
#pragma unroll
    for (int e = 0; e < COUNT; e += 4)
        *reinterpret_cast<float4 *>(to + e) =
            *reinterpret_cast<const float4 *>(from_smem + e / 4 * STEP);
}

/* sum[r][c] += A[k][row r] * B[k][column c] over k < K. A_smem [K][LD_A] and B_smem [K][LD_B] point
 * at this lane's first row and column. Of four steps in one body the compiler moves the loads up,
 * so that they arrive while earlier steps are multiplied. */
template <int K, int LD_A, int LD_B, int ROWS, int COLS>
__device__ __forceinline__ void multiply_add(float (&sum)[ROWS][COLS], const float *A_smem,
                                             const float *B_smem)
{
#pragma unroll 4
    for (int k = 0; k < K; k++) {
        float a[ROWS], b[COLS];
        load_fours<ROWS, 16>(a, A_smem + k * LD_A);
        load_fours<COLS, 32>(b, B_smem + k * LD_B);
#pragma unroll
        for (int c = 0; c < COLS; c++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                sum[r][c] = fmaf(a[r], b[c], sum[r][c]);
    }
}

/* This lane's first row and column, and how far from them its elements sum[r][c] are. */
__device__ __forceinline__ int lane_row(void)
{
    return threadIdx.x / 2 % 4 * 4;
}

__device__ __forceinline__ int lane_column(void)
{
    return (threadIdx.x % 2 + threadIdx.x % 32 / 8 * 2) * 4;
}

__device__ __forceinline__ int row_of(int r)
{
    return r / 4 * 16 + r % 4;
}

__device__ __forceinline__ int column_of(int c)
{
    return c / 4 * 32 + c % 4;
}

__device__ __forceinline__ float max_of_row(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 8));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 16));
}

__device__ __forceinline__ float sum_of_row(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

#endif
