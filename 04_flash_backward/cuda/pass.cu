/* SPDX-License-Identifier: MIT
 *
 * pass.cu: what every rung does before and after its own kernel (plain.cuh).
 *
 * A warp takes a row: its lanes read neighbouring channels, so one load of the warp covers whole
 * sectors of memory.
 *
 * Interface: run_pass, round_dQ (plain.cuh).
 */
#include "alloc.h"
#include "plain.cuh"

#define THREADS 256

namespace rung
{

/* stats [B][H][rows_padded] */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    stats_kernel(const __grid_constant__ AttnArgs a, float2 *stats, int rows_padded)
{
    const int64_t row = blockIdx.x * (int64_t)(THREADS / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32, H = (int)a.shape.H, d = (int)a.shape.d;
    const int i = (int)(row % rows_padded), h = (int)(row / rows_padded % H);
    const int b = (int)(row / rows_padded / H);
    const Plain plain = plain_of(a);
    if (b >= a.shape.B)
        return;
    float2 pair = make_float2(INFINITY, 0.0f); /* P = 2^(s - inf) = 0 */
    if (i >= plain.first_row && i < plain.end_row) {
        const T *O_i = (const T *)a.O.data + tensor_offset(&a.O, b, i, h);
        const T *dO_i = (const T *)a.dO.data + tensor_offset(&a.dO, b, i, h);
        float delta = 0.0f;
        for (int x = lane; x < d; x += 32)
            delta = fmaf((float)dO_i[x], (float)O_i[x], delta);
        for (int distance = 16; distance > 0; distance /= 2)
            delta += __shfl_xor_sync(0xffffffffu, delta, distance);
        pair = make_float2(a.lse[(int64_t)(b * H + h) * a.shape.Nq + i] * LOG2E, delta);
    }
    if (lane == 0)
        stats[row] = pair;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    round_kernel(const __grid_constant__ AttnArgs a, const float *dQ_sum)
{
    const int64_t Nq = a.shape.Nq, H = a.shape.H;
    const int64_t row = blockIdx.x * (int64_t)(THREADS / 32) + threadIdx.x / 32;
    const int d = (int)a.shape.d;
    if (row >= a.shape.B * Nq * H)
        return;
    T *dQ_i = (T *)a.dQ.data + tensor_offset(&a.dQ, row / H / Nq, row / H % Nq, row % H);
    for (int x = threadIdx.x % 32; x < d; x += 32)
        dQ_i[x] = T(a.scale * dQ_sum[row * d + x]);
}

static unsigned blocks_of_rows(int64_t rows)
{
    return (unsigned)((rows + THREADS / 32 - 1) / (THREADS / 32));
}

AttnStatus round_dQ(const AttnArgs *a, const Pass &pass)
{
    const unsigned blocks = blocks_of_rows(a->shape.B * a->shape.Nq * a->shape.H);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    if (a->dQ.dtype == ATTN_F32)
        round_kernel<float><<<blocks, THREADS, 0, stream>>>(*a, pass.dQ_sum);
    else if (a->dQ.dtype == ATTN_F16)
        round_kernel<__half><<<blocks, THREADS, 0, stream>>>(*a, pass.dQ_sum);
    else
        round_kernel<__nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*a, pass.dQ_sum);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

static AttnStatus clear(void *memory_dev, size_t bytes, void *stream)
{
    CUDA_TRY(cudaMemsetAsync(memory_dev, 0, bytes, (cudaStream_t)stream));
    return ATTN_OK;
}

static AttnStatus make_stats(const AttnArgs *a, float2 *stats, int rows_padded)
{
    const unsigned blocks = blocks_of_rows(a->shape.B * a->shape.H * rows_padded);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    if (a->dO.dtype == ATTN_F32)
        stats_kernel<float><<<blocks, THREADS, 0, stream>>>(*a, stats, rows_padded);
    else if (a->dO.dtype == ATTN_F16)
        stats_kernel<__half><<<blocks, THREADS, 0, stream>>>(*a, stats, rows_padded);
    else
        stats_kernel<__nv_bfloat16><<<blocks, THREADS, 0, stream>>>(*a, stats, rows_padded);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus run_pass(const AttnArgs *a, LaunchFn launch, bool sums)
{
    if (sums && flash_backward_deterministic())
        return ATTN_SKIP;
    const int rows_padded = divide_up((int)a->shape.Nq, PAD_ROWS) * PAD_ROWS;
    const size_t rows = (size_t)(a->shape.B * a->shape.H * rows_padded);
    const size_t sum_bytes = sums ? rows * (size_t)a->shape.d * sizeof(float) : 0;
    char *memory_dev = (char *)workspace_alloc_device(sum_bytes + rows * sizeof(float2));
    if (!memory_dev)
        return ATTN_NO_MEMORY;
    float2 *stats = (float2 *)(memory_dev + sum_bytes);
    const Pass pass = {stats, sums ? (float *)memory_dev : NULL};
    AttnStatus status = sums ? clear(memory_dev, sum_bytes, a->stream) : ATTN_OK;
    if (status == ATTN_OK)
        status = make_stats(a, stats, rows_padded);
    if (status == ATTN_OK)
        status = launch(a, pass);
    workspace_free_device(memory_dev); /* kept until the kernels are done */
    return status;
}

} // namespace rung
