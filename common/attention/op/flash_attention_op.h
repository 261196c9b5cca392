/* SPDX-License-Identifier: MIT
 *
 * flash_attention_op.h: flash attention as an operator of a library, for programs that know nothing
 * of this suite. C11 and C++17; needs exact_math.h beside it, and no other header of ours.
 *
 * A kernel wants to be told many things that do not change from call to call: sizes, strides,
 * dtype, mask. Checking them costs time, some of them need memory on the device, and a mistake
 * should show before the first batch and not inside a kernel. So an operator library splits a call
 * in two:
 *
 *     once         handle       which device
 *                  descriptors  dtype, shape and strides of out, q, k, v (and mask): no data yet
 *                  create       checks everything, plans, allocates what the operator needs
 *                  workspace    how much scratch memory a run takes; the caller owns it
 *     many times   run          pointers in, work queued. Nothing is allocated, nothing waits
 *     once         destroy
 *
 * What is computed, for each batch b, query head h and query i (kv head h' = h / (H / Hkv)):
 *
 *     s_j = scale * q[b][i][h] . k[b][j][h']      for the keys j that query i may see
 *     lse[b][h][i] = ln sum_j exp(s_j)            out[b][i][h] = sum_j exp(s_j - lse) v[b][j][h']
 *
 * A query that sees no key gets out = 0 and lse = -inf, never NaN. Inside, everything is float32.
 * NaN and infinity reach every query that sees their key. A key's v must be finite even where it is
 * hidden: the queries of a tile share its keys, those that do not see one multiply its v by 0, and
 * 0 x NaN is NaN. There out is NaN in that channel, on every device (PyTorch's is, too); lse never.
 * So padding of k may hold anything, padding of v zeros.
 *
 * Shapes: q, out ((B,) Nq, H, d);  k, v ((B,) Nk, Hkv, d);  mask (Nq, Nk);  lse [B][H][Nq] float32.
 * H must be a multiple of Hkv: H = Hkv is multi-head, Hkv = 1 multi-query, between them lies
 * grouped-query attention. 1 <= d <= 1024 on a CPU, 256 with CUDA.
 *
 * Strides count elements, as PyTorch's do (NumPy's count bytes).
 * - The last dimension is contiguous (stride 1). The others are free: BSHD, SBHD and BHSD are the
 *   same call. The stride of a dimension of size 1 does not matter.
 * - q, k and v may have stride 0 (one head or batch read again and again) and negative strides (the
 *   pointer is that of element [0][0][0][0], which then is not the lowest address).
 * - out may have negative strides, but no two of its elements may share memory. To be sure of that
 *   without long computation, each stride must pass over all that smaller strides reach.
 * - mask: row stride 0 (one row for all queries: a padding mask) or Nk .. 2^31 - 1.
 * Pointers need the alignment of one element only, and the workspace none.
 *
 * Threads: any number of operators may be created, run and destroyed at the same time. run does not
 * change the operator: several threads may run the same one, each with its own workspace and out.
 * A handle may be shared, except while set_threads or destroy_handle works on it.
 *
 * Interface:
 * - flash_attention_create_handle, ..._set_threads, ..._destroy_handle: the device.
 * - flash_attention_describe: fills and checks a FlashAttentionTensor.
 * - flash_attention_create, ..._workspace_size, ..._run, ..._destroy: the operator.
 * - flash_attention_status_string.
 */
#ifndef FLASH_ATTENTION_OP_H
#define FLASH_ATTENTION_OP_H

#include <stddef.h>
#include <stdint.h>

#include "exact_math.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are infiniop's. Each function lists what it returns; DEVICE_NOT_INITIALIZED is in no
 * list, it stands here so that the table is whole. */
