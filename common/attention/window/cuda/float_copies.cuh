/* SPDX-License-Identifier: MIT
 *
 * float_copies.cuh: 16-bit tensors as float32, for kernels that read nothing else.
 *
 * Every 16-bit number is a float32, so the copy is exact and the arithmetic is as if the kernel had
 * converted on the way. It costs one pass over memory, where attention reads the same rows again
 * for every tile, and saves a second set of kernels.
 *
 * Interface:
 * - FloatCopies, float_copies_make, float_copies_store_O, float_copies_free.
 */
#ifndef WINDOW_FLOAT_COPIES_CUH
#define WINDOW_FLOAT_COPIES_CUH

#include "alloc.h"
#include "window_cuda.h"

/* args: what float32 kernels get. Of float32 tensors there are no copies. */
struct FloatCopies {
    AttnArgs args;
    void *memory_dev;
    void *extra; /* what the caller asked for beside the copies */
};

enum FloatPass { FLOATS_FORWARD, FLOATS_BACKWARD };

static size_t float_bytes(const Tensor *t)
{
    return (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]) * sizeof(float);
}

/* Forward: Q, K, V are copied and O has a place. Backward: dO is copied too, a float32 one as well,
 * and in the copy rows without keys are zeros: what padding holds must not meet their P = 0 in a
 * product, where 0 * NaN is NaN. O is not needed.
 * Whatever it answers, float_copies_free has to follow. */
static AttnStatus float_copies_make(FloatCopies *copies, const AttnArgs *a, FloatPass pass,
                                    size_t extra_bytes)
{
    const bool convert = a->Q.dtype != ATTN_F32;
    const Tensor *from[4] = {&a->Q, &a->K, &a->V, pass == FLOATS_FORWARD ? &a->O : &a->dO};
    Tensor *to[4] = {&copies->args.Q, &copies->args.K, &copies->args.V,
                     pass == FLOATS_FORWARD ? &copies->args.O : &copies->args.dO};
    size_t bytes = 0;
    AttnStatus status = ATTN_OK;
    copies->args = *a;
    copies->memory_dev = copies->extra = NULL;
    for (int t = 0; t < 4; t++)
        bytes += convert || from[t] == &a->dO ? float_bytes(from[t]) : 0;
    if (bytes + extra_bytes == 0)
        return ATTN_OK;
    char *at = (char *)workspace_alloc_device(bytes + extra_bytes);
    if (!at)
        return ATTN_NO_MEMORY;
    copies->memory_dev = at;
    for (int t = 0; t < 4; t++) {
        if (!convert && from[t] != &a->dO)
            continue;
        *to[t] = window_contiguous(from[t], ATTN_F32, at);
        at += float_bytes(from[t]);
        if (status == ATTN_OK && from[t] != &a->O)
            status = window_copy_cuda(to[t], from[t], a->stream);
    }
    if (status == ATTN_OK && pass == FLOATS_BACKWARD)
        status = window_clear_empty_cuda(a->lse, &copies->args.dO, a->stream);
    copies->extra = at;
    return status;
}

/* O, rounded to the dtype of the original, unless it is the original. */
static AttnStatus float_copies_store_O(const FloatCopies *copies, const AttnArgs *a)
{
    return copies->args.O.data == a->O.data ? ATTN_OK
                                            : window_copy_cuda(&a->O, &copies->args.O, a->stream);
}

static void float_copies_free(FloatCopies *copies)
{
    workspace_free_device(copies->memory_dev); /* kept until the kernels are done */
}

#endif
