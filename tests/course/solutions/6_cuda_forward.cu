/* SPDX-License-Identifier: MIT
 *
 * 6_cuda_forward.cu: a solution of assignment 6, for the tests of the course kit. It is part of no
 * handout.
 *
 * One thread has one query. A block's threads fetch a tile of 32 keys together; all of them read
 * the same key at the same time, so that no two lanes meet in a bank.
 *
 * Interface:
 * - flash_device_variant, flash_simple_variant: docs/course/6_cuda_forward/stub.cu.
 */
#include <cuda_runtime.h>

#include "flash_simple.h"

/* All arrays [heads][N][d], lse [heads][N]. __launch_bounds__ tells the compiler how many threads
 * a block has, so that it knows how many registers each may use. */
__global__ void __launch_bounds__(128)
    forward_kernel(const float *Q, const float *K, const float *V, float *O, float *lse, int N,
                   int d, int causal)
{
    enum { BR = 128, BC = 32, MOST = 128 };
    __shared__ float K_j[BC][MOST], V_j[BC][MOST];
    const size_t head = (size_t)blockIdx.y * (size_t)N;
    const int i = (int)(blockIdx.x * BR + threadIdx.x);
    float q[MOST], O_i[MOST], m_i = -INFINITY, l_i = 0.0f;
    for (int x = 0; x < d; x++) {
        q[x] = i < N ? Q[(head + i) * d + x] : 0.0f;
        O_i[x] = 0.0f;
    }
    for (int j = 0; j < N; j += BC) {
        for (int e = (int)threadIdx.x; e < BC * d; e += BR) {
            const int key = j + e / d;
            K_j[e / d][e % d] = key < N ? K[(head + key) * d + e % d] : 0.0f;
            V_j[e / d][e % d] = key < N ? V[(head + key) * d + e % d] : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < BC && j + c < N && (!causal || j + c <= i); c++) {
            float s = 0.0f, p;
            for (int x = 0; x < d; x++)
                s += q[x] * K_j[c][x];
            s *= 1.0f / sqrtf((float)d);
            if (s > m_i) {
                const float alpha = expf(m_i - s);
                l_i *= alpha;
                for (int x = 0; x < d; x++)
                    O_i[x] *= alpha;
                m_i = s;
            }
            p = expf(s - m_i);
            l_i += p;
            for (int x = 0; x < d; x++)
                O_i[x] += p * V_j[c][x];
        }
        __syncthreads();
    }
    for (int x = 0; i < N && x < d; x++)
        O[(head + i) * d + x] = O_i[x] / l_i;
    if (i < N)
        lse[head + i] = m_i + logf(l_i);
}

/* Launches the kernel on a stream and does not wait. 0: done. */
extern "C" int flash_device_variant(const float *Q, const float *K, const float *V, float *O,
                                    float *lse, int heads, int N, int d, int causal,
                                    cudaStream_t stream)
{
    dim3 grid((unsigned)(N + 127) / 128, (unsigned)heads);
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
