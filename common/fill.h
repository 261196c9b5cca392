/* SPDX-License-Identifier: MIT
 *
 * fill.h: counter-based random input. A value depends on (seed, tensor, global index) and nothing
 * else, so any thread, GPU or rank can make its own part, and a failing case is replayed from a
 * seed.
 *
 * All arithmetic is integer up to one exact multiplication: a CPU and a GPU give equal bits.
 *
 * Interface:
 * - fill_value: one value. fill_tensor: a whole host tensor. fill_tensor_device: its CUDA twin.
 * - fill_mask: the full mask of `--mask full` without a file: random, every fifth row empty.
 */
#ifndef ATTN_FILL_H
#define ATTN_FILL_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum FillTensor {
    FILL_Q = 1,
    FILL_K = 2,
    FILL_V = 3,
    FILL_DO = 4,
    FILL_MASK = 5
} FillTensor;

/* normal: N(0,1). outlier: N(0,1) + N(0,100)*Bernoulli(0.001). large: N(0,1) times 8, so that
 * scores reach +-1e2 and exp without max overflows. */
typedef enum FillDist { FILL_NORMAL, FILL_OUTLIER, FILL_LARGE } FillDist;

/* index = ((b*N + n)*H + h)*d + x of the whole (unsharded) tensor in BSHD order */
/* helper A writes: static inline ATTN_HD float fill_value(uint64_t seed, int tensor, uint64_t
 * index, FillDist) */
void fill_tensor(const Tensor *t, FillTensor which, uint64_t seed, FillDist dist);
/* t->data is a device pointer; stream is a cudaStream_t. Returns ATTN_CUDA_ERROR on failure. */
AttnStatus fill_tensor_device(const Tensor *t, FillTensor which, uint64_t seed, FillDist dist,
                              void *stream);
/* mask [Nq][Nk], 1 = masked out */
void fill_mask(uint8_t *mask, int64_t Nq, int64_t Nk, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
