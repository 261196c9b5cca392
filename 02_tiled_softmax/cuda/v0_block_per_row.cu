/* SPDX-License-Identifier: MIT
 *
 * v0_block_per_row: the three passes of the CPU's v0_three_pass, one block of 256 threads a row.
 *
 * Thread t takes the columns t, t + 256, t + 512 ...: neighbouring threads read neighbouring
 * floats, so that a warp's 32 loads become one transaction of 128 bytes ("coalesced"). Each pass
 * ends in a reduction over the block through shared memory, with a barrier for each halving.
 *
 * Prediction before measuring: four trips through memory where the fastest possible softmax makes
 * two, so at most half of the copy rate when rows are long; more when the second and third pass
 * find the row in the L1 or L2 cache, which the first pass filled. (Only L2: loads go past L1.)
 *
 * Interface: any rows, cols; float32; attention with this softmax.
 */
#include "problem_rows.cuh"

#define ROW_THREADS 256
#define MAX_BLOCKS  (1 << 20)

/* Every thread gets the maximum (or the sum) of `mine` over the block. values_smem [ROW_THREADS] */
template <int IS_SUM> static __device__ float block_reduce(float mine, float *values_smem)
{
    int t = threadIdx.x;
    values_smem[t] = mine;
    __syncthreads();
    for (int half = ROW_THREADS / 2; half > 0; half /= 2) {
        if (t < half) {
            float other = values_smem[t + half];
            values_smem[t] = IS_SUM ? values_smem[t] + other : fmaxf(values_smem[t], other);
        }
        __syncthreads();
    }
    float all = values_smem[0];
    __syncthreads(); /* nobody may overwrite slot 0 before everybody has read it */
    return all;
}

static __global__ void block_per_row_kernel(const float *x, /* [rows][cols] */
                                            float *y,       /* [rows][cols], may be x */
                                            float *lse,     /* [rows] or NULL */
                                            int64_t rows, int64_t cols)
{
    __shared__ float values_smem[ROW_THREADS];
    int t = threadIdx.x;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *x_row = x + row * cols;
        float *y_row = y + row * cols;
        SoftmaxState state = softmax_empty();

        for (int64_t c = t; c < cols; c += ROW_THREADS)
            state.m = fmaxf(state.m, load_one(x_row + c));
        state.m = block_reduce<0>(state.m, values_smem);

        float shift = softmax_shift(state.m);
        for (int64_t c = t; c < cols; c += ROW_THREADS)
            state.l += expf(load_one(x_row + c) - shift);
        state.l = block_reduce<1>(state.l, values_smem);

        float inverse = softmax_inverse(state);
        for (int64_t c = t; c < cols; c += ROW_THREADS)
            store_one(y_row + c, expf(load_one(x_row + c) - shift) * inverse);

        if (t == 0 && lse)
            lse[row] = softmax_lse(state);
    }
}

static void softmax(const SoftmaxArgs *args)
{
    cudaStream_t stream = (cudaStream_t)args->stream;
    unsigned blocks = (unsigned)(args->rows < MAX_BLOCKS ? args->rows : MAX_BLOCKS);
    block_per_row_kernel<<<blocks, ROW_THREADS, 0, stream>>>(args->x, args->y, args->lse,
                                                             args->rows, args->cols);
    collect_counts(stream);
}

RUNG_ROWS(tiled_softmax, v0_block_per_row, "three passes, one block a row", softmax, NULL, 3, 0);
