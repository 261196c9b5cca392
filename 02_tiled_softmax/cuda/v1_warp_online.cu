/* SPDX-License-Identifier: MIT
 *
 * v1_warp_online: one warp a row, the online state in registers.
 *
 * Two changes against v0:
 *   - each lane runs the CPU's v1_online over its columns (lane, lane + 32, ...), so maximum and
 * sum come from one pass: three accesses for each element instead of four;
 *   - the row belongs to a warp, whose lanes merge their states by shuffles. No shared memory and
 *     no barrier: the eight warps of a block never wait for each other.
 *
 * Prediction before measuring: good on rows of some thousand columns. One warp cannot ask for much
 * memory at a time (a load of 128 bytes, then the dependent update), so it needs many rows to fill
 * the machine, and a single long row would crawl: v3_split_row is for that.
 *
 * Interface: any rows, cols; float32; attention with this softmax.
 */
#include "problem_rows.cuh"

#define BLOCK_WARPS 8
#define MAX_BLOCKS  (1 << 20)

static __global__ void warp_online_kernel(const float *x, /* [rows][cols] */
                                          float *y,       /* [rows][cols], may be x */
                                          float *lse,     /* [rows] or NULL */
                                          int64_t rows, int64_t cols)
{
    int lane = threadIdx.x % WARP_LANES;
    int64_t first_row = blockIdx.x * (int64_t)BLOCK_WARPS + threadIdx.x / WARP_LANES;
    for (int64_t row = first_row; row < rows; row += gridDim.x * (int64_t)BLOCK_WARPS) {
        const float *x_row = x + row * cols;
        float *y_row = y + row * cols;
        SoftmaxState state = softmax_empty();

        for (int64_t c = lane; c < cols; c += WARP_LANES)
            state = softmax_push(state, load_one(x_row + c));
        state = warp_merge(state);

        float shift = softmax_shift(state.m);
        float inverse = softmax_inverse(state);
        for (int64_t c = lane; c < cols; c += WARP_LANES)
            store_one(y_row + c, expf(load_one(x_row + c) - shift) * inverse);

        if (lane == 0 && lse)
            lse[row] = softmax_lse(state);
    }
}

static void softmax(const SoftmaxArgs *args)
{
    cudaStream_t stream = (cudaStream_t)args->stream;
    int64_t blocks = (args->rows + BLOCK_WARPS - 1) / BLOCK_WARPS;
    blocks = blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS;
    warp_online_kernel<<<(unsigned)blocks, BLOCK_WARPS * WARP_LANES, 0, stream>>>(
        args->x, args->y, args->lse, args->rows, args->cols);
    collect_counts(stream);
}

RUNG_ROWS(tiled_softmax, v1_warp_online, "online (m, l), one warp a row", softmax, NULL, 2, 0);
