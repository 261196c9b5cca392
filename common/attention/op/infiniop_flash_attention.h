/* SPDX-License-Identifier: MIT
 *
 * infiniop_flash_attention.h: the operator under the names of infiniop's FlashAttention document
 * (an early draft of InfiniTensor's): calls written after it compile and run. C11 and C++17.
 *
 * The functions are static inline around flash_attention_op.h: the library exports none of these
 * names, so it can be linked into a program beside InfiniCore itself.
 *
 * What that document gets wrong, and what holds here:
 * 1. "N_q / N_kv = 1 is MQA": that is multi-head attention. MQA is N_kv = 1 with more query heads.
 * 2. V is missing: `attention_out` is the softmax, out[i] = e^(S_i - m_i). It is
 *    sum_i e^(S_i - m_i) V_i, and a tile's part is added to out, not put beside it.
 * 3. exp_sum_i is added as it is. It belongs to the maximum m_i of its own tile:
 *    exp_sum = exp_sum e^(m_old - m_new) + exp_sum_i e^(m_i - m_new).
 * 4. "Adds a position encoding to the scores": no part of attention. "Mainly the last softmax": the
 *    gain comes from fusing all four steps, so that no N x N matrix is written.
 * 5. k and v "of the same shape as out": of out's batch and head_dim; seq_len_kv and num_heads_kv
 *    are their own, as the document's list says itself.
 * 6. A mask "of two or one dimensions": what one would mean is not told. Two here; a row for all
 *    queries has row stride 0.
 * 7. mask_type is a pointer and has a tensor descriptor. Here: the address of one int32 in HOST
 *    memory, whatever the device; its descriptor has dtype I32 and one element.
 * 8. mask and mask_type are not const, `Destory` is misspelt, the scale is not said (1/sqrt(d)),
 *    nor what a row without keys gives (0), and NULL_POINTER, BAD_PARAM and INTERNAL_ERROR are
 *    missing from lists of statuses although NULL can be passed and memory can be short.
 *
 * The document shows a handle and tensor descriptors without saying how they are made. Those
 * functions here have InfiniCore's names; the handle takes its device as an argument.
 * The rest (shapes, strides, alignment, threads, memory) is as in flash_attention_op.h.
 *
 * Interface:
 * - infiniStatus_t, infiniDevice_t, infiniDtype_t: the numbers of InfiniCore.
 * - infiniopCreateHandle, infiniopCreateTensorDescriptor and their Destroy.
 * - infiniopCreateFlashAttentionDescriptor, infiniopGetFlashAttentionWorkspaceSize,
 *   infiniopFlashAttention, infiniopDestroyFlashAttentionDescriptor (deprecated: Destory).
 */
#ifndef INFINIOP_FLASH_ATTENTION_H
#define INFINIOP_FLASH_ATTENTION_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "flash_attention_op.h"

typedef enum infiniStatus_t {
    INFINI_STATUS_SUCCESS = 0,
    INFINI_STATUS_INTERNAL_ERROR = 1,
    INFINI_STATUS_NOT_IMPLEMENTED = 2,
    INFINI_STATUS_BAD_PARAM = 3,
    INFINI_STATUS_NULL_POINTER = 4,
    INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED = 5,
    INFINI_STATUS_DEVICE_NOT_FOUND = 6,
    INFINI_STATUS_DEVICE_NOT_INITIALIZED = 7,
    INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8,
    INFINI_STATUS_BAD_TENSOR_DTYPE = 10,
    INFINI_STATUS_BAD_TENSOR_SHAPE = 11,
    INFINI_STATUS_BAD_TENSOR_STRIDES = 12,
    INFINI_STATUS_INSUFFICIENT_WORKSPACE = 13
} infiniStatus_t;

typedef enum infiniDevice_t { INFINI_DEVICE_CPU = 0, INFINI_DEVICE_NVIDIA = 1 } infiniDevice_t;

/* Those of InfiniCore's dtypes that mean something here. */
typedef enum infiniDtype_t {
    INFINI_DTYPE_BOOL = 2,
    INFINI_DTYPE_I32 = 5,
    INFINI_DTYPE_U8 = 7,
    INFINI_DTYPE_F16 = 12,
    INFINI_DTYPE_F32 = 13,
    INFINI_DTYPE_BF16 = 19
} infiniDtype_t;

