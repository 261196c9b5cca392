/* SPDX-License-Identifier: MIT
 *
 * operator.c: create checks and plans, run fills in pointers and starts the kernel.
 *
 * All that a kernel wants to know is an AttnArgs. create fills it once, except for the addresses;
 * run copies it to its own stack and adds those. So run writes nothing that another thread reads,
 * and there is nothing left in it to allocate.
 *
 * A kernel always writes lse and reads its mask without gaps. Where the caller wants no lse, or has
 * a mask with a row stride of its own, the workspace has room for them.
 *
 * Interface: flash_attention_create, flash_attention_workspace_size, flash_attention_run,
 * flash_attention_destroy (flash_attention_op.h).
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attention/forward/flash_library.h"
#include "op_internal.h"

typedef FlashAttentionStatus Status;

/* What create was given, in an order that a loop can walk. */
enum { OUT, Q, K, V, MASK, TENSORS };

static Status first_of(const FlashAttentionTensor *const t[TENSORS],
                       Status (*check)(const FlashAttentionTensor *))
{
    Status status = FLASH_ATTENTION_SUCCESS;
    for (int n = 0; n < TENSORS && status == FLASH_ATTENTION_SUCCESS; n++)
        if (t[n])
            status = check(t[n]);
    return status;
}

static Status check_dtypes(const FlashAttentionTensor *const t[TENSORS])
{
    const Status status = first_of(t, op_check_dtype);
    if (status != FLASH_ATTENTION_SUCCESS)
        return status;
    if (t[Q]->dtype > FLASH_ATTENTION_BF16 || t[OUT]->dtype != t[Q]->dtype ||
        t[K]->dtype != t[Q]->dtype || t[V]->dtype != t[Q]->dtype ||
        (t[MASK] && t[MASK]->dtype != FLASH_ATTENTION_U8 && t[MASK]->dtype != FLASH_ATTENTION_BOOL))
        return FLASH_ATTENTION_BAD_TENSOR_DTYPE;
    return FLASH_ATTENTION_SUCCESS;
}

/* How the shapes must fit together; on success *shape has what they say. */
static Status check_shapes(const FlashAttentionTensor *const t[TENSORS], AttnShape *shape)
{
    const Status status = first_of(t, op_check_shape);
    const int n = t[Q]->ndim;
    if (status != FLASH_ATTENTION_SUCCESS)
        return status;
    if (n < 3 || t[OUT]->ndim != n || t[K]->ndim != n || t[V]->ndim != n ||
        (t[MASK] && t[MASK]->ndim != 2))
        return FLASH_ATTENTION_BAD_TENSOR_SHAPE;
    const Tensor q = op_view(t[Q]), k = op_view(t[K]), v = op_view(t[V]), out = op_view(t[OUT]);
    *shape = (AttnShape){q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1], q.shape[3]};
    if (memcmp(out.shape, q.shape, sizeof q.shape) != 0 ||
        memcmp(v.shape, k.shape, sizeof k.shape) != 0 || k.shape[0] != shape->B ||
        k.shape[3] != shape->d || shape->H % shape->Hkv != 0 ||
        (t[MASK] && (t[MASK]->shape[0] != shape->Nq || t[MASK]->shape[1] != shape->Nk)))
        return FLASH_ATTENTION_BAD_TENSOR_SHAPE;
    return FLASH_ATTENTION_SUCCESS;
}

static Status check_strides(const FlashAttentionTensor *const t[TENSORS])
{
    const Status status = first_of(t, op_check_strides);
    const FlashAttentionTensor *mask = t[MASK];
    if (status != FLASH_ATTENTION_SUCCESS)
        return status;
    for (int n = 0; n < TENSORS; n++)
        if (t[n] && t[n]->shape[t[n]->ndim - 1] > 1 && t[n]->strides[t[n]->ndim - 1] != 1)
            return FLASH_ATTENTION_BAD_TENSOR_STRIDES;
    const Tensor out = op_view(t[OUT]);
    if (op_overlaps_itself(&out))
        return FLASH_ATTENTION_BAD_TENSOR_STRIDES;
    if (mask && mask->shape[0] > 1 && mask->strides[0] != 0 &&
        (mask->strides[0] < mask->shape[1] || mask->strides[0] > INT32_MAX))
        return FLASH_ATTENTION_BAD_TENSOR_STRIDES;
    return FLASH_ATTENTION_SUCCESS;
}

