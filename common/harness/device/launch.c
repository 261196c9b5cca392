/* SPDX-License-Identifier: MIT
 *
 * launch.c: what is asked before a kernel is launched.
 *
 * Interface:
 * - device_set_smem_limit, device_smem_limit, device_smem_refuses, device_smem_refused,
 *   device_smem_explain (device.h).
 * - cuda_reserve_smem, cuda_capability (cuda_check.h), and for rungs reserve_smem, note_failure and
 *   count_multiprocessors (problem.cuh), in a build with CUDA.
 */
#include "attn_config.h"
#include "harness/device/device.h"

#include <stdio.h>

static int64_t smem_limit, smem_refused; /* bytes, 0 = none */

void device_set_smem_limit(int64_t bytes)
{
    smem_limit = bytes;
    smem_refused = 0;
}

int64_t device_smem_limit(void)
{
    return smem_limit;
}

int device_smem_refuses(int64_t bytes)
{
    if (smem_limit == 0 || bytes <= smem_limit)
        return 0;
    smem_refused = bytes;
    return 1;
}

int64_t device_smem_refused(void)
{
    return smem_refused;
}

int device_smem_explain(char *text, size_t size)
{
    if (smem_refused > 0 && smem_limit > 0)
        snprintf(text, size, "it needs %lld bytes of shared memory, --smem-limit is %lld",
                 (long long)smem_refused, (long long)smem_limit);
    else if (smem_refused > 0)
        snprintf(text, size, "it needs %lld bytes of shared memory, more than this GPU has",
                 (long long)smem_refused);
    return smem_refused > 0;
}

#ifdef HAVE_CUDA
#include "harness/device/cuda_check.h"

AttnStatus cuda_reserve_smem(const void *kernel, int bytes)
{
    cudaError_t error;
    if (smem_limit > 0) {
        struct cudaFuncAttributes about;
        CUDA_TRY(cudaFuncGetAttributes(&about, kernel));
        if (device_smem_refuses((int64_t)about.sharedSizeBytes + bytes))
            return ATTN_SKIP;
    }
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaErrorInvalidValue) { /* more than this GPU has */
        (void)cudaGetLastError();
        smem_refused = bytes;
        return ATTN_SKIP;
    }
    CUDA_TRY(error);
    return ATTN_OK;
}

/* problem.cuh is C++, so these are declared twice. */
int reserve_smem(const void *kernel, int bytes);
void note_failure(void);
int count_multiprocessors(void);

int reserve_smem(const void *kernel, int bytes)
{
    return cuda_reserve_smem(kernel, bytes) == ATTN_OK;
}

void note_failure(void)
{
    device_note_failure();
}

int count_multiprocessors(void)
{
    int device = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        note_failure();
    return count;
}

int cuda_capability(void)
{
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return 0;
    return 10 * major + minor;
}
#endif
