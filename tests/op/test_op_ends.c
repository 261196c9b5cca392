/* SPDX-License-Identifier: MIT
 *
 * test_op_ends.c: both ends of every integer that the installed headers take, and what lies one
 * beyond, and the ends of its type.
 */
#include <limits.h>

#include "attention/op/infiniop_flash_attention.h"

#include "../unit/unit.h"
#include "pretend_device.h"

#define MOST (INT64_C(1) << 44) /* elements */

/* `low` to `high` succeed, what lies beyond has status `refused`. */
static void try(FlashAttentionStatus (*call)(int64_t), int bits, int64_t low, int64_t high,
                FlashAttentionStatus refused)
{
    const int64_t least = bits == 64 ? INT64_MIN : INT32_MIN;
    const int64_t most = bits == 64 ? INT64_MAX : INT32_MAX;
    const int64_t values[] = {least, low > least ? low - 1 : low,   low,
                              high,  high < most ? high + 1 : high, most};
    for (size_t n = 0; n < sizeof values / sizeof *values; n++) {
        const int within = values[n] >= low && values[n] <= high;
        const FlashAttentionStatus status = call(values[n]);
        if (status != (within ? FLASH_ATTENTION_SUCCESS : refused))
            fail_msg("%lld: %s", (long long)values[n], flash_attention_status_string(status));
    }
}

/* --- handles -----------------------------------------------------------------------------------*/

static FlashAttentionStatus closed(FlashAttentionStatus status, FlashAttentionHandle *handle)
{
    assert_true((status == FLASH_ATTENTION_SUCCESS) == (handle != NULL));
    flash_attention_destroy_handle(handle);
    return status;
}

static FlashAttentionStatus with_device(int64_t value)
{
    FlashAttentionHandle *h;
    const FlashAttentionStatus status =
        flash_attention_create_handle(&h, (FlashAttentionDevice)value, 0);
    return closed(status, h);
}

static FlashAttentionStatus with_cpu(int64_t value)
{
    FlashAttentionHandle *h;
    const FlashAttentionStatus status =
        flash_attention_create_handle(&h, FLASH_ATTENTION_CPU, (int)value);
    return closed(status, h);
}

static FlashAttentionStatus with_gpu(int64_t value)
{
    FlashAttentionHandle *h;
    const FlashAttentionStatus status =
        flash_attention_create_handle(&h, FLASH_ATTENTION_CUDA, (int)value);
    return closed(status, h);
}

static FlashAttentionStatus infini_device(int64_t value)
{
    infiniopHandle_t h;
    const infiniStatus_t status = infiniopCreateHandle(&h, (infiniDevice_t)value, 0);
    return closed((FlashAttentionStatus)status, h);
}

static FlashAttentionStatus infini_gpu(int64_t value)
{
    infiniopHandle_t h;
    const infiniStatus_t status = infiniopCreateHandle(&h, INFINI_DEVICE_NVIDIA, (int)value);
    return closed((FlashAttentionStatus)status, h);
}

static FlashAttentionStatus with_threads(int64_t value)
{
    FlashAttentionHandle *h;
    assert_int_equal(FLASH_ATTENTION_SUCCESS,
                     flash_attention_create_handle(&h, FLASH_ATTENTION_CPU, 0));
    const FlashAttentionStatus status = flash_attention_set_threads(h, (int)value);
    flash_attention_destroy_handle(h);
    return status;
}

TEST(test_handles)
{
    pretend_reset();
    pretend.count = 3;
    try(with_device, 32, 0, 1, FLASH_ATTENTION_DEVICE_TYPE_NOT_SUPPORTED);
    try(with_cpu, 32, 0, 0, FLASH_ATTENTION_DEVICE_NOT_FOUND);
    try(with_gpu, 32, 0, 2, FLASH_ATTENTION_DEVICE_NOT_FOUND);
    try(infini_device, 32, 0, 1, FLASH_ATTENTION_DEVICE_TYPE_NOT_SUPPORTED);
    try(infini_gpu, 32, 0, 2, FLASH_ATTENTION_DEVICE_NOT_FOUND);
    try(with_threads, 32, 1, 1024, FLASH_ATTENTION_BAD_PARAM);
}

