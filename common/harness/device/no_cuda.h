/* SPDX-License-Identifier: MIT
 *
 * no_cuda.h: what the harness calls of CUDA's runtime, for a build without it: no call succeeds.
 *
 * Interface: CUDA's names.
 */
#ifndef NO_CUDA_H
#define NO_CUDA_H

typedef enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation, cudaErrorNoDevice } cudaError_t;
typedef struct NoEvent *cudaEvent_t;
enum { cudaDevAttrClockRate, cudaDevAttrMemoryClockRate };
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
struct cudaDeviceProp {
    char name[1];
    int major, minor, l2CacheSize;
};

static inline cudaError_t no_cuda(const void *argument, ...)
{
    (void)argument;
    return cudaErrorNoDevice;
}

#define cudaDeviceGetAttribute    no_cuda
#define cudaDeviceSynchronize()   no_cuda(0)
#define cudaEventCreate           no_cuda
#define cudaEventDestroy          no_cuda
#define cudaEventElapsedTime      no_cuda
#define cudaEventRecord           no_cuda
#define cudaEventSynchronize      no_cuda
#define cudaFree                  no_cuda
#define cudaGetDevice             no_cuda
#define cudaGetDeviceCount        no_cuda
#define cudaGetDeviceProperties   no_cuda
#define cudaGetErrorString(error) "no CUDA in this build"
#define cudaGetLastError()        no_cuda(0)
#define cudaMalloc                no_cuda
#define cudaMemcpy                no_cuda
#define cudaMemcpy2D              no_cuda
#define cudaMemset                no_cuda
#define cudaMemsetAsync           no_cuda
#define cudaSetDevice(device)     no_cuda(0)

#endif