typedef FlashAttentionHandle *infiniopHandle_t;
typedef struct InfiniopTensorDescriptor *infiniopTensorDescriptor_t;
typedef struct InfiniopFlashAttentionDescriptor *infiniopFlashAttentionDescriptor_t;

struct InfiniopTensorDescriptor {
    infiniDtype_t dtype;
    size_t ndim; /* 0 .. 4 */
    FlashAttentionTensor tensor;
};

/* The mask type comes with each call, ours is fixed at creation: one operator for each type. */
struct InfiniopFlashAttentionDescriptor {
    FlashAttention *by_mask_type[4]; /* [1] is NULL without a mask descriptor */
};

/* Statuses: those of flash_attention_create_handle. */
static inline infiniStatus_t infiniopCreateHandle(infiniopHandle_t *handle_ptr,
                                                  infiniDevice_t device, int device_id)
{
    return (infiniStatus_t)flash_attention_create_handle(handle_ptr, (FlashAttentionDevice)device,
                                                         device_id);
}

static inline infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle)
{
    return (infiniStatus_t)flash_attention_destroy_handle(handle);
}

/* shape and strides [ndim], strides in elements; strides NULL: contiguous. ndim 0: one element, as
 * mask_type is. Statuses: SUCCESS, INTERNAL_ERROR, NULL_POINTER, BAD_TENSOR_DTYPE,
 * BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES. */
static inline infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t *desc_ptr,
                                                            size_t ndim, const size_t *shape,
                                                            const ptrdiff_t *strides,
                                                            infiniDtype_t dtype)
{
    struct InfiniopTensorDescriptor made;
    FlashAttentionDtype ours = FLASH_ATTENTION_F32; /* of the size of I32 */
    FlashAttentionStatus status;
    int64_t sizes[4] = {1, 1, 1, 1}, steps[4] = {1, 1, 1, 1};
    size_t n;
    if (!desc_ptr || (ndim > 0 && !shape))
        return INFINI_STATUS_NULL_POINTER;
    *desc_ptr = NULL;
    if (dtype == INFINI_DTYPE_F16)
        ours = FLASH_ATTENTION_F16;
    else if (dtype == INFINI_DTYPE_BF16)
        ours = FLASH_ATTENTION_BF16;
    else if (dtype == INFINI_DTYPE_U8)
        ours = FLASH_ATTENTION_U8;
    else if (dtype == INFINI_DTYPE_BOOL)
        ours = FLASH_ATTENTION_BOOL;
    else if (dtype != INFINI_DTYPE_F32 && dtype != INFINI_DTYPE_I32)
        return INFINI_STATUS_BAD_TENSOR_DTYPE;
    for (n = 0; n < ndim && n < 4; n++) {
        sizes[n] = shape[n] > (size_t)INT64_MAX ? INT64_MAX : (int64_t)shape[n];
        steps[n] = strides ? (int64_t)strides[n] : 1;
    }
    status = flash_attention_describe(&made.tensor, ours,
                                      ndim > 4   ? 5
                                      : ndim < 1 ? 1
                                                 : (int)ndim,
                                      sizes, strides ? steps : NULL);
    if (status != FLASH_ATTENTION_SUCCESS)
        return (infiniStatus_t)status;
    made.dtype = dtype;
    made.ndim = ndim;
    *desc_ptr = (infiniopTensorDescriptor_t)malloc(sizeof made);
    if (!*desc_ptr)
        return INFINI_STATUS_INTERNAL_ERROR;
    **desc_ptr = made;
    return INFINI_STATUS_SUCCESS;
}

static inline infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc)
{
    free(desc);
    return INFINI_STATUS_SUCCESS;
}

/* NULL is allowed. Statuses: SUCCESS, INTERNAL_ERROR. */
static inline infiniStatus_t
infiniopDestroyFlashAttentionDescriptor(infiniopFlashAttentionDescriptor_t desc)
{
    infiniStatus_t result = INFINI_STATUS_SUCCESS;
    int n;
    for (n = 0; desc && n < 4; n++)
        if (flash_attention_destroy(desc->by_mask_type[n]) != FLASH_ATTENTION_SUCCESS)
            result = INFINI_STATUS_INTERNAL_ERROR;
    free(desc);
    return result;
}