/* --- tensors -----------------------------------------------------------------------------------*/

static FlashAttentionStatus described(FlashAttentionDtype dtype, int ndim, int64_t size,
                                      int64_t stride)
{
    const int64_t shape[] = {size, 1, 1, 1}, strides[] = {stride, 1, 1, 1};
    FlashAttentionTensor t;
    return flash_attention_describe(&t, dtype, ndim, shape, strides);
}

static FlashAttentionStatus with_dtype(int64_t value)
{
    return described((FlashAttentionDtype)value, 1, 1, 1);
}

static FlashAttentionStatus with_ndim(int64_t value)
{
    return described(FLASH_ATTENTION_U8, (int)value, 1, 1);
}

static FlashAttentionStatus with_shape(int64_t value)
{
    return described(FLASH_ATTENTION_U8, 1, value, 1);
}

static FlashAttentionStatus with_stride(int64_t value)
{
    return described(FLASH_ATTENTION_U8, 1, 2, value);
}

static FlashAttentionStatus infini_described(infiniDtype_t dtype, size_t ndim, size_t size,
                                             ptrdiff_t stride)
{
    const size_t shape[] = {size, 1, 1, 1};
    const ptrdiff_t strides[] = {stride, 1, 1, 1};
    infiniopTensorDescriptor_t t;
    const infiniStatus_t status = infiniopCreateTensorDescriptor(&t, ndim, shape, strides, dtype);
    infiniopDestroyTensorDescriptor(t);
    return (FlashAttentionStatus)status;
}

static FlashAttentionStatus infini_ndim(int64_t value)
{
    return infini_described(INFINI_DTYPE_U8, (size_t)value, 1, 1);
}

static FlashAttentionStatus infini_shape(int64_t value)
{
    return infini_described(INFINI_DTYPE_U8, 1, (size_t)value, 1);
}

static FlashAttentionStatus infini_stride(int64_t value)
{
    return infini_described(INFINI_DTYPE_U8, 1, 2, (ptrdiff_t)value);
}

