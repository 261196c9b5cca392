/* SPDX-License-Identifier: MIT
 *
 * plain.cu: what surrounds a variant on the GPU, so that a variant is plain attention.
 *
 *     forward:    Qn, Kn = normalised copies of Q and K, in their dtype
 *                 scale / temperature instead of scale (a cap wins over a temperature)
 *                 the variant
 *     backward:   the same, and the variant adds dQn, dKn and dV to sums in float32
 *                 dQ, dwq from dQn; dK, dwk from dKn (normalise.cu); dV rounded
 *
 * The copies are rounded to the dtype because the offline module says so: normalisation is a layer
 * of its own in front of attention. Between attention and the layer's backward pass nothing is
 * rounded. Rounding dQn to 16 bits first would cost accuracy and save nothing: it is read once.
 *
 * Interface:
 * - window_plain_run_cuda, window_plain_backward_cuda (window_cuda.h).
 * - window_make_plain_cuda, window_contiguous, window_copy_cuda, window_clear_empty_cuda,
 *   window_mma_add_cuda (window_cuda.h).
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "alloc.h"
#include "attention/backward/backward_library.h"
#include "attention/window/window_library.h"
#include "attn_options.h"
#include "harness/device/cuda_check.h"
#include "window_cuda.h"

/* --- copies ------------------------------------------------------------------------------------*/

/* One warp: one row of channels. */
template <typename TO, typename FROM>
static __global__ void __launch_bounds__(256)
    copy_kernel(const __grid_constant__ Tensor to, const __grid_constant__ Tensor from)
{
    const int64_t N = to.shape[1], heads = to.shape[2];
    const int64_t row = blockIdx.x * (int64_t)8 + threadIdx.x / 32;
    const int64_t b = row / (N * heads), n = row / heads % N, h = row % heads;
    if (b >= to.shape[0])
        return;
    TO *to_row = (TO *)to.data + tensor_offset(&to, b, n, h);
    const FROM *from_row = (const FROM *)from.data + tensor_offset(&from, b, n, h);
    for (int x = threadIdx.x % 32; x < to.shape[3]; x += 32)
        to_row[x] = TO((float)from_row[x]);
}

template <typename TO>
static void launch_copy(const Tensor &to, const Tensor &from, cudaStream_t stream)
{
    const int64_t rows = to.shape[0] * to.shape[1] * to.shape[2];
    const unsigned blocks = (unsigned)((rows + 7) / 8);
    if (from.dtype == ATTN_F32)
        copy_kernel<TO, float><<<blocks, 256, 0, stream>>>(to, from);
    else if (from.dtype == ATTN_F16)
        copy_kernel<TO, __half><<<blocks, 256, 0, stream>>>(to, from);
    else
        copy_kernel<TO, __nv_bfloat16><<<blocks, 256, 0, stream>>>(to, from);
}

