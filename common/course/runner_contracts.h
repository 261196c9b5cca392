/* SPDX-License-Identifier: MIT
 *
 * runner_contracts.h: the numbers of a call, as the judge writes them and the runner reads them.
 *
 * Interface:
 * - SmallNumbers: of a small contract. Which place has which meaning follows from the prototype:
 *   pointers and numbers stand in its order.
 * - RingNumbers: of a ring method.
 * - flash_cuda_variant: of a submission in CUDA and the model of a GPU around it (gpu_shell.cpp).
 */
#ifndef ATTN_RUNNER_CONTRACTS_H
#define ATTN_RUNNER_CONTRACTS_H

#include "course/runner.h"

enum { SMALL_POINTERS = 8, SMALL_INTEGERS = 12 };

typedef struct SmallNumbers {
    RunnerPointer pointer[SMALL_POINTERS];
    int32_t integer[SMALL_INTEGERS];
    float real;
} SmallNumbers;

/* CUDA_BACK: bytes that a copy or a variable brought to the host, or that both share. */
enum {
    CUDA_BLOCKS,
    CUDA_READ,
    CUDA_WRITTEN,
    CUDA_WAVES,
    CUDA_IDEAL,
    CUDA_SHARED,
    CUDA_BACK,
    CUDA_COUNTS
};

/* counts [CUDA_COUNTS], finding: a text, "" where no rule was broken. */
int flash_cuda_variant(const float *Q, const float *K, const float *V, float *O, float *lse, int N,
                       int d, int causal, double *counts, char *finding);

typedef struct RingNumbers {
    RunnerPointer Q, K, V, O, lse, dO, dQ, dK, dV;
    RunnerPointer tokens, positions; /* int32: [world], and all ranks' positions in a row */
    RunnerPointer mailbox;
    int64_t mailbox_bytes;
    int32_t rank, world, H, Hkv, d, left, right;
    float scale;
} RingNumbers;

#endif