/* Kernels count rows of a head and blocks of a grid in 32 bits; no tile has fewer than 16 rows. */
static Status check_device(const FlashAttentionHandle *handle, const AttnShape *n, int dtype)
{
    const int64_t most_rows = INT32_MAX - 4096;
    if (handle->device == FLASH_ATTENTION_CPU)
        return n->d > OP_MAX_DIM_CPU ? FLASH_ATTENTION_NOT_IMPLEMENTED : FLASH_ATTENTION_SUCCESS;
    if (n->d > OP_MAX_DIM_CUDA || n->Nq > most_rows || n->Nk > most_rows ||
        n->B * n->H > INT32_MAX / (n->Nq / 16 + 1))
        return FLASH_ATTENTION_NOT_IMPLEMENTED;
    return op_cuda_compiled_for(handle->arch, dtype)
               ? FLASH_ATTENTION_SUCCESS
               : FLASH_ATTENTION_DEVICE_ARCHITECTURE_NOT_SUPPORTED;
}

/* The mode of a processor belongs to a thread, so every run asks. */
static Status check_mode(FlashAttentionDevice device)
{
    volatile float least = FLT_MIN;
    if (device != FLASH_ATTENTION_CPU || least * 0.5f > 0.0f)
        return FLASH_ATTENTION_SUCCESS;
    fputs("flash_attention: this thread takes numbers below 2^-126 for zero (linked fast math, or "
          "a library that set this): small f16 and bf16 numbers would be lost\n",
          stderr);
    return FLASH_ATTENTION_NOT_IMPLEMENTED;
}