typedef enum FlashAttentionStatus {
    FLASH_ATTENTION_SUCCESS = 0,
    FLASH_ATTENTION_INTERNAL_ERROR = 1,  /* memory is short, or a CUDA call failed */
    FLASH_ATTENTION_NOT_IMPLEMENTED = 2, /* right, but beyond what the kernels can do */
    FLASH_ATTENTION_BAD_PARAM = 3,
    FLASH_ATTENTION_NULL_POINTER = 4,
    FLASH_ATTENTION_DEVICE_TYPE_NOT_SUPPORTED = 5,
    FLASH_ATTENTION_DEVICE_NOT_FOUND = 6,
    FLASH_ATTENTION_DEVICE_NOT_INITIALIZED = 7,
    FLASH_ATTENTION_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8,
    FLASH_ATTENTION_BAD_TENSOR_DTYPE = 10,
    FLASH_ATTENTION_BAD_TENSOR_SHAPE = 11,
    FLASH_ATTENTION_BAD_TENSOR_STRIDES = 12,
    FLASH_ATTENTION_INSUFFICIENT_WORKSPACE = 13
} FlashAttentionStatus;

typedef enum FlashAttentionDevice {
    FLASH_ATTENTION_CPU = 0,
    FLASH_ATTENTION_CUDA = 1
} FlashAttentionDevice;

typedef enum FlashAttentionDtype {
    FLASH_ATTENTION_F32 = 0,
    FLASH_ATTENTION_F16 = 1,
    FLASH_ATTENTION_BF16 = 2,
    FLASH_ATTENTION_U8 = 3,  /* mask only: 0 = keep, anything else = masked out */
    FLASH_ATTENTION_BOOL = 4 /* mask only: one byte, false = keep, true = masked out */
} FlashAttentionDtype;

/* 1 in the mask means masked OUT. PyTorch's bool mask has the opposite meaning. */
typedef enum FlashAttentionMask {
    FLASH_ATTENTION_MASK_NONE = 0,
    FLASH_ATTENTION_MASK_FULL = 1,
    FLASH_ATTENTION_MASK_CAUSAL_UPPER_LEFT = 2, /* query i sees keys j <= i */
    FLASH_ATTENTION_MASK_CAUSAL_LOWER_RIGHT = 3 /* query i sees keys j <= i + Nk - Nq */
} FlashAttentionMask;

/* What a tensor looks like, without its data. A plain value: copy it, put it on the stack. */
typedef struct FlashAttentionTensor {
    FlashAttentionDtype dtype;
    int ndim;           /* 1 .. 4; shape[ndim] .. shape[3] are not looked at */
    int64_t shape[4];   /* outermost dimension first, each >= 1 */
    int64_t strides[4]; /* elements */
} FlashAttentionTensor;

typedef struct FlashAttentionHandle FlashAttentionHandle;
typedef struct FlashAttention FlashAttention; /* the operator */

/* "success", "bad tensor shape" ... A number that is no status: "unknown status". Never NULL. */
const char *flash_attention_status_string(FlashAttentionStatus status);

/* --- device ------------------------------------------------------------------------------------*/

/* device_id: 0 on a CPU, CUDA's number of the GPU otherwise. *handle is NULL after a failure.
 * DEVICE_TYPE_NOT_SUPPORTED: no such type, or the library was built without CUDA.
 * DEVICE_ARCHITECTURE_NOT_SUPPORTED: this GPU is older than the kernels in the library.
 * Statuses: SUCCESS, INTERNAL_ERROR, NULL_POINTER, DEVICE_TYPE_NOT_SUPPORTED, DEVICE_NOT_FOUND,
 * DEVICE_ARCHITECTURE_NOT_SUPPORTED. */
FlashAttentionStatus flash_attention_create_handle(FlashAttentionHandle **handle,
                                                   FlashAttentionDevice device, int device_id);

/* CPU threads, 1 .. 1024, that operators created from now on use; before the first call as many as
 * OpenMP would take. More than one belong to OpenMP, which creates them when an application thread
 * runs an operator for the first time, and keeps them.
 * Statuses: SUCCESS, BAD_PARAM, NULL_POINTER, DEVICE_TYPE_NOT_SUPPORTED. */
FlashAttentionStatus flash_attention_set_threads(FlashAttentionHandle *handle, int threads);

/* Operators do not need the handle that they were created with any more. NULL is allowed.
 * Statuses: SUCCESS. */
FlashAttentionStatus flash_attention_destroy_handle(FlashAttentionHandle *handle);

/* --- tensors -----------------------------------------------------------------------------------*/

