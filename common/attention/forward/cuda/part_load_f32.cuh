/* SPDX-License-Identifier: MIT
 *
 * part_load_f32.cuh: a tile of float32 from global to shared memory, of tensors with any number of
 * channels, any strides and any base. The rungs' tiles (units/product_f32.cuh) have all channels.
 *
 * Interface:
 * - load_part_f32: rows past the last one and channels past d become zeros; the caller commits.
 */
#ifndef FLASH_FORWARD_PART_LOAD_F32_CUH
#define FLASH_FORWARD_PART_LOAD_F32_CUH

#include "units/product_f32.cuh"

/* ROWS x CHANNELS of a tensor, row r at from + r * stride, to tile_smem [ROWS][LD] or, TRANSPOSED,
 * [CHANNELS][LD]. What lies past `rows` or `channels` becomes zero. A warp takes 32 channels of a
 * row; single floats, so that any base and stride will do. (Transposed, they go to banks 4 apart,
 * four to a bank. An arrangement without conflicts gained nothing: the products read far more.) */
template <bool TRANSPOSED, int ROWS, int CHANNELS, int LD, int THREADS>
__device__ __forceinline__ void load_part_f32(float *tile_smem, const float *from, int64_t stride,
                                              int rows, int channels)
{
    const int WARPS = THREADS / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int ROW = TRANSPOSED ? 1 : LD, CHANNEL = TRANSPOSED ? LD : 1; /* steps in the tile */
    tile_smem += warp * ROW + lane * CHANNEL;
    from += warp * stride + lane;
    if (rows >= ROWS && channels >= CHANNELS) {
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
                if (r + warp < rows && x + lane < channels)
                    copy_async_4(tile_smem + r * ROW + x * CHANNEL, from + x);
                else
                    tile_smem[r * ROW + x * CHANNEL] = 0.0f;
    }
}

#endif
