/* SPDX-License-Identifier: MIT
 *
 * 03.7a: while one tile is added, the next one travels.
 */
#include "units/mma.cuh"

#define D    64
#define ROWS 16 /* of a tile */

/* What one thread of 64 knows: its channel is its number. */
struct Tiles {
    const float *V;
    float (*smem)[ROWS * D];
    float sum;

    __device__ void begin_copy(int j)
    {
        for (int n = threadIdx.x * 4; n < ROWS * D; n += 64 * 4)
            copy_async_16((uint32_t)__cvta_generic_to_shared(&smem[j % 2][n]), V + j * ROWS * D + n,
                          1);
    }

    __device__ void add_tile(int j)
    {
        for (int r = 0; r < ROWS; r++)
            sum += smem[j % 2][r * D + threadIdx.x];
    }
};

__global__ void sum_kernel(const float *V, float *Y, int tiles)
{
    __shared__ __align__(16) float smem[2][ROWS * D];
    Tiles all = {V, smem, 0.0f};
    /* YOUR CODE: 12 lines are enough */
    for (int j = 0; j < tiles; j++) {
        all.begin_copy(j);
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        all.add_tile(j);
    }
    /* END OF YOUR CODE */
    Y[threadIdx.x] = all.sum;
}

extern "C" void sum_tiles(const float *V, float *Y, int N)
{
    sum_kernel<<<1, 64>>>(V, Y, N / ROWS);
}
