/* SPDX-License-Identifier: MIT
 *
 * tile_load.cuh: a tile of 16-bit rows from global to shared memory.
 *
 * A row of D channels is D/8 chunks of 16 bytes, the most that one load instruction moves. A warp
 * takes 32 neighbouring chunks: whole rows, so whole 32-byte sectors of memory. What a tile has
 * beyond the tensor (rows past N, channels past d) must become zeros: memory there may hold NaN,
 * and 0 * NaN is NaN.
 *
 * Tensors promise alignment to one element only. Where rows do not start on 16 bytes (`aligned`
 * false) single elements are loaded instead; slower, but the same tile.
 *
 * Interface:
 * - load_tile_async: cp.async into swizzled rows of D elements; the caller commits.
 */
#ifndef FLASH_FORWARD_TILE_LOAD_CUH
#define FLASH_FORWARD_TILE_LOAD_CUH

#include "units/mma.cuh"

/* base: row 0 of one head, [N][d] with `stride` elements from row to row. The tile's rows are
 * first .. first + ROWS - 1. REREAD: for kernels that are short of registers (read_thread). */
template <typename T, int D, int ROWS, int THREADS, bool REREAD>
__device__ __forceinline__ void load_tile_async(unsigned char *tile_smem, const T *base,
                                                int64_t stride, int first, int N, int d,
                                                bool aligned)
{
    const int CHUNKS = D / 8;
    const uint32_t tile = (uint32_t)__cvta_generic_to_shared(tile_smem);
    /* Rows that the threads cover at a time: 2, 4 or a multiple of 8. */
    const int STEP = D % 64 == 0 ? THREADS / CHUNKS : THREADS / CHUNKS / 8 * 8;
    static_assert(STEP > 0 && (STEP % 8 == 0 || 8 % STEP == 0), "rows at a time");
    if (aligned) {
        /* A thread keeps its chunk and walks down the rows. After 8 rows the swizzle of its address
         * is the same again; in between one XOR turns it. (D = 96 leaves 32 threads idle.) */
        const int thread = REREAD ? read_thread() : (int)threadIdx.x;
        const int r = thread / CHUNKS, chunk = thread % CHUNKS;
        if (r >= STEP)
            return;
        const T *from = base + (first + r) * stride + chunk * 8;
        const uint32_t to = tile + swizzle<D>(r, chunk);
        const int left = chunk * 8 < d ? N - first - r : 0;
#pragma unroll
        for (int row = 0; row < ROWS; row += STEP) {
            const int valid = row < left;
            copy_async_16((to ^ (row & 7) * 16) + row * D * 2, valid ? from : base, valid);
            from += STEP * stride;
        }
    } else {
#pragma unroll 1
        for (int e = threadIdx.x; e < ROWS * D; e += THREADS) {
            const int r = e / D, x = e % D;
            T *to = reinterpret_cast<T *>(tile_smem + swizzle<D>(r, x / 8)) + x % 8;
            *to = first + r < N && x < d ? base[(first + r) * stride + x] : T(0.0f);
        }
    }
}

#endif
