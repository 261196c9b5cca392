/* SPDX-License-Identifier: MIT
 *
 * test_infiniop.c: calls written after infiniop's FlashAttention document, with its names and its
 * argument lists, compile and give attention. Includes nothing of the library but that header.
 *
 * attend() is the document's own sequence. The rest asks for results by mask type against the
 * oracle, and for the statuses of what the header adds.
 */
#include "attention/op/infiniop_flash_attention.h"

#include "op_case.h"

/* What the calls of the document look like in a program. */
static infiniStatus_t attend(infiniopHandle_t handle, infiniopTensorDescriptor_t out_desc,
                             infiniopTensorDescriptor_t q_desc, infiniopTensorDescriptor_t k_desc,
                             infiniopTensorDescriptor_t v_desc,
                             infiniopTensorDescriptor_t mask_desc,
                             infiniopTensorDescriptor_t mask_type_desc, void *out, const void *q,
                             const void *k, const void *v, void *mask, void *mask_type,
                             void *stream)
{
    infiniopFlashAttentionDescriptor_t desc;
    size_t workspace_size;
    infiniStatus_t status = infiniopCreateFlashAttentionDescriptor(
        handle, &desc, out_desc, q_desc, k_desc, v_desc, mask_desc, mask_type_desc);
    if (status != INFINI_STATUS_SUCCESS)
        return status;
    status = infiniopGetFlashAttentionWorkspaceSize(desc, &workspace_size);
    if (status != INFINI_STATUS_SUCCESS)
        return status;
    void *workspace = malloc(workspace_size);
    status = infiniopFlashAttention(desc, workspace, workspace_size, out, q, k, v, mask, mask_type,
                                    stream);
    free(workspace);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    if (infiniopDestoryFlashAttentionDescriptor(desc) != INFINI_STATUS_SUCCESS) /* as it stands */
        return INFINI_STATUS_INTERNAL_ERROR;
#pragma GCC diagnostic pop
    return status;
}

static infiniopTensorDescriptor_t describe(const Tensor *t, size_t ndim, infiniDtype_t dtype)
{
    size_t shape[4];
    ptrdiff_t strides[4];
    infiniopTensorDescriptor_t desc;
    for (size_t n = 0; n < ndim; n++) {
        shape[n] = (size_t)t->shape[4 - ndim + n];
        strides[n] = (ptrdiff_t)t->stride[4 - ndim + n];
    }
    assert_int_equal(INFINI_STATUS_SUCCESS,
                     infiniopCreateTensorDescriptor(&desc, ndim, shape, strides, dtype));
    return desc;
}

/* All mask types at once: the type comes with the call. */
static void run_types(infiniopHandle_t handle, AttnDtype dtype, int64_t B)
{
    static const infiniDtype_t dtypes[] = {INFINI_DTYPE_F32, INFINI_DTYPE_F16, INFINI_DTYPE_BF16};
    const AttnShape s = {B, 4, 2, 30, 23, 16};
    const size_t ndim = B == 1 ? 3 : 4, mask_shape[] = {30, 23};
    const ptrdiff_t one_row[] = {0, 1};
    infiniopTensorDescriptor_t mask_desc, mask_type_desc;
    assert_int_equal(INFINI_STATUS_SUCCESS,
                     infiniopCreateTensorDescriptor(&mask_desc, 2, mask_shape,
                                                    B == 1 ? NULL : one_row, INFINI_DTYPE_BOOL));
    assert_int_equal(INFINI_STATUS_SUCCESS, infiniopCreateTensorDescriptor(&mask_type_desc, 0, NULL,
                                                                           NULL, INFINI_DTYPE_I32));
    for (int32_t mask_type = 0; mask_type < 4; mask_type++) {
        Case *c = case_new(s, dtype, B == 1 ? LAYOUT_ODD : LAYOUT_SBHD, 1);
        const AttnArgs *a = &c->args;
        infiniopTensorDescriptor_t out_desc = describe(&a->O, ndim, dtypes[dtype]);
        infiniopTensorDescriptor_t q_desc = describe(&a->Q, ndim, dtypes[dtype]);
        infiniopTensorDescriptor_t k_desc = describe(&a->K, ndim, dtypes[dtype]);
        infiniopTensorDescriptor_t v_desc = describe(&a->V, ndim, dtypes[dtype]);
        case_mask(c);
        for (int64_t e = s.Nk; B > 1 && e < s.Nq * s.Nk; e++)
            c->mask[e] = c->mask[e - s.Nk];
        case_align(c, (AttnMask)mask_type);
        assert_int_equal(INFINI_STATUS_SUCCESS,
                         attend(handle, out_desc, q_desc, k_desc, v_desc, mask_desc, mask_type_desc,
                                a->O.data, a->Q.data, a->K.data, a->V.data, c->mask, &mask_type,
                                NULL));
        if (mask_type != 1)
            c->args.mask = NULL;
        /* there is no lse in this interface: the oracle's own stands in */
        Oracle oracle = oracle_of(a, 0, 1);
        for (int64_t n = 0; n < oracle.lse.count; n++)
            c->lse[n] = (float)oracle.lse.value[n];
        oracle_free(&oracle);
        case_judge(c, 0, 4, 1, "infiniop");
        infiniopTensorDescriptor_t all[] = {out_desc, q_desc, k_desc, v_desc};
        for (int n = 0; n < 4; n++)
            assert_int_equal(INFINI_STATUS_SUCCESS, infiniopDestroyTensorDescriptor(all[n]));
        case_free(c);
    }
    infiniopDestroyTensorDescriptor(mask_desc);
    infiniopDestroyTensorDescriptor(mask_type_desc);
}

