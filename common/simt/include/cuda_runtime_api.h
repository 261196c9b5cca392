/* SPDX-License-Identifier: MIT
 *
 * cuda_runtime_api.h: the part of the CUDA runtime that the suite calls, on a CPU (host.cpp).
 *
 * Interface: CUDA's own names; simtMalloc and simtMallocManaged behind two templates, simtPoison.
 */
#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801
} cudaError_t;

typedef struct simtStream *cudaStream_t;
typedef struct simtEvent *cudaEvent_t;
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaDeviceAttr {
    cudaDevAttrClockRate,
    cudaDevAttrMemoryClockRate,
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor,
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
    cudaDevAttrL2CacheSize
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize,
    cudaFuncAttributePreferredSharedMemoryCarveout
};
enum {
    cudaSharedmemCarveoutMaxShared = 100,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventDisableTiming = 2,
    cudaEventInterprocess = 4,
    cudaIpcMemLazyEnablePeerAccess = 1,
    cudaHostAllocMapped = 2,
    cudaEnableDefault = 0,
    cudaMemAttachGlobal = 1
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged
};
typedef enum { cudaDriverEntryPointSuccess = 0 } cudaDriverEntryPointQueryResult;
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    int numRegs, maxThreadsPerBlock;
    size_t localSizeBytes;
};
struct cudaDeviceProp {
    char name[256];
    int major, minor, l2CacheSize, multiProcessorCount;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
};

cudaError_t cudaGetDeviceCount(int *), cudaGetLastError(void), cudaPeekAtLastError(void),
    cudaSetDevice(int), cudaGetDevice(int *), cudaGetDeviceProperties(struct cudaDeviceProp *, int),
    cudaDeviceGetAttribute(int *, enum cudaDeviceAttr, int), cudaFree(void *), cudaFreeHost(void *),
    cudaMemcpy(void *, const void *, size_t, enum cudaMemcpyKind), cudaMemset(void *, int, size_t),
    cudaMemcpyAsync(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t),
    cudaMemsetAsync(void *, int, size_t, cudaStream_t), cudaDeviceSynchronize(void),
    cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, enum cudaMemcpyKind),
    cudaMemcpy2DAsync(void *, size_t, const void *, size_t, size_t, size_t, enum cudaMemcpyKind,
                      cudaStream_t),
    cudaStreamCreate(cudaStream_t *), cudaStreamCreateWithFlags(cudaStream_t *, unsigned),
    cudaStreamCreateWithPriority(cudaStream_t *, unsigned, int), cudaStreamDestroy(cudaStream_t),
    cudaStreamSynchronize(cudaStream_t), cudaStreamQuery(cudaStream_t),
    cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned), cudaEventCreate(cudaEvent_t *),
    cudaEventCreateWithFlags(cudaEvent_t *, unsigned), cudaEventDestroy(cudaEvent_t),
    cudaEventRecord(cudaEvent_t, cudaStream_t), cudaEventSynchronize(cudaEvent_t),
    cudaEventQuery(cudaEvent_t), cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t),
    cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int),
    cudaFuncGetAttributes(struct cudaFuncAttributes *, const void *),
    cudaPointerGetAttributes(struct cudaPointerAttributes *, const void *),
    cudaHostAlloc(void **, size_t, unsigned), cudaMemGetInfo(size_t *, size_t *),
    cudaDeviceReset(void),
    cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long,
                                     cudaDriverEntryPointQueryResult *);
const char *cudaGetErrorString(cudaError_t);
const char *cudaGetErrorName(cudaError_t);
cudaError_t simtMalloc(void **, size_t);
cudaError_t simtMallocManaged(void **, size_t);

/* For the harness: bytes that nobody may read before they are written, 0xFF each. */
cudaError_t simtPoison(void *, size_t);

#ifdef __cplusplus
}
template <class T> static inline cudaError_t cudaMalloc(T **p, size_t n)
{
    return simtMalloc((void **)p, n);
}
template <class T>
static inline cudaError_t cudaMallocManaged(T **p, size_t n, unsigned = cudaMemAttachGlobal)
{
    return simtMallocManaged((void **)p, n);
}
template <class T> static inline cudaError_t cudaMallocAsync(T **p, size_t n, cudaStream_t)
{
    return simtMalloc((void **)p, n);
}
static inline cudaError_t cudaFreeAsync(void *p, cudaStream_t)
{
    return cudaFree(p);
}
template <class T> static inline cudaError_t cudaMallocHost(T **p, size_t n)
{
    return cudaHostAlloc((void **)p, n, 0);
}
#else
#define cudaMalloc(p, n) simtMalloc((void **)(p), n)
#endif
