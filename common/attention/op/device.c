/* SPDX-License-Identifier: MIT
 *
 * device.c: memory and GPUs for the operator. Compiled without CUDA it says "no such device type".
 *
 * An application may work with several GPUs, and CUDA keeps "the current one" for each thread. Each
 * function here makes its device current and puts back what it found: a library that changes it in
 * passing breaks its caller's next call.
 *
 * Interface: op_host_..., op_default_threads, op_cuda_... (op_internal.h).
 */
#include "attention/forward/flash_library.h"
#include "op_internal.h"

#include <stdio.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn_config.h"

void *op_host_alloc(size_t bytes)
{
    return calloc(1, bytes);
}

void op_host_free(void *p)
{
    free(p);
}

int op_default_threads(void)
{
    int threads = 1;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    return threads < OP_MAX_THREADS ? threads : OP_MAX_THREADS;
}

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>

/* 0, or -1 and a word on stderr. The error is taken off CUDA's hands: it is ours, not something
 * that the application should find in its next cudaGetLastError. */
static int tell(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    fprintf(stderr, "flash_attention: %s: %s\n", what, cudaGetErrorString(error));
    return -1;
}

/* Makes device_id current; *before = what was. */
static int enter(int device_id, int *before)
{
    if (tell(cudaGetDevice(before), "current device") != 0)
        return -1;
    return *before == device_id ? 0 : tell(cudaSetDevice(device_id), "choice of device");
}

static int leave(int device_id, int before)
{
    return before == device_id ? 0 : tell(cudaSetDevice(before), "return to the caller's device");
}

/* A driver that is missing or too old answers with an error: no GPU. */
int op_cuda_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return count;
}

int op_cuda_arch(int device_id)
{
    int major = 0, minor = 0;
    if (tell(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_id),
             "architecture") != 0 ||
        tell(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_id),
             "architecture") != 0)
        return 0;
    return 10 * major + minor;
}

/* Meson passes the oldest architecture that the kernels were compiled for; newer ones translate the
 * PTX that comes along. Kernels for 16 bits use tensor-core instructions of sm_80. */
int op_cuda_compiled_for(int arch, int dtype)
{
    return arch >= OP_OLDEST_ARCH && (arch >= 80 || dtype <= FLASH_ATTENTION_F32);
}

void *op_cuda_upload(int device_id, const void *from, size_t bytes)
{
    void *p_dev = NULL;
    int before;
    if (enter(device_id, &before) != 0)
        return NULL;
    if (tell(cudaMalloc(&p_dev, bytes), "memory for positions") != 0)
        p_dev = NULL;
    else if (tell(cudaMemcpy(p_dev, from, bytes, cudaMemcpyHostToDevice), "upload") != 0) {
        (void)cudaFree(p_dev);
        p_dev = NULL;
    }
    (void)leave(device_id, before);
    return p_dev;
}

int op_cuda_release(int device_id, void *p_dev)
{
    int before, status;
    if (enter(device_id, &before) != 0)
        return -1;
    status = tell(cudaFree(p_dev), "release of positions");
    return leave(device_id, before) == 0 ? status : -1;
}

int op_cuda_owns(int device_id, const void *p_dev)
{
    struct cudaPointerAttributes at;
    if (cudaPointerGetAttributes(&at, p_dev) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (at.type == cudaMemoryTypeDevice && at.device == device_id) ||
           at.type == cudaMemoryTypeManaged ||
           (at.type == cudaMemoryTypeHost && at.devicePointer == p_dev);
}

/* How a kernel splits its work may depend on the GPU, and so its workspace. */
size_t op_cuda_workspace_bytes(int device_id, const AttnShape *shape, AttnDtype dtype)
{
    size_t bytes;
    int before;
    if (enter(device_id, &before) != 0)
        return 0;
    bytes = flash_cuda_workspace_bytes(shape, dtype);
    (void)leave(device_id, before);
    return bytes;
}

/* mask_to [rows][cols]. Stride 0: row 0 is copied, and then again and again all rows that are there
 * already, so that 2^n rows take n copies. */
static int copy_mask(const OpCudaRun *run)
{
    const size_t rows = (size_t)run->args->shape.Nq, cols = (size_t)run->args->shape.Nk;
    cudaStream_t stream = (cudaStream_t)run->args->stream;
    if (run->mask_stride > 0)
        return tell(cudaMemcpy2DAsync(run->mask_to, cols, run->mask_from, (size_t)run->mask_stride,
                                      cols, rows, cudaMemcpyDefault, stream),
                    "mask");
    if (tell(cudaMemcpyAsync(run->mask_to, run->mask_from, cols, cudaMemcpyDefault, stream),
             "mask") != 0)
        return -1;
    for (size_t done = 1, more; done < rows; done += more) {
        more = done < rows - done ? done : rows - done;
        if (tell(cudaMemcpyAsync(run->mask_to + done * cols, run->mask_to, more * cols,
                                 cudaMemcpyDeviceToDevice, stream),
                 "mask") != 0)
            return -1;
    }
    return 0;
}

int op_cuda_run(int device_id, const OpCudaRun *run)
{
    int before, status = 0;
    if (enter(device_id, &before) != 0)
        return -1;
    if (run->mask_to)
        status = copy_mask(run);
    if (status == 0 && flash_cuda_run(run->args, NULL, run->workspace) != ATTN_OK) {
        (void)cudaGetLastError();
        status = -1;
    }
    return leave(device_id, before) == 0 ? status : -1;
}

#else /* no CUDA in this build */

int op_cuda_count(void)
{
    return -1;
}

int op_cuda_arch(int device_id)
{
    (void)device_id;
    return 0;
}

int op_cuda_compiled_for(int arch, int dtype)
{
    (void)arch, (void)dtype;
    return 0;
}

void *op_cuda_upload(int device_id, const void *from, size_t bytes)
{
    (void)device_id, (void)from, (void)bytes;
    return NULL;
}

int op_cuda_release(int device_id, void *p_dev)
{
    (void)device_id, (void)p_dev;
    return -1;
}

int op_cuda_owns(int device_id, const void *p_dev)
{
    (void)device_id, (void)p_dev;
    return 0;
}

size_t op_cuda_workspace_bytes(int device_id, const AttnShape *shape, AttnDtype dtype)
{
    (void)device_id, (void)shape, (void)dtype;
    return 0;
}

int op_cuda_run(int device_id, const OpCudaRun *run)
{
    (void)device_id, (void)run;
    return -1;
}
#endif