TEST(test_results_by_mask_type)
{
    infiniopHandle_t handle;
    assert_int_equal(INFINI_STATUS_SUCCESS, infiniopCreateHandle(&handle, INFINI_DEVICE_CPU, 0));
    for (int dtype = 0; dtype < 3; dtype++)
        for (int64_t B = 1; B < 3; B++)
            run_types(handle, (AttnDtype)dtype, B);
    assert_int_equal(INFINI_STATUS_SUCCESS, infiniopDestroyHandle(handle));
}

TEST(test_numbers)
{
    assert_int_equal((int)INFINI_STATUS_SUCCESS, 0);
    assert_int_equal((int)INFINI_STATUS_INTERNAL_ERROR, 1);
    assert_int_equal((int)INFINI_STATUS_NOT_IMPLEMENTED, 2);
    assert_int_equal((int)INFINI_STATUS_BAD_PARAM, 3);
    assert_int_equal((int)INFINI_STATUS_NULL_POINTER, 4);
    assert_int_equal((int)INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED, 5);
    assert_int_equal((int)INFINI_STATUS_DEVICE_NOT_FOUND, 6);
    assert_int_equal((int)INFINI_STATUS_DEVICE_NOT_INITIALIZED, 7);
    assert_int_equal((int)INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED, 8);
    assert_int_equal((int)INFINI_STATUS_BAD_TENSOR_DTYPE, 10);
    assert_int_equal((int)INFINI_STATUS_BAD_TENSOR_SHAPE, 11);
    assert_int_equal((int)INFINI_STATUS_BAD_TENSOR_STRIDES, 12);
    assert_int_equal((int)INFINI_STATUS_INSUFFICIENT_WORKSPACE, 13);
}

#define EXPECT(status, call) assert_int_equal((int)INFINI_STATUS_##status, (int)(call))

TEST(test_statuses_of_descriptors)
{
    const size_t shape[] = {2, 3, 4, 5, 6}, past[] = {SIZE_MAX, 1}, none[] = {2, 0};
    const ptrdiff_t far[] = {PTRDIFF_MAX, 1};
    infiniopTensorDescriptor_t desc;
    infiniopHandle_t handle;
    EXPECT(NULL_POINTER, infiniopCreateTensorDescriptor(NULL, 2, shape, NULL, INFINI_DTYPE_F32));
    EXPECT(NULL_POINTER, infiniopCreateTensorDescriptor(&desc, 2, NULL, NULL, INFINI_DTYPE_F32));
    EXPECT(BAD_TENSOR_DTYPE,
           infiniopCreateTensorDescriptor(&desc, 2, shape, NULL, (infiniDtype_t)14));
    EXPECT(BAD_TENSOR_SHAPE,
           infiniopCreateTensorDescriptor(&desc, 5, shape, NULL, INFINI_DTYPE_U8));
    EXPECT(BAD_TENSOR_SHAPE, infiniopCreateTensorDescriptor(&desc, 2, past, NULL, INFINI_DTYPE_U8));
    EXPECT(BAD_TENSOR_SHAPE, infiniopCreateTensorDescriptor(&desc, 2, none, NULL, INFINI_DTYPE_U8));
    EXPECT(BAD_TENSOR_STRIDES,
           infiniopCreateTensorDescriptor(&desc, 2, shape, far, INFINI_DTYPE_F16));
    assert_null(desc);
    EXPECT(SUCCESS, infiniopDestroyTensorDescriptor(NULL));
    EXPECT(NULL_POINTER, infiniopCreateHandle(NULL, INFINI_DEVICE_CPU, 0));
    EXPECT(DEVICE_TYPE_NOT_SUPPORTED, infiniopCreateHandle(&handle, (infiniDevice_t)3, 0));
    EXPECT(DEVICE_NOT_FOUND, infiniopCreateHandle(&handle, INFINI_DEVICE_CPU, 5));
}

