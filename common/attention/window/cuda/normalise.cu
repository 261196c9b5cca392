/* SPDX-License-Identifier: MIT
 *
 * normalise.cu: QK normalisation on the GPU. Every group of g channels of a head is divided by its
 * root mean square, so that no score grows with the length of Q or K:
 *
 *     r  = 1 / sqrt(mean(x^2) + eps)         once for each group of each token
 *     y  = w * x * r                         w: one weight for each channel of each head
 *
 * Backward, with dy given (dL/dy, float32):
 *
 *     dx = r * w * dy - x * r^3 / g * sum over the group of (w * dy * x)
 *     dw = sum over all tokens of dy * x * r
 *
 * The first line is the usual one of a normalisation: r depends on all x of the group, so each x
 * feels what the whole group does. The second is a sum over B*N tokens for each of heads*d weights.
 * With atomics it would come in the order of luck; here a block sums TOKENS tokens of one head, its
 * warps in a fixed order, and a second kernel adds the blocks' sums from the first to the last. The
 * same bits every time, on every GPU.
 *
 * A warp takes a row (token and head). Statistics are made group by group, all lanes together; then
 * lane x takes channels x, x + 32, ..., so that a load of the warp covers neighbouring memory.
 *
 * Interface:
 * - window_normalise_cuda, window_normalise_backward_cuda (window_cuda.h): d <= 256, any strides.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "alloc.h"
#include "harness/device/cuda_check.h"
#include "window_cuda.h"

#define WARPS  4
#define MOST_D 256
#define SLOTS  (MOST_D / 32) /* channels of a lane */
#define TOKENS 64            /* of a block in the backward pass */

/* What the tensors of both passes have in common. */
struct Norm {
    Tensor X;
    const float *w; /* [heads*d] */
    int group;
    float eps;
};

/* r of a group, and r^3 / g * sum(w dy x). */
struct GroupStats {
    float r, pull;
};

static __device__ __forceinline__ float sum_of_warp(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

/* stats_smem [d / group] of one warp. dy NULL: r alone. x, w, dy: this row's d channels. */
template <typename T>
static __device__ __forceinline__ void find_stats(GroupStats *stats_smem, const Norm &n, const T *x,
                                                  const float *w, const float *dy)
{
    const int lane = threadIdx.x % 32, d = (int)n.X.shape[3];
    for (int first = 0; first < d; first += n.group) {
        float squares = 0.0f, product = 0.0f;
        for (int c = first + lane; c < first + n.group; c += 32) {
            const float value = (float)x[c];
            squares = fmaf(value, value, squares);
            if (dy)
                product = fmaf(w[c] * dy[c], value, product);
        }
        squares = sum_of_warp(squares);
        product = dy ? sum_of_warp(product) : 0.0f;
        /* squares that overflow: NaN, since 1 / inf would make zeros that look like a result */
        const float r = squares < INFINITY ? 1.0f / sqrtf(squares / (float)n.group + n.eps) : NAN;
        if (lane == 0) {
            stats_smem[first / n.group].r = r;
            stats_smem[first / n.group].pull = r * product / (float)n.group * (r * r);
        }
    }
    __syncwarp();
}

/* One warp: one row. */
template <typename T>
static __global__ void __launch_bounds__(WARPS * 32)
    normalise_kernel(const __grid_constant__ Norm n, const __grid_constant__ Tensor Xn)
{
    __shared__ GroupStats stats_smem[WARPS][MOST_D];
    const int64_t N = n.X.shape[1], heads = n.X.shape[2], d = n.X.shape[3];
    const int64_t row = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    const int64_t b = row / (N * heads), token = row / heads % N, h = row % heads;
    GroupStats *stats = stats_smem[threadIdx.x / 32];
    if (b >= n.X.shape[0])
        return;
    const T *x = (const T *)n.X.data + tensor_offset(&n.X, b, token, h);
    T *xn = (T *)Xn.data + tensor_offset(&Xn, b, token, h);
    const float *w = n.w + h * d;
    find_stats<T>(stats, n, x, w, NULL);
    for (int c = threadIdx.x % 32; c < d; c += 32)
        xn[c] = T(w[c] * ((float)x[c] * stats[c / n.group].r));
}

/* One block: TOKENS tokens of one head; of dw their share, parts [blockIdx.x][heads*d]. */
template <typename T>
static __global__ void __launch_bounds__(WARPS * 32)
    normalise_backward_kernel(const __grid_constant__ Norm n, const float *dXn,
                              const __grid_constant__ Tensor dX, float *parts)
{
    __shared__ GroupStats stats_smem[WARPS][MOST_D];
    __shared__ float dw_smem[WARPS][MOST_D];
    const int64_t N = n.X.shape[1], heads = n.X.shape[2], all = n.X.shape[0] * N, h = blockIdx.y;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = (int)n.X.shape[3];
    const float *w = n.w + h * d;
    const int64_t end = min((int64_t)(blockIdx.x + 1) * TOKENS, all);
    float dw[SLOTS] = {};
    for (int64_t t = blockIdx.x * (int64_t)TOKENS + warp; t < end; t += WARPS) {
        const int64_t b = t / N, token = t % N;
        const T *x = (const T *)n.X.data + tensor_offset(&n.X, b, token, h);
        T *dx = (T *)dX.data + tensor_offset(&dX, b, token, h);
        const float *dy = dXn + (t * heads + h) * d;
        __syncwarp(); /* the last row's statistics have been read */
        find_stats<T>(stats_smem[warp], n, x, w, dy);
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            const int c = lane + 32 * slot;
            if (c >= d)
                break;
            const GroupStats stats = stats_smem[warp][c / n.group];
            const float value = (float)x[c];
            dx[c] = T(stats.r * w[c] * dy[c] - value * stats.pull);
            dw[slot] = fmaf(dy[c], value * stats.r, dw[slot]);
        }
    }
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++)
        dw_smem[warp][lane + 32 * slot] = dw[slot];
    __syncthreads();
    for (int c = threadIdx.x; c < d; c += WARPS * 32) {
        float sum = 0.0f;
        for (int part = 0; part < WARPS; part++)
            sum += dw_smem[part][c];
        parts[(blockIdx.x * heads + h) * d + c] = sum;
    }
}

