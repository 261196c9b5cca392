/* SPDX-License-Identifier: MIT
 *
 * stub.cu: assignment 6, a CUDA forward kernel. Copy it to mine.cu and write the kernel and its
 * launch. The second function, which copies to the GPU and back for the judge, is complete.
 *
 * Interface:
 * - flash_device_variant: heads of attention on arrays in device memory; bench.cu times it.
 * - flash_simple_variant: one head on the host's arrays; the judge calls it.
 */
#include <cuda_runtime.h>

#include "flash_simple.h"

/* All arrays [heads][N][d], lse [heads][N]. __launch_bounds__ tells the compiler how many threads
 * a block has, so that it knows how many registers each may use. */
__global__ void __launch_bounds__(128)
    forward_kernel(const float *Q, const float *K, const float *V, float *O, float *lse, int N,
                   int d, int causal)
{
}

/* Launches the kernel on a stream and does not wait. 0: done. */
extern "C" int flash_device_variant(const float *Q, const float *K, const float *V, float *O,
                                    float *lse, int heads, int N, int d, int causal,
                                    cudaStream_t stream)
{
    dim3 grid(1, (unsigned)heads);
    forward_kernel<<<grid, 128, 0, stream>>>(Q, K, V, O, lse, N, d, causal);
    return cudaGetLastError() != cudaSuccess;
}

extern "C" int flash_simple_variant(const float *Q, const float *K, const float *V, float *O,
                                    float *lse, int N, int d, int causal)
{
    size_t count = (size_t)N * (size_t)d, bytes = count * sizeof(float);
    float *dev = NULL;
    int failed = cudaMalloc(&dev, 4 * bytes + (size_t)N * sizeof(float)) != cudaSuccess;
    if (failed)
        return 1;
    failed |= cudaMemcpy(dev, Q, bytes, cudaMemcpyHostToDevice) != cudaSuccess;
    failed |= cudaMemcpy(dev + count, K, bytes, cudaMemcpyHostToDevice) != cudaSuccess;
    failed |= cudaMemcpy(dev + 2 * count, V, bytes, cudaMemcpyHostToDevice) != cudaSuccess;
    failed |= flash_device_variant(dev, dev + count, dev + 2 * count, dev + 3 * count,
                                   dev + 4 * count, 1, N, d, causal, 0);
    failed |= cudaMemcpy(O, dev + 3 * count, bytes, cudaMemcpyDeviceToHost) != cudaSuccess;
    failed |= cudaMemcpy(lse, dev + 4 * count, (size_t)N * sizeof(float), cudaMemcpyDeviceToHost) !=
              cudaSuccess;
    cudaFree(dev);
    return failed;
}
