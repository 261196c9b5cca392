/* SPDX-License-Identifier: MIT
 *
 * cuda_runtime_api.h: the part of CUDA's runtime that stage 06's backend of a GPU uses, for a GPU
 * that is pretended (pretend_gpu.h). Found in front of the real header, or where there is none.
 *
 * The functions have names of their own behind the scenes, so that a program that is linked with
 * the real runtime too, for the rest of the suite, keeps the two apart.
 *
 * Interface: CUDA's names.
 */
#ifndef PRETEND_CUDA_RUNTIME_API_H
#define PRETEND_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNotReady = 600,
    cudaErrorUnknown = 999
} cudaError_t;

typedef enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
} cudaMemcpyKind;

enum { cudaStreamNonBlocking = 1 };

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

typedef struct cudaIpcMemHandle_t {
    char reserved[64];
} cudaIpcMemHandle_t;

#define cudaDeviceCanAccessPeer          pretend_can_access_peer
#define cudaDeviceEnablePeerAccess       pretend_enable_peer_access
#define cudaDeviceGetStreamPriorityRange pretend_priority_range
#define cudaEventCreate                  pretend_event_create
#define cudaEventDestroy                 pretend_event_destroy
#define cudaEventElapsedTime             pretend_event_elapsed
#define cudaEventQuery                   pretend_event_query
#define cudaEventRecord                  pretend_event_record
#define cudaEventSynchronize             pretend_event_synchronize
#define cudaFree                         pretend_free
#define cudaGetDeviceCount               pretend_device_count
#define cudaGetErrorString               pretend_error_string
#define cudaGetLastError                 pretend_last_error
#define cudaMalloc                       pretend_malloc
#define cudaMemcpy2DAsync                pretend_copy_2d
#define cudaMemcpyAsync                  pretend_copy
#define cudaMemsetAsync                  pretend_memset
#define cudaSetDevice                    pretend_set_device
#define cudaStreamCreateWithPriority     pretend_stream_create
#define cudaStreamDestroy                pretend_stream_destroy
#define cudaStreamQuery                  pretend_stream_query
#define cudaStreamWaitEvent              pretend_stream_wait

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaFree(void *p_dev);
cudaError_t cudaGetDeviceCount(int *count);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaMalloc(void **p_dev, size_t bytes);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *p_dev, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

#ifdef __cplusplus
}
#endif
#endif
