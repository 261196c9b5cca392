/* SPDX-License-Identifier: MIT
 *
 * tensors.c: is a description of a tensor one that a kernel may trust?
 *
 * Every number in it comes from outside. Before anything is multiplied the product is known to fit:
 * an overflow here would turn into a small buffer and a write behind it. __builtin_mul_overflow
 * does the multiplication and tells whether the true result fits.
 *
 * The order is dtype, shape, strides; each check may rely on those before it.
 *
 * Interface: flash_attention_describe (flash_attention_op.h); op_check_dtype, op_check_shape,
 * op_check_strides, op_view, op_overlaps_itself, op_dtype_bytes (op_internal.h).
 */
#include "op_internal.h"

/* With padding to whole panels on every side, float32 copies and the head count on top, 2^44
 * elements stay below 2^62 bytes in every size that is computed from them. */
#define MAX_ELEMENTS (INT64_C(1) << 44)
#define MAX_SPAN     (INT64_C(1) << 62)

size_t op_dtype_bytes(FlashAttentionDtype dtype)
{
    switch (dtype) {
    case FLASH_ATTENTION_F32:
        return 4;
    case FLASH_ATTENTION_F16:
    case FLASH_ATTENTION_BF16:
        return 2;
    case FLASH_ATTENTION_U8:
    case FLASH_ATTENTION_BOOL:
        return 1;
    }
    return 0;
}

FlashAttentionStatus op_check_dtype(const FlashAttentionTensor *t)
{
    return op_dtype_bytes(t->dtype) ? FLASH_ATTENTION_SUCCESS : FLASH_ATTENTION_BAD_TENSOR_DTYPE;
}

FlashAttentionStatus op_check_shape(const FlashAttentionTensor *t)
{
    int64_t count = 1;
    if (t->ndim < 1 || t->ndim > 4)
        return FLASH_ATTENTION_BAD_TENSOR_SHAPE;
    for (int n = 0; n < t->ndim; n++)
        if (t->shape[n] < 1 || __builtin_mul_overflow(count, t->shape[n], &count) ||
            count > MAX_ELEMENTS)
            return FLASH_ATTENTION_BAD_TENSOR_SHAPE;
    return FLASH_ATTENTION_SUCCESS;
}

/* Bytes from the lowest to the highest address that the tensor touches. */
FlashAttentionStatus op_check_strides(const FlashAttentionTensor *t)
{
    int64_t span = 0, reach;
    for (int n = 0; n < t->ndim; n++) {
        const int64_t steps = t->shape[n] - 1;
        if (steps == 0) /* its stride is never used */
            continue;
        if (t->strides[n] == INT64_MIN) /* has no absolute value */
            return FLASH_ATTENTION_BAD_TENSOR_STRIDES;
        reach = t->strides[n] < 0 ? -t->strides[n] : t->strides[n];
        if (__builtin_mul_overflow(reach, steps, &reach) ||
            __builtin_mul_overflow(reach, (int64_t)op_dtype_bytes(t->dtype), &reach) ||
            reach > MAX_SPAN - span)
            return FLASH_ATTENTION_BAD_TENSOR_STRIDES;
        span += reach;
    }
    return FLASH_ATTENTION_SUCCESS;
}

FlashAttentionStatus flash_attention_describe(FlashAttentionTensor *tensor,
                                              FlashAttentionDtype dtype, int ndim,
                                              const int64_t *shape, const int64_t *strides)
{
    FlashAttentionTensor t = {.dtype = dtype, .ndim = ndim};
    FlashAttentionStatus status;
    if (!tensor || !shape)
        return FLASH_ATTENTION_NULL_POINTER;
    for (int n = 0; n < 4 && n < ndim; n++) {
        t.shape[n] = shape[n];
        t.strides[n] = strides ? strides[n] : 0;
    }
    status = op_check_dtype(&t);
    if (status == FLASH_ATTENTION_SUCCESS)
        status = op_check_shape(&t);
    if (status != FLASH_ATTENTION_SUCCESS)
        return status;
    int64_t step = 1;
    for (int n = ndim - 1; n >= 0 && !strides; step *= t.shape[n--])
        t.strides[n] = step;
    status = op_check_strides(&t);
    if (status == FLASH_ATTENTION_SUCCESS)
        *tensor = t;
    return status;
}

Tensor op_view(const FlashAttentionTensor *t)
{
    Tensor view = {.dtype = (AttnDtype)t->dtype, .shape = {1, 1, 1, 1}, .stride = {0, 0, 0, 1}};
    for (int n = 0; n < t->ndim; n++) {
        const int to = 4 - t->ndim + n;
        view.shape[to] = t->shape[n];
        if (to < 3)
            view.stride[to] = t->shape[n] == 1 ? 0 : t->strides[n];
    }
    return view;
}

/* Sorted by size, each stride must be larger than the way that all smaller ones together can go.
 * Sufficient; a few strange layouts without an overlap are refused as well. */
int op_overlaps_itself(const Tensor *t)
{
    int64_t reach = t->shape[3] - 1; /* channels have stride 1 */
    int done[3] = {0, 0, 0};
    for (int round = 0; round < 3; round++) {
        int least = -1;
        int64_t step = 0;
        for (int n = 0; n < 3; n++) {
            const int64_t size = t->stride[n] < 0 ? -t->stride[n] : t->stride[n];
            if (!done[n] && (least < 0 || size < step)) {
                least = n;
                step = size;
            }
        }
        done[least] = 1;
        if (t->shape[least] == 1)
            continue;
        if (step <= reach)
            return 1;
        reach += step * (t->shape[least] - 1);
    }
    return 0;
}