TEST(test_statuses_of_the_operator)
{
    const size_t shape[] = {1, 4, 2, 8}, mask[] = {4, 4}, one[] = {1, 1}, two[] = {2};
    static float x[4 * 2 * 8], out[4 * 2 * 8];
    int32_t type = 0;
    infiniopFlashAttentionDescriptor_t desc;
    infiniopTensorDescriptor_t t, i32, m, scalar, single, pair, none;
    infiniopHandle_t h;
    infiniStatus_t gone;
    size_t bytes = 0;
    EXPECT(SUCCESS, infiniopCreateHandle(&h, INFINI_DEVICE_CPU, 0));
    EXPECT(SUCCESS, infiniopCreateTensorDescriptor(&t, 4, shape, NULL, INFINI_DTYPE_F32));
    EXPECT(SUCCESS, infiniopCreateTensorDescriptor(&i32, 4, shape, NULL, INFINI_DTYPE_I32));
    EXPECT(SUCCESS, infiniopCreateTensorDescriptor(&m, 2, mask, NULL, INFINI_DTYPE_U8));
    EXPECT(SUCCESS, infiniopCreateTensorDescriptor(&scalar, 0, NULL, NULL, INFINI_DTYPE_I32));
    EXPECT(SUCCESS, infiniopCreateTensorDescriptor(&none, 0, NULL, NULL, INFINI_DTYPE_F32));
    EXPECT(SUCCESS, infiniopCreateTensorDescriptor(&single, 2, one, NULL, INFINI_DTYPE_I32));
    EXPECT(SUCCESS, infiniopCreateTensorDescriptor(&pair, 1, two, NULL, INFINI_DTYPE_I32));
#define CREATE(...) infiniopCreateFlashAttentionDescriptor(__VA_ARGS__)
    EXPECT(NULL_POINTER, CREATE(NULL, &desc, t, t, t, t, m, scalar));
    EXPECT(NULL_POINTER, CREATE(h, NULL, t, t, t, t, m, scalar));
    EXPECT(NULL_POINTER, CREATE(h, &desc, NULL, t, t, t, m, scalar));
    EXPECT(NULL_POINTER, CREATE(h, &desc, t, t, t, t, m, NULL));
    EXPECT(BAD_TENSOR_DTYPE, CREATE(h, &desc, i32, i32, i32, i32, m, scalar));
    EXPECT(BAD_TENSOR_DTYPE, CREATE(h, &desc, t, t, t, t, m, t));
    EXPECT(BAD_TENSOR_DTYPE, CREATE(h, &desc, t, t, t, t, t, scalar));
    EXPECT(BAD_TENSOR_SHAPE, CREATE(h, &desc, t, t, t, t, m, pair));
    EXPECT(BAD_TENSOR_DTYPE, CREATE(h, &desc, t, t, t, m, m, scalar));
    EXPECT(BAD_TENSOR_SHAPE, CREATE(h, &desc, t, t, t, none, m, scalar));
    assert_null(desc);
    EXPECT(SUCCESS, CREATE(h, &desc, t, t, t, t, NULL, single));
    EXPECT(NULL_POINTER, infiniopGetFlashAttentionWorkspaceSize(NULL, &bytes));
    EXPECT(NULL_POINTER, infiniopGetFlashAttentionWorkspaceSize(desc, NULL));
    EXPECT(SUCCESS, infiniopGetFlashAttentionWorkspaceSize(desc, &bytes));
    void *w = workspace_alloc(bytes);
#define RUN(desc, w, bytes, type)                                                                  \
    infiniopFlashAttention(desc, w, bytes, out, x, x, x, NULL, type, NULL)
    EXPECT(SUCCESS, RUN(desc, w, bytes, &type));
    EXPECT(NULL_POINTER, RUN(NULL, w, bytes, &type));
    EXPECT(NULL_POINTER, RUN(desc, w, bytes, NULL));
    EXPECT(NULL_POINTER, RUN(desc, NULL, bytes, &type));
    EXPECT(INSUFFICIENT_WORKSPACE, RUN(desc, w, bytes - 1, &type));
    type = 1; /* created without a mask descriptor */
    EXPECT(BAD_PARAM, RUN(desc, w, bytes, &type));
    type = 4;
    EXPECT(BAD_PARAM, RUN(desc, w, bytes, &type));
    type = -1;
    EXPECT(BAD_PARAM, RUN(desc, w, bytes, &type));
    gone = infiniopDestroyFlashAttentionDescriptor(desc);
    EXPECT(SUCCESS, gone);
    EXPECT(SUCCESS, CREATE(h, &desc, t, t, t, t, m, single));
    type = 1; /* "mask must not be null then" */
    EXPECT(NULL_POINTER, RUN(desc, w, bytes, &type));
    gone = infiniopDestroyFlashAttentionDescriptor(desc);
    EXPECT(SUCCESS, gone);
    EXPECT(SUCCESS, infiniopDestroyFlashAttentionDescriptor(NULL));
    workspace_free(w);
    infiniopTensorDescriptor_t all[] = {t, i32, m, scalar, single, pair, none};
    for (int n = 0; n < 7; n++)
        EXPECT(SUCCESS, infiniopDestroyTensorDescriptor(all[n]));
    EXPECT(SUCCESS, infiniopDestroyHandle(h));
}
