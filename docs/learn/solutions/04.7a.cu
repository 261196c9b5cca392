/* SPDX-License-Identifier: MIT
 *
 * 04.7a: a producer, and two groups that share the tiles.
 */
#include "units/hopper.cuh"

#define D    64
#define ROWS 16 /* of a tile */

__global__ void sum_kernel(const float *V, float *Y, int tiles)
{
    __shared__ float smem[2][ROWS * D], odd_sums[D];
    __shared__ __align__(8) uint64_t barriers[4];
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(barriers);
    const uint32_t full[2] = {at, at + 8}, empty[2] = {at + 16, at + 24};
    const int thread = threadIdx.x, channel = (thread + 32) % D, group = (thread - 32) / D;
    float sum = 0.0f;
    if (thread == 0)
        for (int s = 0; s < 2; s++) {
            barrier_init(full[s], 32);   /* the producer's lanes */
            barrier_init(empty[s], 128); /* all who add */
        }
    __syncthreads();
    for (int j = 0; j < tiles; j++) {
        const int s = j % 2, round = j / 2;
        if (thread < 32) { /* the producer */
            barrier_wait(empty[s], (round + 1) % 2, 0);
            for (int n = thread; n < ROWS * D; n += 32)
                smem[s][n] = V[j * ROWS * D + n];
            barrier_arrive(full[s]);
            continue;
        }
        barrier_wait(full[s], round % 2, 0);
        if (s == group) /* the other group has nothing to add, and takes part all the same */
            for (int r = 0; r < ROWS; r++)
                sum += smem[s][r * D + channel];
        barrier_arrive(empty[s]);
    }
    if (thread >= 32 && group == 1)
        odd_sums[channel] = sum;
    __syncthreads();
    if (thread >= 32 && group == 0)
        Y[channel] = sum + odd_sums[channel];
}

extern "C" void sum_tiles(const float *V, float *Y, int N)
{
    sum_kernel<<<1, 160>>>(V, Y, N / ROWS);
}
