/* SPDX-License-Identifier: MIT
 *
 * copy_on_device: the rate that no kernel which reads and writes everything once can beat by much.
 *
 * Interface:
 * - softmax_copy_on_device: y = x by the CUDA runtime.
 */
#include <cuda_runtime.h>

#include "cuda/cuda_check.h"
#include "tiled_softmax.h"

AttnStatus softmax_copy_on_device(const SoftmaxArgs *args)
{
    CUDA_TRY(cudaMemcpyAsync(args->y, args->x, (size_t)(args->rows * args->cols) * sizeof(float),
                             cudaMemcpyDeviceToDevice, (cudaStream_t)args->stream));
    return ATTN_OK;
}