/* dw [weights] = sum over `count` parts [count][weights], from the first to the last. */
static __global__ void __launch_bounds__(256)
    add_parts_kernel(const float *parts, int64_t count, int64_t weights, float *dw)
{
    const int64_t c = blockIdx.x * (int64_t)256 + threadIdx.x;
    if (c >= weights)
        return;
    float sum = 0.0f;
    for (int64_t part = 0; part < count; part++)
        sum += parts[part * weights + c];
    dw[c] = sum;
}

template <typename T>
static void launch_normalise(const Norm &n, const Tensor &Xn, unsigned blocks, cudaStream_t stream)
{
    normalise_kernel<T><<<blocks, WARPS * 32, 0, stream>>>(n, Xn);
}

AttnStatus window_normalise_cuda(const Tensor *X, const float *w, int64_t group, float eps,
                                 void *stream, const Tensor *Xn)
{
    const Norm n = {*X, w, (int)group, eps};
    const int64_t rows = X->shape[0] * X->shape[1] * X->shape[2];
    const unsigned blocks = (unsigned)((rows + WARPS - 1) / WARPS);
    if (X->shape[3] > MOST_D)
        return ATTN_SKIP;
    if (X->dtype == ATTN_F32)
        launch_normalise<float>(n, *Xn, blocks, (cudaStream_t)stream);
    else if (X->dtype == ATTN_F16)
        launch_normalise<__half>(n, *Xn, blocks, (cudaStream_t)stream);
    else
        launch_normalise<__nv_bfloat16>(n, *Xn, blocks, (cudaStream_t)stream);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

template <typename T>
static void launch_backward(const Norm &n, const float *dXn, const Tensor &dX, float *parts,
                            unsigned chunks, cudaStream_t stream)
{
    const dim3 grid(chunks, (unsigned)n.X.shape[2]);
    normalise_backward_kernel<T><<<grid, WARPS * 32, 0, stream>>>(n, dXn, dX, parts);
}

AttnStatus window_normalise_backward_cuda(const Tensor *X, const float *w, int64_t group, float eps,
                                          const float *dXn, void *stream, const Tensor *dX,
                                          float *dw)
{
    const Norm n = {*X, w, (int)group, eps};
    const cudaStream_t queue = (cudaStream_t)stream;
    const int64_t weights = X->shape[2] * X->shape[3];
    const int64_t chunks = (X->shape[0] * X->shape[1] + TOKENS - 1) / TOKENS;
    if (X->shape[3] > MOST_D || X->shape[2] > 65535)
        return ATTN_SKIP;
    float *parts = (float *)workspace_alloc_device((size_t)(chunks * weights) * sizeof *parts);
    if (!parts)
        return ATTN_NO_MEMORY;
    if (X->dtype == ATTN_F32)
        launch_backward<float>(n, dXn, *dX, parts, (unsigned)chunks, queue);
    else if (X->dtype == ATTN_F16)
        launch_backward<__half>(n, dXn, *dX, parts, (unsigned)chunks, queue);
    else
        launch_backward<__nv_bfloat16>(n, dXn, *dX, parts, (unsigned)chunks, queue);
    if (dw)
        add_parts_kernel<<<(unsigned)((weights + 255) / 256), 256, 0, queue>>>(parts, chunks,
                                                                               weights, dw);
    workspace_free_device(parts); /* kept until the kernels are done */
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}
