/* SPDX-License-Identifier: MIT
 *
 * fill.cu: the CUDA twin of fill_tensor. One thread makes one element at a time from its index
 * alone, so no state is shared and the launch shape does not matter for the values.
 *
 * Bits equal those of the CPU: fill_value is integer arithmetic and one exact product, and the
 * conversions to 16 bits round to nearest even on both sides.
 *
 * Interface: fill.h, fill_tensor_device.
 */
#include "harness/io/fill.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "harness/device/cuda_check.h"

__global__ void fill_kernel(Tensor t, int which, uint64_t seed, FillDist dist, int64_t count)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; index < count;
         index += step) {
        /* index = ((b*N + n)*H + h)*d + x, taken apart from the right */
        const int64_t x = index % t.shape[3], bnh = index / t.shape[3];
        const int64_t h = bnh % t.shape[2], bn = bnh / t.shape[2];
        const int64_t n = bn % t.shape[1], b = bn / t.shape[1];
        const int64_t element = tensor_offset(&t, b, n, h) + x;
        const float value = fill_value(seed, which, (uint64_t)index, dist);
        if (t.dtype == ATTN_F16)
            ((__half *)t.data)[element] = __float2half_rn(value);
        else if (t.dtype == ATTN_BF16)
            ((__nv_bfloat16 *)t.data)[element] = __float2bfloat16_rn(value);
        else
            ((float *)t.data)[element] = value;
    }
}

extern "C" AttnStatus fill_tensor_device(const Tensor *t, FillTensor which, uint64_t seed,
                                         FillDist dist, void *stream)
{
    const int64_t count = t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    const int64_t threads = 256, wanted = (count + threads - 1) / threads;
    const unsigned blocks = (unsigned)(wanted < 65535 ? wanted : 65535);
    if (count == 0) /* an empty grid is a launch error */
        return ATTN_OK;
    fill_kernel<<<blocks, (unsigned)threads, 0, (cudaStream_t)stream>>>(*t, (int)which, seed, dist,
                                                                        count);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}
