/* SPDX-License-Identifier: MIT
 *
 * fill.c: fills whole tensors and masks on the host; the arithmetic stands in fill.h.
 *
 * Interface: fill.h (fill_tensor_device is in fill.cu where there is CUDA).
 */
#include "harness/io/fill.h"

#include "attn_config.h"
#include "tensor.h"

enum { MANY = 1 << 22 }; /* elements that threads are worth */

/* One function body for several instruction sets, chosen at program start: eight products of 64
 * bits an element, side by side. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) &&                  \
    !defined(__clang__)
#define FILL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FILL_CLONES
#endif

enum { PIECE = 256 }; /* elements of a row that are made at once, before they are rounded */

/* fill_value of the logical indexes from `index` on. Of outliers each element has a branch of its
 * own; the others are those of the normal distribution, of a tensor that they may share (paired) or
 * times a power of two (large), and a loop over them becomes SIMD code. */
FILL_CLONES static void make_values(float *values, int64_t count, FillTensor which, uint64_t seed,
                                    uint64_t index, FillDist dist)
{
    const int outlier = dist == FILL_OUTLIER, paired = dist == FILL_PAIRED;
    const int as = paired && which == FILL_V ? FILL_K : paired && which == FILL_DO ? FILL_Q : which;
    const float factor = dist == FILL_LARGE ? 8.0f : 1.0f;
    for (int64_t x = 0; outlier && x < count; x++)
        values[x] = fill_value(seed, as, index + (uint64_t)x, FILL_OUTLIER);
    for (int64_t x = 0; x < (outlier ? 0 : count); x++)
        values[x] = factor * fill_value(seed, as, index + (uint64_t)x, FILL_NORMAL);
}

/* Channels of one head of one token, a piece at a time. */
static void fill_row(const Tensor *t, int64_t b, int64_t n, int64_t h, FillTensor which,
                     uint64_t seed, FillDist dist)
{
    const int64_t d = t->shape[3], at = tensor_offset(t, b, n, h);
    /* the logical one, whatever the strides */
    const int64_t index = ((b * t->shape[1] + n) * t->shape[2] + h) * d;
    for (int64_t x = 0; x < d; x += PIECE) {
        float values[PIECE];
        Tensor piece = {(char *)t->data + (size_t)(at + x) * dtype_size(t->dtype),
                        t->dtype,
                        {1, 1, 1, d - x < PIECE ? d - x : PIECE},
                        {0, 0, 0, 1}};
        make_values(values, piece.shape[3], which, seed, (uint64_t)(index + x), dist);
        tensor_write_row(&piece, 0, 0, 0, values);
    }
}

void fill_tensor(const Tensor *t, FillTensor which, uint64_t seed, FillDist dist)
{
    const int64_t tokens = t->shape[0] * t->shape[1], width = t->shape[2] * t->shape[3];
#pragma omp parallel for if (tokens * width > MANY)
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t h = 0; h < t->shape[2]; h++)
            fill_row(t, n / t->shape[1], n % t->shape[1], h, which, seed, dist);
}

void fill_mask(uint8_t *mask, int64_t Nq, int64_t Nk, uint64_t seed)
{
    for (int64_t i = 0; i < Nq; i++)
        for (int64_t j = 0; j < Nk; j++) {
            const uint64_t stream = fill_stream(seed, FILL_MASK, (uint64_t)(i * Nk + j));
            mask[i * Nk + j] = i % 5 == 4 || (fill_word(stream, 0) & 3) == 0;
        }
}

#ifndef HAVE_CUDA
AttnStatus fill_tensor_device(const Tensor *t, FillTensor which, uint64_t seed, FillDist dist,
                              void *stream)
{
    (void)t, (void)which, (void)seed, (void)dist, (void)stream;
    return ATTN_CUDA_ERROR;
}
#endif
