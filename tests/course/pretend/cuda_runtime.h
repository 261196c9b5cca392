/* SPDX-License-Identifier: MIT
 *
 * cuda_runtime.h: as much of the CUDA runtime as a submission of assignment 6 needs, on the CPU.
 * Blocks come one after the other. The threads of a block are contexts of one thread of the CPU:
 * each runs until it waits in __syncthreads or ends, then the next one does. A thread that should
 * have waited therefore always is ahead of its neighbours. Launches are rewritten by test_cuda.py:
 * kernel<<<grid, threads, 0, stream>>>(...) becomes pretend_launch. Device memory begins as NaN. It
 * shows arithmetic, indexes and missing barriers, no speed.
 *
 * Interface: what cuda_runtime.h has under these names; pretend_launch.
 */
#ifndef PRETEND_CUDA_RUNTIME_H
#define PRETEND_CUDA_RUNTIME_H

#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
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

inline dim3 blockIdx, threadIdx, blockDim, gridDim;
inline ucontext_t pretend_launcher, *pretend_thread;
inline const std::function<void()> *pretend_work;
inline bool pretend_ended;

inline void __syncthreads()
{
    swapcontext(pretend_thread, &pretend_launcher);
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

inline void pretend_start()
{
    (*pretend_work)();
    pretend_ended = true;
}

inline void pretend_launch(dim3 grid, dim3 block, const std::function<void()> &work)
{
    const size_t stack = 1 << 16;
    std::vector<char> stacks(block.x * stack);
    pretend_work = &work;
    blockDim = block;
    gridDim = grid;
    for (unsigned b = 0; b < grid.x * grid.y; b++) {
        std::vector<ucontext_t> threads(block.x);
        std::vector<bool> ended(block.x);
        blockIdx = dim3(b % grid.x, b / grid.x);
        for (unsigned t = 0; t < block.x; t++) {
            getcontext(&threads[t]);
            threads[t].uc_stack.ss_sp = &stacks[t * stack];
            threads[t].uc_stack.ss_size = stack;
            threads[t].uc_link = &pretend_launcher;
            makecontext(&threads[t], pretend_start, 0);
        }
        for (unsigned left = block.x, t = 0; left > 0; t = (t + 1) % block.x) {
            if (ended[t])
                continue;
            threadIdx = dim3(t);
            pretend_thread = &threads[t];
            pretend_ended = false;
            swapcontext(&pretend_launcher, &threads[t]);
            ended[t] = pretend_ended;
            left -= pretend_ended;
        }
    }
}
#endif