static size_t align_up(size_t bytes, size_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static size_t alignment_of(const FlashAttention *op)
{
    return op->device == FLASH_ATTENTION_CPU ? OP_CPU_ALIGNMENT : OP_CUDA_ALIGNMENT;
}

static void plan_workspace(FlashAttention *op)
{
    const AttnShape *n = &op->args.shape;
    const size_t kernel_bytes = op->device == FLASH_ATTENTION_CPU
                                    ? flash_simd_workspace_bytes(n, op->args.threads)
                                    : op_cuda_workspace_bytes(op->device_id, n, op->args.Q.dtype);
    const size_t lse_bytes = (size_t)(n->B * n->H * n->Nq) * sizeof(float);
    op->lse_at = align_up(kernel_bytes, alignment_of(op));
    op->mask_at = align_up(op->lse_at + lse_bytes, alignment_of(op));
    op->workspace_bytes =
        op->mask_at + (op->copies_mask ? (size_t)(n->Nq * n->Nk) : 0) + alignment_of(op) - 1;
}

/* Keys stand at 0, 1 .. Nk-1. The mask type says where the queries stand: with the first key, or so
 * that the last query stands with the last key. */
static void place_positions(FlashAttention *op, FlashAttentionMask mask_type)
{
    const AttnShape *n = &op->args.shape;
    const int64_t first = mask_type == FLASH_ATTENTION_MASK_CAUSAL_UPPER_LEFT ? 0 : n->Nk - n->Nq;
    op->segments[0] = (AttnSegment){0, n->Nq, 0, first, 1};
    op->segments[1] = (AttnSegment){0, n->Nk, 0, 0, 1};
    op->args.rule = (AttnRule){-1, -1};
    if (mask_type == FLASH_ATTENTION_MASK_CAUSAL_UPPER_LEFT ||
        mask_type == FLASH_ATTENTION_MASK_CAUSAL_LOWER_RIGHT)
        op->args.rule.right = 0;
}

/* The positions where the kernel can read them: in the operator itself, or on the device. */
static Status publish_positions(FlashAttention *op)
{
    const AttnSegment *segments = op->segments;
    if (op->device == FLASH_ATTENTION_CUDA) {
        op->segments_dev = op_cuda_upload(op->device_id, op->segments, sizeof op->segments);
        if (!op->segments_dev)
            return FLASH_ATTENTION_INTERNAL_ERROR;
        segments = (const AttnSegment *)op->segments_dev;
    }
    op->args.positions_q = (AttnPositions){segments, 1, op->segments};
    op->args.positions_k = (AttnPositions){segments + 1, 1, op->segments + 1};
    return FLASH_ATTENTION_SUCCESS;
}

/* Everything from checked descriptors. */
static void fill_operator(FlashAttention *op, const FlashAttentionHandle *handle,
                          const FlashAttentionTensor *const t[TENSORS], const AttnShape *shape,
                          FlashAttentionMask mask_type, float scale)
{
    op->device = handle->device;
    op->device_id = handle->device_id;
    op->args.shape = *shape;
    op->args.scale = scale;
    op->args.threads = handle->threads;
    op->args.Q = op_view(t[Q]);
    op->args.K = op_view(t[K]);
    op->args.V = op_view(t[V]);
    op->args.O = op_view(t[OUT]);
    op->full_mask = t[MASK] != NULL;
    if (op->full_mask) {
        op->mask_stride = t[MASK]->shape[0] == 1 ? shape->Nk : t[MASK]->strides[0];
        op->copies_mask = op->mask_stride != shape->Nk;
    }
    place_positions(op, mask_type);
    plan_workspace(op);
}

FlashAttentionStatus flash_attention_create(
    const FlashAttentionHandle *handle, FlashAttention **op, const FlashAttentionTensor *out,
    const FlashAttentionTensor *q, const FlashAttentionTensor *k, const FlashAttentionTensor *v,
    const FlashAttentionTensor *mask, FlashAttentionMask mask_type, const float *scale)
{
    const FlashAttentionTensor *const t[TENSORS] = {
        out, q, k, v, mask_type == FLASH_ATTENTION_MASK_FULL ? mask : NULL};
    AttnShape shape;
    Status status;
    if (op)
        *op = NULL;
    if (!op || !handle || !out || !q || !k || !v ||
        (mask_type == FLASH_ATTENTION_MASK_FULL && !mask))
        return FLASH_ATTENTION_NULL_POINTER;
    if ((int)mask_type < 0 || (int)mask_type > 3 || (scale && !isfinite(*scale)))
        return FLASH_ATTENTION_BAD_PARAM;
    if ((status = check_dtypes(t)) != FLASH_ATTENTION_SUCCESS ||
        (status = check_shapes(t, &shape)) != FLASH_ATTENTION_SUCCESS ||
        (status = check_strides(t)) != FLASH_ATTENTION_SUCCESS ||
        (status = check_device(handle, &shape, (int)q->dtype)) != FLASH_ATTENTION_SUCCESS ||
        (status = check_mode(handle->device)) != FLASH_ATTENTION_SUCCESS)
        return status;

    FlashAttention *made = (FlashAttention *)op_host_alloc(sizeof *made);
    if (!made)
        return FLASH_ATTENTION_INTERNAL_ERROR;
    fill_operator(made, handle, t, &shape, mask_type, scale ? *scale : 1 / sqrtf((float)shape.d));
    status = publish_positions(made);
    if (status != FLASH_ATTENTION_SUCCESS) {
        op_host_free(made);
        return status;
    }
    *op = made;
    return FLASH_ATTENTION_SUCCESS;
}

FlashAttentionStatus flash_attention_workspace_size(const FlashAttention *op, size_t *size)
{
    if (!op || !size)
        return FLASH_ATTENTION_NULL_POINTER;
    *size = op->workspace_bytes;
    return FLASH_ATTENTION_SUCCESS;
}

/* --- run ---------------------------------------------------------------------------------------*/

static int is_aligned(const void *p, size_t alignment)
{
    return (uintptr_t)p % alignment == 0;
}

static Status check_pointers(const FlashAttention *op, const AttnArgs *a, const void *workspace)
{
    const size_t element = op_dtype_bytes((FlashAttentionDtype)a->Q.dtype);
    const void *const all[] = {workspace, a->O.data, a->Q.data, a->K.data,
                               a->V.data, a->lse,    a->mask};
    if (!is_aligned(a->lse, sizeof(float)))
        return FLASH_ATTENTION_BAD_PARAM;
    for (int n = 1; n <= 4; n++)
        if (!is_aligned(all[n], element))
            return FLASH_ATTENTION_BAD_PARAM;
    for (size_t n = 0; n < sizeof all / sizeof *all && op->device == FLASH_ATTENTION_CUDA; n++)
        if (all[n] && !op_cuda_owns(op->device_id, all[n]))
            return FLASH_ATTENTION_BAD_PARAM;
    return FLASH_ATTENTION_SUCCESS;
}

static Status start(const FlashAttention *op, AttnArgs *a, unsigned char *workspace)
{
    uint8_t *copy = op->copies_mask ? workspace + op->mask_at : NULL;
    const uint8_t *mask = a->mask;
    const int64_t Nq = a->shape.Nq, Nk = a->shape.Nk;
    if (copy)
        a->mask = copy;
    if (op->device == FLASH_ATTENTION_CUDA) {
        const OpCudaRun run = {a, workspace, copy, mask, op->mask_stride};
        return op_cuda_run(op->device_id, &run) == 0 ? FLASH_ATTENTION_SUCCESS
                                                     : FLASH_ATTENTION_INTERNAL_ERROR;
    }
    for (int64_t i = 0; copy && i < Nq; i++)
        memcpy(copy + i * Nk, mask + i * op->mask_stride, (size_t)Nk);
    return flash_simd_run(a, NULL, workspace) == ATTN_OK ? FLASH_ATTENTION_SUCCESS
                                                         : FLASH_ATTENTION_INTERNAL_ERROR;
}

FlashAttentionStatus flash_attention_run(const FlashAttention *op, void *workspace,
                                         size_t workspace_size, void *out, const void *q,
                                         const void *k, const void *v, const void *mask, float *lse,
                                         void *stream)
{
    if (!op || !workspace || !out || !q || !k || !v || (op->full_mask && !mask))
        return FLASH_ATTENTION_NULL_POINTER;
    if (workspace_size < op->workspace_bytes)
        return FLASH_ATTENTION_INSUFFICIENT_WORKSPACE;
    AttnArgs a = op->args;
    a.O.data = out;
    a.Q.data = (void *)q;
    a.K.data = (void *)k;
    a.V.data = (void *)v;
    a.mask = op->full_mask ? (const uint8_t *)mask : NULL;
    a.lse = lse;
    a.stream = op->device == FLASH_ATTENTION_CUDA ? stream : NULL;
    Status status = check_pointers(op, &a, workspace);
    if (status != FLASH_ATTENTION_SUCCESS ||
        (status = check_mode(op->device)) != FLASH_ATTENTION_SUCCESS)
        return status;
    unsigned char *aligned = (unsigned char *)workspace + -(uintptr_t)workspace % alignment_of(op);
    if (!lse)
        a.lse = (float *)(aligned + op->lse_at);
    return start(op, &a, aligned);
}

FlashAttentionStatus flash_attention_destroy(FlashAttention *op)
{
    int released = 0;
    if (op && op->device == FLASH_ATTENTION_CUDA)
        released = op_cuda_release(op->device_id, op->segments_dev);
    op_host_free(op);
    return released == 0 ? FLASH_ATTENTION_SUCCESS : FLASH_ATTENTION_INTERNAL_ERROR;
}