TEST(test_tensors)
{
    try(with_dtype, 32, 0, 4, FLASH_ATTENTION_BAD_TENSOR_DTYPE);
    try(with_ndim, 32, 1, 4, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(with_shape, 64, 1, MOST, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(with_stride, 64, -(INT64_C(1) << 62), INT64_C(1) << 62, FLASH_ATTENTION_BAD_TENSOR_STRIDES);
    try(infini_ndim, 64, 0, 4, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(infini_shape, 64, 1, MOST, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(infini_stride, 64, -(INT64_C(1) << 62), INT64_C(1) << 62,
        FLASH_ATTENTION_BAD_TENSOR_STRIDES);
    assert_int_equal(FLASH_ATTENTION_SUCCESS, infini_described(INFINI_DTYPE_BOOL, 1, 1, 1));
    assert_int_equal(FLASH_ATTENTION_SUCCESS, infini_described(INFINI_DTYPE_BF16, 1, 1, 1));
    const int dtypes[] = {INT_MIN, -1, INFINI_DTYPE_BOOL - 1, INFINI_DTYPE_BF16 + 1, INT_MAX};
    for (int n = 0; n < 5; n++)
        assert_int_equal(FLASH_ATTENTION_BAD_TENSOR_DTYPE,
                         infini_described((infiniDtype_t)dtypes[n], 1, 1, 1));
}

/* --- the operator ------------------------------------------------------------------------------*/

/* out, q, k and v of one number each. set changes all four; mask: causal. */
typedef struct Made {
    FlashAttentionTensor t[4];
    FlashAttentionMask mask;
} Made;

static FlashAttentionStatus created(void (*set)(Made *, int64_t), int64_t value)
{
    const FlashAttentionTensor one = {FLASH_ATTENTION_F32, 4, {1, 1, 1, 1}, {1, 1, 1, 1}};
    Made m = {{one, one, one, one}, FLASH_ATTENTION_MASK_NONE};
    FlashAttentionTensor mask = {FLASH_ATTENTION_U8, 2, {1, 1}, {1, 1}};
    FlashAttentionHandle *h;
    FlashAttention *op;
    size_t bytes;
    set(&m, value);
    assert_int_equal(FLASH_ATTENTION_SUCCESS,
                     flash_attention_create_handle(&h, FLASH_ATTENTION_CPU, 0));
    assert_int_equal(FLASH_ATTENTION_SUCCESS, flash_attention_set_threads(h, 1024));
    const FlashAttentionStatus status =
        flash_attention_create(h, &op, &m.t[0], &m.t[1], &m.t[2], &m.t[3], &mask, m.mask, NULL);
    assert_true((status == FLASH_ATTENTION_SUCCESS) == (op != NULL));
    if (op) { /* no less than the rows of lse, however large: nothing has overflowed */
        assert_int_equal(FLASH_ATTENTION_SUCCESS, flash_attention_workspace_size(op, &bytes));
        assert_in_range(bytes, 4 * m.t[1].shape[0] * m.t[1].shape[1] * m.t[1].shape[2],
                        INT64_C(1) << 62);
    }
    flash_attention_destroy(op);
    flash_attention_destroy_handle(h);
    return status;
}

#define CHANGED(name, first, last, ...)                                                            \
    static void set_##name(Made *m, int64_t value)                                                 \
    {                                                                                              \
        for (int n = first; n <= last; n++) {                                                      \
            FlashAttentionTensor *t = &m->t[n];                                                    \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    }                                                                                              \
    static FlashAttentionStatus with_##name(int64_t value)                                         \
    {                                                                                              \
        return created(set_##name, value);                                                         \
    }

CHANGED(own_dtype, 0, 3, t->dtype = (FlashAttentionDtype)value)
CHANGED(own_ndim, 0, 3, t->ndim = (int)value)
CHANGED(batch, 0, 3, t->shape[0] = value)
CHANGED(queries, 0, 1, t->shape[1] = value)
CHANGED(keys, 2, 3, t->shape[1] = value)
CHANGED(tokens, 0, 3, t->shape[1] = value)
CHANGED(heads, 0, 1, t->shape[2] = value)
CHANGED(all_heads, 0, 3, t->shape[2] = value)
CHANGED(channels, 0, 3, t->shape[3] = value; t->strides[2] = t->strides[1] = t->strides[0] = 2048)
CHANGED(row_stride, 1, 3, t->shape[0] = t->shape[1] = 1; t->shape[2] = 2; t->strides[2] = value;
        m->t[0].shape[2] = 2)
CHANGED(mask, 0, 0, (void)t; m->mask = (FlashAttentionMask)value)

TEST(test_sizes_of_an_operator)
{
    try(with_own_dtype, 32, 0, 2, FLASH_ATTENTION_BAD_TENSOR_DTYPE);
    try(with_own_ndim, 32, 3, 4, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(with_batch, 64, 1, MOST, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(with_queries, 64, 1, MOST, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(with_keys, 64, 1, MOST, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(with_tokens, 64, 1, MOST, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(with_heads, 64, 1, MOST, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    try(with_all_heads, 64, 1, MOST, FLASH_ATTENTION_BAD_TENSOR_SHAPE);
    assert_int_equal(FLASH_ATTENTION_BAD_TENSOR_SHAPE, with_channels(0));
    assert_int_equal(FLASH_ATTENTION_SUCCESS, with_channels(1));
    assert_int_equal(FLASH_ATTENTION_SUCCESS, with_channels(1024));
    assert_int_equal(FLASH_ATTENTION_NOT_IMPLEMENTED, with_channels(1025));
    assert_int_equal(FLASH_ATTENTION_NOT_IMPLEMENTED, with_channels(MOST));
    try(with_row_stride, 64, -(INT64_C(1) << 60), INT64_C(1) << 60,
        FLASH_ATTENTION_BAD_TENSOR_STRIDES); /* 4 bytes each */
    try(with_mask, 32, 0, 3, FLASH_ATTENTION_BAD_PARAM);
}

/* One query, one key, one channel; the mask type comes with infiniop's call. */
static FlashAttentionStatus attended(int64_t room, int is_infini, int32_t mask_type)
{
    static const size_t shape[] = {1, 1, 1};
    static const float v = 3.0f;
    static char workspace[1 << 16];
    infiniopTensorDescriptor_t t, type;
    infiniopFlashAttentionDescriptor_t desc;
    infiniopHandle_t h;
    size_t bytes, given;
    float out = 0;
    int bad = infiniopCreateHandle(&h, INFINI_DEVICE_CPU, 0);
    bad |= infiniopCreateTensorDescriptor(&t, 3, shape, NULL, INFINI_DTYPE_F32);
    bad |= infiniopCreateTensorDescriptor(&type, 0, NULL, NULL, INFINI_DTYPE_I32);
    bad |= infiniopCreateFlashAttentionDescriptor(h, &desc, t, t, t, t, NULL, type);
    bad |= infiniopGetFlashAttentionWorkspaceSize(desc, &bytes);
    assert_int_equal(INFINI_STATUS_SUCCESS, bad);
    assert_in_range(bytes, 1, sizeof workspace);
    given = room < 0 ? bytes + (size_t)room : (size_t)room == 0 ? 0 : SIZE_MAX - (size_t)room + 1;
    const FlashAttentionStatus status =
        is_infini ? (FlashAttentionStatus)infiniopFlashAttention(desc, workspace, given, &out, &v,
                                                                 &v, &v, NULL, &mask_type, NULL)
                  : flash_attention_run(desc->by_mask_type[mask_type], workspace, given, &out, &v,
                                        &v, &v, NULL, NULL, NULL);
    assert_true(out == (status == FLASH_ATTENTION_SUCCESS ? v : 0.0f));
    assert_int_equal(INFINI_STATUS_SUCCESS, infiniopDestroyFlashAttentionDescriptor(desc));
    infiniopDestroyTensorDescriptor(t);
    infiniopDestroyTensorDescriptor(type);
    infiniopDestroyHandle(h);
    return status;
}

TEST(test_workspace_and_mask_type)
{
    for (int is_infini = 0; is_infini < 2; is_infini++) {
        assert_int_equal(FLASH_ATTENTION_INSUFFICIENT_WORKSPACE, attended(0, is_infini, 0));
        assert_int_equal(FLASH_ATTENTION_INSUFFICIENT_WORKSPACE, attended(-1, is_infini, 0));
        assert_int_equal(FLASH_ATTENTION_SUCCESS, attended(1, is_infini, 0)); /* SIZE_MAX */
    }
    const int32_t outside[] = {INT32_MIN, -1, 1, 4, INT32_MAX}; /* 1: there is no mask */
    for (int n = 0; n < 5; n++)
        assert_int_equal(FLASH_ATTENTION_BAD_PARAM, attended(1, 1, outside[n]));
    assert_int_equal(FLASH_ATTENTION_SUCCESS, attended(1, 1, 3));
}

TEST(test_status_string)
{
    const int outside[] = {INT_MIN, -1, 14, INT_MAX};
    for (int n = 0; n < 4; n++)
        assert_string_equal("unknown status",
                            flash_attention_status_string((FlashAttentionStatus)outside[n]));
}
