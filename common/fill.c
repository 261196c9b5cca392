/* SPDX-License-Identifier: MIT
 *
 * fill.c: fills whole tensors and masks on the host; the arithmetic stands in fill.h.
 *
 * Interface: fill.h (fill_tensor_device is in fill.cu where there is CUDA).
 */
#include "fill.h"

#include "attn_config.h"
#include "tensor.h"

enum { MANY = 1 << 22 }; /* elements that threads are worth */

void fill_tensor(const Tensor *t, FillTensor which, uint64_t seed, FillDist dist)
{
    const int64_t rows = t->shape[0] * t->shape[1], width = t->shape[2] * t->shape[3];
    int64_t row;
#pragma omp parallel for if (rows * width > MANY)
    for (row = 0; row < rows; row++) {
        uint64_t index = (uint64_t)(row * width); /* the logical one, whatever the strides */
        int64_t h, x;
        for (h = 0; h < t->shape[2]; h++) {
            const int64_t at = tensor_offset(t, row / t->shape[1], row % t->shape[1], h);
            for (x = 0; x < t->shape[3]; x++)
                tensor_set(t, at + x, fill_value(seed, (int)which, index++, dist));
        }
    }
}

void fill_mask(uint8_t *mask, int64_t Nq, int64_t Nk, uint64_t seed)
{
    int64_t i, j;
    for (i = 0; i < Nq; i++)
        for (j = 0; j < Nk; j++) {
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