/* Fills *tensor. shape [ndim]; strides [ndim] or NULL: contiguous. 1 <= ndim <= 4. A tensor has at
 * most 2^44 elements, and its bytes from lowest to highest address fit in 2^62: BAD_TENSOR_SHAPE
 * and BAD_TENSOR_STRIDES otherwise. *tensor is not touched by a call that fails. create checks all
 * of this again, so a tensor may just as well be filled in by hand.
 * Statuses: SUCCESS, NULL_POINTER, BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES. */
FlashAttentionStatus flash_attention_describe(FlashAttentionTensor *tensor,
                                              FlashAttentionDtype dtype, int ndim,
                                              const int64_t *shape, const int64_t *strides);

/* --- the operator ------------------------------------------------------------------------------*/

/* out, q, k, v: all of 3 or all of 4 dimensions, all F32, F16 or BF16. mask: U8 or BOOL, 2-D,
 * looked at only for FLASH_ATTENTION_MASK_FULL; NULL is allowed otherwise.
 * scale: NULL means 1 / sqrt(d). Any finite number is accepted, 0 and negative ones too; one so
 * large that scale * log2(e) * q overflows gives NaN.
 * Nothing is kept of the arguments but copies. *op is NULL after a failure.
 * The first mistake decides, in the order NULL, parameter, dtype, shape, strides, device.
 * NOT_IMPLEMENTED: d is too large for the device, or (CUDA) more rows than a grid has blocks, or
 * (CPU, run too) the calling thread takes numbers below 2^-126 for zero: MXCSR's FTZ or DAZ, FPCR's
 * FZ, which a program has that is linked with fast math. A sentence on stderr says so.
 * DEVICE_ARCHITECTURE_NOT_SUPPORTED: 16-bit kernels need tensor cores of sm_80.
 * Statuses: SUCCESS, INTERNAL_ERROR, NOT_IMPLEMENTED, BAD_PARAM, NULL_POINTER, BAD_TENSOR_DTYPE,
 * BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES, DEVICE_ARCHITECTURE_NOT_SUPPORTED. */
FlashAttentionStatus flash_attention_create(
    const FlashAttentionHandle *handle, FlashAttention **op, const FlashAttentionTensor *out,
    const FlashAttentionTensor *q, const FlashAttentionTensor *k, const FlashAttentionTensor *v,
    const FlashAttentionTensor *mask, FlashAttentionMask mask_type, const float *scale);

/* *size: bytes of workspace that each run needs, always the same number for an operator.
 * Statuses: SUCCESS, NULL_POINTER. */
FlashAttentionStatus flash_attention_workspace_size(const FlashAttention *op, size_t *size);

/* All pointers are of the handle's device: memory of this GPU, managed or pinned host memory with
 * CUDA (others are refused), host memory on a CPU. out and lse must overlap nothing that is read.
 *   workspace  workspace_size bytes at any address: malloc's will do on a CPU. The size counts the
 *              bytes that run skips to reach an aligned address. The content means nothing, before
 *              and after
 *   mask       needed for FLASH_ATTENTION_MASK_FULL, not looked at otherwise
 *   lse        [B][H][Nq] float32, contiguous; NULL when it is not wanted
 *   stream     a cudaStream_t (NULL: CUDA's default stream), not looked at on a CPU
 * On a CPU the result is there on return. With CUDA the work is queued: the buffers must live until
 * the stream has done it, and a fault inside a kernel shows at the next call that waits. The call
 * may be captured into a CUDA graph.
 * BAD_PARAM: a tensor or lse is not aligned to its element, or a pointer not of this device.
 * INTERNAL_ERROR: CUDA refused a launch.
 * Statuses: SUCCESS, INTERNAL_ERROR, NOT_IMPLEMENTED, BAD_PARAM, NULL_POINTER,
 * INSUFFICIENT_WORKSPACE. */
FlashAttentionStatus flash_attention_run(const FlashAttention *op, void *workspace,
                                         size_t workspace_size, void *out, const void *q,
                                         const void *k, const void *v, const void *mask, float *lse,
                                         void *stream);

/* With CUDA it waits for runs that are queued. NULL is allowed. The operator is gone in any case;
 * INTERNAL_ERROR: CUDA did not take its memory back.
 * Statuses: SUCCESS, INTERNAL_ERROR. */
FlashAttentionStatus flash_attention_destroy(FlashAttention *op);

#ifdef __cplusplus
}
#endif
#endif
