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
    FILL_MASK = 5,
    FILL_WQ = 6,
    FILL_WK = 7
} FillTensor;

/* normal: N(0,1). outlier: N(0,1) + N(0,100)*Bernoulli(0.001). large: N(0,1) times 8, so that
 * scores reach +-1e2 and exp without max overflows. paired: N(0,1) with V = K and dO = Q. Gradients
 * of independent inputs average out over many tokens, 1/sqrt(n), until roundings of 16 bits hide
 * them and any error in them; those of paired inputs keep their size. */
typedef enum FillDist { FILL_NORMAL, FILL_OUTLIER, FILL_LARGE, FILL_PAIRED } FillDist;

/* A step of Weyl's sequence and the finaliser of splitmix64 (Steele, Lea, Flood 2014; public domain
 * constants): every input bit changes about half of the output bits. */
#define FILL_STEP UINT64_C(0x9E3779B97F4A7C15)

static inline ATTN_HD uint64_t fill_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* The start of the private random stream of one element; fill_word draws its t-th 64 bits. */
static inline ATTN_HD uint64_t fill_stream(uint64_t seed, int tensor, uint64_t index)
{
    return fill_mix(fill_mix(seed + FILL_STEP * (uint64_t)tensor) + FILL_STEP * index);
}

static inline ATTN_HD uint64_t fill_word(uint64_t stream, uint64_t t)
{
    return fill_mix(stream + FILL_STEP * (t + 1));
}

/* Nearly N(0,1), as an integer in units of 2^-16: the sum of 12 independent 16-bit numbers (words
 * t, t+1, t+2), less its mean 12 * 65535 / 2. Each has variance (2^32 - 1) / 12, so the sum has
 * the standard deviation 2^16 and needs no factor but that power of two. Range +-6 (Irwin-Hall). */
static inline ATTN_HD int32_t fill_normal(uint64_t stream, uint64_t t)
{
    int32_t sum = -393210, w, lane;
    for (w = 0; w < 3; w++) {
        const uint64_t word = fill_word(stream, t + (uint64_t)w);
        for (lane = 0; lane < 64; lane += 16)
            sum += (int32_t)(word >> lane & 0xFFFF);
    }
    return sum;
}

/* index = ((b*N + n)*H + h)*d + x of the whole (unsharded) tensor in BSHD order. The integer stays
 * below 2^23, so float holds it exactly, and so it does the product with a power of two. */
static inline ATTN_HD float fill_value(uint64_t seed, int tensor, uint64_t index, FillDist dist)
{
    const int paired = dist != FILL_PAIRED ? tensor
                       : tensor == FILL_V  ? FILL_K
                       : tensor == FILL_DO ? FILL_Q
                                           : tensor;
    const uint64_t stream = fill_stream(seed, paired, index);
    int32_t value = fill_normal(stream, 0);
    /* Bernoulli(0.001): 32 bits below 0.001 * 2^32 */
    if (dist == FILL_OUTLIER && (fill_word(stream, 3) & 0xFFFFFFFF) < 4294967)
        value += 10 * fill_normal(stream, 4);
    return (float)value * (dist == FILL_LARGE ? 0x1p-13f : 0x1p-16f);
}

void fill_tensor(const Tensor *t, FillTensor which, uint64_t seed, FillDist dist);
/* The same bits. t->data is a device pointer, stream a cudaStream_t. ATTN_CUDA_ERROR on failure. */
AttnStatus fill_tensor_device(const Tensor *t, FillTensor which, uint64_t seed, FillDist dist,
                              void *stream);
/* mask [Nq][Nk], 1 = masked out: a quarter of the pairs, and all of rows 4, 9, 14 ... */
void fill_mask(uint8_t *mask, int64_t Nq, int64_t Nk, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
