/* SPDX-License-Identifier: MIT
 *
 * 03.5b: m and l of a row, by a block of four warps.
 */
#define EVERY_LANE 0xffffffffu
#define WARPS      4

__device__ float warp_max(float x)
{
    for (int distance = 16; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(EVERY_LANE, x, distance));
    return x;
}

__device__ float warp_sum(float x)
{
    for (int distance = 16; distance > 0; distance /= 2)
        x += __shfl_xor_sync(EVERY_LANE, x, distance);
    return x;
}

/* X: [rows][cols]. m, l: [rows]. */
__global__ void rows_kernel(const float *X, float *m, float *l, int cols)
{
    __shared__ float part[WARPS]; /* one number of each warp */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *row = X + (size_t)blockIdx.x * cols;

    float most = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += 32 * WARPS)
        most = fmaxf(most, row[c]);
    most = warp_max(most);
    if (lane == 0)
        part[warp] = most;
    __syncthreads(); /* all four maxima are there */
    for (int w = 0; w < WARPS; w++)
        most = fmaxf(most, part[w]);

    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += 32 * WARPS)
        sum += expf(row[c] - most);
    sum = warp_sum(sum);
    __syncthreads(); /* all have read the maxima before a sum takes the place of one */
    if (lane == 0)
        part[warp] = sum;
    __syncthreads(); /* all four sums are there */
    if (threadIdx.x == 0) {
        m[blockIdx.x] = most;
        l[blockIdx.x] = part[0] + part[1] + part[2] + part[3];
    }
}

extern "C" void reduce_rows(const float *X, float *m, float *l, int rows, int cols)
{
    rows_kernel<<<rows, 32 * WARPS>>>(X, m, l, cols);
}
