/* SPDX-License-Identifier: MIT
 *
 * cuda_check.h: no CUDA call and no launch goes unchecked.
 *
 * Interface:
 * - CUDA_TRY(call): inside a function that returns AttnStatus; on error prints file, line, the call
 *   and CUDA's own words to stderr and returns ATTN_CUDA_ERROR.
 * - CUDA_TRY_LAUNCH(): the same after a <<<...>>>, which itself returns nothing.
 */
#ifndef ATTN_CUDA_CHECK_H
#define ATTN_CUDA_CHECK_H

#include <cuda_runtime_api.h>
#include <stdio.h>

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

#endif
