/* SPDX-License-Identifier: MIT
 *
 * cuda_runtime.h: as much of the CUDA runtime as a submission of assignment 6 needs, on the CPU. A
 * block is a group of threads that meet in __syncthreads; blocks come one after the other. Launches
 * are rewritten by test_cuda.py: kernel<<<grid, threads, 0, stream>>>(...) becomes pretend_launch.
 * Device memory begins as NaN. It shows arithmetic and indexes, no speed, and few races.
 *
 * Interface: what cuda_runtime.h has under these names; pretend_launch.
 */
#ifndef PRETEND_CUDA_RUNTIME_H
#define PRETEND_CUDA_RUNTIME_H

#include <pthread.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#define __global__
#define __shared__ static
#define __launch_bounds__(threads)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

typedef int cudaStream_t;
typedef int cudaError_t;
enum { cudaSuccess, cudaErrorMemoryAllocation };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

inline thread_local dim3 blockIdx, threadIdx, blockDim, gridDim;
inline pthread_barrier_t pretend_block;

inline void __syncthreads()
{
    pthread_barrier_wait(&pretend_block);
}

template <typename T> cudaError_t cudaMalloc(T **p, size_t bytes)
{
    *p = (T *)malloc(bytes);
    if (*p)
        memset((void *)*p, 0xFF, bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

inline cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}

inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

inline void pretend_launch(dim3 grid, dim3 block, const std::function<void()> &work)
{
    for (unsigned b = 0; b < grid.x * grid.y; b++) {
        std::vector<std::thread> threads;
        pthread_barrier_init(&pretend_block, NULL, block.x);
        for (unsigned t = 0; t < block.x; t++)
            threads.emplace_back([&, b, t] {
                blockIdx = dim3(b % grid.x, b / grid.x);
                threadIdx = dim3(t);
                blockDim = block;
                gridDim = grid;
                work();
            });
        for (std::thread &thread : threads)
            thread.join();
        pthread_barrier_destroy(&pretend_block);
    }
}
#endif
