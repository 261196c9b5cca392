/* SPDX-License-Identifier: MIT
 *
 * fill.c: fills whole tensors and masks on the host; the arithmetic stands in fill.h.
 *
 * Interface: fill.h (fill_tensor_device is in fill.cu where there is CUDA).
 */
#include "fill.h"

#include "attn_config.h"
#include "tensor.h"

void fill_tensor(const Tensor *t, FillTensor which, uint64_t seed, FillDist dist)
{
    int64_t b, n, h, x;
    uint64_t index = 0; /* the logical one, whatever the strides */
    for (b = 0; b < t->shape[0]; b++)
        for (n = 0; n < t->shape[1]; n++)
            for (h = 0; h < t->shape[2]; h++) {
                const int64_t row = tensor_offset(t, b, n, h);
                for (x = 0; x < t->shape[3]; x++)
                    tensor_set(t, row + x, fill_value(seed, (int)which, index++, dist));
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