AttnStatus window_copy_cuda(const Tensor *to, const Tensor *from, void *stream)
{
    if (to->dtype == ATTN_F32)
        launch_copy<float>(*to, *from, (cudaStream_t)stream);
    else if (to->dtype == ATTN_F16)
        launch_copy<__half>(*to, *from, (cudaStream_t)stream);
    else
        launch_copy<__nv_bfloat16>(*to, *from, (cudaStream_t)stream);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

/* One warp: one row of channels. lse [B][heads][N] */
static __global__ void __launch_bounds__(256)
    clear_empty_kernel(const __grid_constant__ Tensor t, const float *lse)
{
    const int64_t N = t.shape[1], heads = t.shape[2];
    const int64_t row = blockIdx.x * (int64_t)8 + threadIdx.x / 32;
    if (row >= t.shape[0] * heads * N || lse[row] != -INFINITY)
        return;
    float *t_row = (float *)t.data + tensor_offset(&t, row / N / heads, row % N, row / N % heads);
    for (int x = threadIdx.x % 32; x < t.shape[3]; x += 32)
        t_row[x] = 0.0f;
}

AttnStatus window_clear_empty_cuda(const float *lse_dev, const Tensor *t, void *stream)
{
    const int64_t rows = t->shape[0] * t->shape[1] * t->shape[2];
    const unsigned blocks = (unsigned)((rows + 7) / 8);
    clear_empty_kernel<<<blocks, 256, 0, (cudaStream_t)stream>>>(*t, lse_dev);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

/* --- around a variant --------------------------------------------------------------------------*/

static int asks_for_norm(const AttnArgs *args)
{
    return args->options && args->options->norm_group > 0;
}

Tensor window_contiguous(const Tensor *like, AttnDtype dtype, void *data)
{
    Tensor t = *like;
    t.data = data;
    t.dtype = dtype;
    t.stride[3] = 1;
    t.stride[2] = t.shape[3];
    t.stride[1] = t.shape[2] * t.stride[2];
    t.stride[0] = t.shape[1] * t.stride[1];
    return t;
}

/* Bytes of a contiguous copy, a multiple of 256 so that the next one starts on 16 bytes too. */
static size_t copy_bytes(const Tensor *t)
{
    const int64_t count = t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    return ((size_t)count * (t->dtype == ATTN_F32 ? 4 : 2) + 255) & ~(size_t)255;
}

AttnStatus window_make_plain_cuda(const AttnArgs *args, AttnArgs *plain, AttnOptions *options,
                                  void **memory)
{
    *memory = NULL;
    *plain = *args;
    if (!args->options)
        return ATTN_OK;
    *options = *args->options;
    options->temperature = 1.0f;
    options->norm_group = 0;
    plain->options = options;
    if (!(args->softcap > 0.0f))
        plain->scale = args->scale / args->options->temperature;
    if (!asks_for_norm(args))
        return ATTN_OK;
    const AttnOptions *o = args->options; /* the caller's, with the norm */
    *memory = workspace_alloc_device(copy_bytes(&args->Q) + copy_bytes(&args->K));
    if (!*memory)
        return ATTN_NO_MEMORY;
    plain->Q = window_contiguous(&args->Q, args->Q.dtype, *memory);
    plain->K = window_contiguous(&args->K, args->K.dtype, (char *)*memory + copy_bytes(&args->Q));
    AttnStatus status =
        window_normalise_cuda(&args->Q, o->wq, o->norm_group, o->norm_eps, args->stream, &plain->Q);
    if (status == ATTN_OK)
        status = window_normalise_cuda(&args->K, o->wk, o->norm_group, o->norm_eps, args->stream,
                                       &plain->K);
    return status;
}

AttnStatus window_plain_run_cuda(const AttnArgs *args, AttnFn run)
{
    AttnArgs plain;
    AttnOptions options;
    void *memory;
    AttnStatus status = window_make_plain_cuda(args, &plain, &options, &memory);
    if (status == ATTN_OK)
        status = run(&plain);
    workspace_free_device(memory); /* kept until the kernels are done */
    return status;
}

AttnStatus window_mma_add_cuda(const AttnArgs *plain, FlashSums sums)
{
    const AttnShape *n = &plain->shape;
    const size_t bytes = (size_t)(n->B * n->H * n->Nq) * sizeof(float);
    float *delta_dev = (float *)workspace_alloc_device(bytes);
    if (!delta_dev)
        return ATTN_NO_MEMORY;
    AttnStatus status = flash_backward_delta_cuda(plain, delta_dev);
    if (status == ATTN_OK)
        status = flash_backward_block_cuda(plain, delta_dev, sums);
    workspace_free_device(delta_dev); /* kept until the kernels are done */
    return status;
}

/* From dQn, dKn and dV in `sums` to the tensors and dwq, dwk of args. */
static AttnStatus finish_norm(const AttnArgs *args, FlashSums sums)
{
    const AttnOptions *o = args->options;
    const Tensor dV_sums = window_contiguous(&args->dV, ATTN_F32, sums.dV);
    AttnStatus status = window_normalise_backward_cuda(&args->Q, o->wq, o->norm_group, o->norm_eps,
                                                       sums.dQ, args->stream, &args->dQ, o->dwq);
    if (status == ATTN_OK)
        status = window_normalise_backward_cuda(&args->K, o->wk, o->norm_group, o->norm_eps,
                                                sums.dK, args->stream, &args->dK, o->dwk);
    return status == ATTN_OK ? window_copy_cuda(&args->dV, &dV_sums, args->stream) : status;
}

AttnStatus window_plain_backward_cuda(const AttnArgs *args, WindowSumsFn add_gradients)
{
    const AttnShape *n = &args->shape;
    const int64_t Q_floats = n->B * n->Nq * n->H * n->d, K_floats = n->B * n->Nk * n->Hkv * n->d;
    AttnArgs plain;
    AttnOptions options;
    void *memory;
    float *sums_dev =
        (float *)workspace_alloc_device((size_t)(Q_floats + 2 * K_floats) * sizeof *sums_dev);
    if (!sums_dev)
        return ATTN_NO_MEMORY;
    const FlashSums sums = {sums_dev, sums_dev + Q_floats, sums_dev + Q_floats + K_floats};
    AttnStatus status = window_make_plain_cuda(args, &plain, &options, &memory);
    if (status == ATTN_OK)
        status = flash_sums_start_cuda(n, sums, args->stream);
    if (status == ATTN_OK)
        status = add_gradients(&plain, sums);
    if (status == ATTN_OK)
        status = asks_for_norm(args) ? finish_norm(args, sums) : flash_sums_store_cuda(args, sums);
    workspace_free_device(memory); /* kept until the kernels are done */
    workspace_free_device(sums_dev);
    return status;
}
