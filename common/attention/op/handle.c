/* SPDX-License-Identifier: MIT
 *
 * handle.c: which device an operator is for, and statuses in words.
 *
 * Interface: flash_attention_create_handle, flash_attention_set_threads,
 * flash_attention_destroy_handle, flash_attention_status_string (flash_attention_op.h).
 */
#include "op_internal.h"

const char *flash_attention_status_string(FlashAttentionStatus status)
{
    switch (status) {
    case FLASH_ATTENTION_SUCCESS:
        return "success";
    case FLASH_ATTENTION_INTERNAL_ERROR:
        return "internal error";
    case FLASH_ATTENTION_NOT_IMPLEMENTED:
        return "not implemented";
    case FLASH_ATTENTION_BAD_PARAM:
        return "bad parameter";
    case FLASH_ATTENTION_NULL_POINTER:
        return "null pointer";
    case FLASH_ATTENTION_DEVICE_TYPE_NOT_SUPPORTED:
        return "device type not supported";
    case FLASH_ATTENTION_DEVICE_NOT_FOUND:
        return "device not found";
    case FLASH_ATTENTION_DEVICE_NOT_INITIALIZED:
        return "device not initialized";
    case FLASH_ATTENTION_DEVICE_ARCHITECTURE_NOT_SUPPORTED:
        return "device architecture not supported";
    case FLASH_ATTENTION_BAD_TENSOR_DTYPE:
        return "bad tensor dtype";
    case FLASH_ATTENTION_BAD_TENSOR_SHAPE:
        return "bad tensor shape";
    case FLASH_ATTENTION_BAD_TENSOR_STRIDES:
        return "bad tensor strides";
    case FLASH_ATTENTION_INSUFFICIENT_WORKSPACE:
        return "insufficient workspace";
    }
    return "unknown status";
}

static FlashAttentionStatus find_gpu(FlashAttentionHandle *found)
{
    const int count = op_cuda_count();
    if (count < 0)
        return FLASH_ATTENTION_DEVICE_TYPE_NOT_SUPPORTED;
    if (found->device_id < 0 || found->device_id >= count)
        return FLASH_ATTENTION_DEVICE_NOT_FOUND;
    found->arch = op_cuda_arch(found->device_id);
    if (!op_cuda_compiled_for(found->arch, -1))
        return FLASH_ATTENTION_DEVICE_ARCHITECTURE_NOT_SUPPORTED;
    return FLASH_ATTENTION_SUCCESS;
}

FlashAttentionStatus flash_attention_create_handle(FlashAttentionHandle **handle,
                                                   FlashAttentionDevice device, int device_id)
{
    FlashAttentionHandle found = {.device = device, .device_id = device_id, .threads = 1};
    FlashAttentionStatus status = FLASH_ATTENTION_SUCCESS;
    if (!handle)
        return FLASH_ATTENTION_NULL_POINTER;
    *handle = NULL;
    if (device == FLASH_ATTENTION_CUDA)
        status = find_gpu(&found);
    else if (device != FLASH_ATTENTION_CPU)
        status = FLASH_ATTENTION_DEVICE_TYPE_NOT_SUPPORTED;
    else if (device_id != 0)
        status = FLASH_ATTENTION_DEVICE_NOT_FOUND;
    else
        found.threads = op_default_threads();
    if (status != FLASH_ATTENTION_SUCCESS)
        return status;
    *handle = (FlashAttentionHandle *)op_host_alloc(sizeof **handle);
    if (!*handle)
        return FLASH_ATTENTION_INTERNAL_ERROR;
    **handle = found;
    return FLASH_ATTENTION_SUCCESS;
}

FlashAttentionStatus flash_attention_set_threads(FlashAttentionHandle *handle, int threads)
{
    if (!handle)
        return FLASH_ATTENTION_NULL_POINTER;
    if (handle->device != FLASH_ATTENTION_CPU)
        return FLASH_ATTENTION_DEVICE_TYPE_NOT_SUPPORTED;
    if (threads < 1 || threads > OP_MAX_THREADS)
        return FLASH_ATTENTION_BAD_PARAM;
    handle->threads = threads;
    return FLASH_ATTENTION_SUCCESS;
}

FlashAttentionStatus flash_attention_destroy_handle(FlashAttentionHandle *handle)
{
    op_host_free(handle);
    return FLASH_ATTENTION_SUCCESS;
}
