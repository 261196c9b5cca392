/* SPDX-License-Identifier: MIT
 *
 * cuda_check.h: what is checked around a launch. No CUDA call and no launch goes unchecked.
 *
 * Interface:
 * - CUDA_TRY(call): inside a function that returns AttnStatus; on error prints file, line, the call
 *   and CUDA's own words to stderr and returns ATTN_CUDA_ERROR.
 * - CUDA_TRY_LAUNCH(): the same after a <<<...>>>, which itself returns nothing.
 * - cuda_reserve_smem, cuda_capability: may this kernel run on this GPU?
 */
#ifndef ATTN_CUDA_CHECK_H
#define ATTN_CUDA_CHECK_H

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t cuda_try_error = (call);                                                       \
        if (cuda_try_error != cudaSuccess) {                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(cuda_try_error));                                           \
            return ATTN_CUDA_ERROR;                                                                \
        }                                                                                          \
    } while (0)

/* A launch error (bad grid, too much shared memory) shows at once in cudaGetLastError; an error
 * inside the kernel only at the next synchronising call, which the harness makes and checks. */
#define CUDA_TRY_LAUNCH() CUDA_TRY(cudaGetLastError())

/* Allows a kernel `bytes` of dynamic shared memory: more than 48 KiB must be asked for. ATTN_SKIP:
 * --smem-limit, or what this GPU has, is less than that and the kernel's static part. */
AttnStatus cuda_reserve_smem(const void *kernel, int bytes);
/* Of this GPU, as 80 for sm_80; 0: there is none. Tensor cores take 16 bits from 80 on. */
int cuda_capability(void);

#ifdef __cplusplus
}
#endif

#endif