/* The document's spelling. */
#if defined(__GNUC__)
__attribute__((deprecated("spelt infiniopDestroyFlashAttentionDescriptor")))
#endif
static inline infiniStatus_t
infiniopDestoryFlashAttentionDescriptor(infiniopFlashAttentionDescriptor_t desc)
{
    return infiniopDestroyFlashAttentionDescriptor(desc);
}

/* mask_desc may be NULL; then a run with mask type 1 is BAD_PARAM. mask_type_desc: one I32.
 * Statuses: those of flash_attention_create. */
static inline infiniStatus_t infiniopCreateFlashAttentionDescriptor(
    infiniopHandle_t handle, infiniopFlashAttentionDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t out_desc, infiniopTensorDescriptor_t q_desc,
    infiniopTensorDescriptor_t k_desc, infiniopTensorDescriptor_t v_desc,
    infiniopTensorDescriptor_t mask_desc, infiniopTensorDescriptor_t mask_type_desc)
{
    const infiniopTensorDescriptor_t all[] = {out_desc, q_desc, k_desc, v_desc, mask_desc};
    FlashAttentionStatus status = FLASH_ATTENTION_SUCCESS;
    infiniopFlashAttentionDescriptor_t desc;
    size_t n;
    if (desc_ptr)
        *desc_ptr = NULL;
    if (!desc_ptr || !handle || !out_desc || !q_desc || !k_desc || !v_desc || !mask_type_desc)
        return INFINI_STATUS_NULL_POINTER;
    for (n = 0; n < 5; n++)
        if (all[n] && all[n]->dtype == INFINI_DTYPE_I32)
            return INFINI_STATUS_BAD_TENSOR_DTYPE;
    if (mask_type_desc->dtype != INFINI_DTYPE_I32)
        return INFINI_STATUS_BAD_TENSOR_DTYPE;
    for (n = 0; n < mask_type_desc->ndim; n++)
        if (mask_type_desc->tensor.shape[n] != 1)
            return INFINI_STATUS_BAD_TENSOR_SHAPE;
    desc = (infiniopFlashAttentionDescriptor_t)calloc(1, sizeof *desc);
    if (!desc)
        return INFINI_STATUS_INTERNAL_ERROR;
    for (n = 0; n < 4 && status == FLASH_ATTENTION_SUCCESS; n++)
        if (n != FLASH_ATTENTION_MASK_FULL || mask_desc)
            status = flash_attention_create(handle, &desc->by_mask_type[n], &out_desc->tensor,
                                            &q_desc->tensor, &k_desc->tensor, &v_desc->tensor,
                                            mask_desc ? &mask_desc->tensor : NULL,
                                            (FlashAttentionMask)n, NULL);
    if (status == FLASH_ATTENTION_SUCCESS)
        *desc_ptr = desc;
    else
        (void)infiniopDestroyFlashAttentionDescriptor(desc);
    return (infiniStatus_t)status;
}

/* The largest of the mask types. Statuses: SUCCESS, NULL_POINTER. */
static inline infiniStatus_t
infiniopGetFlashAttentionWorkspaceSize(infiniopFlashAttentionDescriptor_t desc, size_t *size)
{
    size_t one, most = 0;
    int n;
    if (!desc || !size)
        return INFINI_STATUS_NULL_POINTER;
    for (n = 0; n < 4; n++)
        if (desc->by_mask_type[n] &&
            flash_attention_workspace_size(desc->by_mask_type[n], &one) == FLASH_ATTENTION_SUCCESS)
            most = one > most ? one : most;
    *size = most;
    return INFINI_STATUS_SUCCESS;
}

/* mask_type: address of an int32 in host memory, 0 .. 3 (BAD_PARAM otherwise).
 * Statuses: those of flash_attention_run. */
static inline infiniStatus_t infiniopFlashAttention(infiniopFlashAttentionDescriptor_t desc,
                                                    void *workspace, size_t workspace_size,
                                                    void *out, const void *q, const void *k,
                                                    const void *v, const void *mask,
                                                    const void *mask_type, void *stream)
{
    int32_t type;
    if (!desc || !mask_type)
        return INFINI_STATUS_NULL_POINTER;
    type = *(const int32_t *)mask_type;
    if (type < 0 || type > 3 || !desc->by_mask_type[type])
        return INFINI_STATUS_BAD_PARAM;
    return (infiniStatus_t)flash_attention_run(desc->by_mask_type[type], workspace, workspace_size,
                                               out, q, k, v, mask, NULL, stream);
}

#endif
