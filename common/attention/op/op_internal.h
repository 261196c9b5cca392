/* SPDX-License-Identifier: MIT
 *
 * op_internal.h: what the files of the operator share, and the seam to the device. Not installed.
 *
 * Everything that asks or changes a device goes through the op_cuda_* functions: device.c has them
 * for a real GPU and for a build without CUDA, tests/op/pretend_device.c for a GPU that a laptop
 * only pretends to have. So all that the operator does around a CUDA kernel is tested without one.
 *
 * Interface:
 * - FlashAttentionHandle, FlashAttention: the insides of the public types.
 * - op_check_dtype, op_check_shape, op_check_strides, op_view, op_overlaps_itself: tensors.c.
 * - op_host_alloc, op_cuda_...: device.c.
 */
#ifndef FLASH_ATTENTION_OP_INTERNAL_H
#define FLASH_ATTENTION_OP_INTERNAL_H

#include "attn.h"
#include "flash_attention_op.h"

#define OP_MAX_THREADS  1024
#define OP_MAX_DIM_CPU  1024
#define OP_MAX_DIM_CUDA 256

/* Where the parts of a workspace begin: a cache line; what cudaMalloc gives. */
#define OP_CPU_ALIGNMENT  64
#define OP_CUDA_ALIGNMENT 256

struct FlashAttentionHandle {
    FlashAttentionDevice device;
    int device_id;
    int arch;    /* CUDA: 10 * major + minor */
    int threads; /* CPU */
};

struct FlashAttention {
    FlashAttentionDevice device;
    int device_id;
    AttnArgs args;           /* all but the data pointers, which come with each run */
    AttnSegment segments[2]; /* where queries and keys stand: one run of positions each */
    void *segments_dev;      /* CUDA: a copy of them, which the kernels read */
    int full_mask;
    int64_t mask_stride; /* elements from row to row of the caller's mask */
    int copies_mask; /* kernels want [Nq][Nk] without gaps: it is put together in the workspace */
    /* The workspace from its first aligned byte: the kernel's part, then lse, then the mask.
     * workspace_bytes also has the alignment - 1 bytes that may lie before it. */
    size_t lse_at, mask_at, workspace_bytes;
};

/* --- tensors.c ---------------------------------------------------------------------------------*/

size_t op_dtype_bytes(FlashAttentionDtype dtype); /* 0: no such dtype */
FlashAttentionStatus op_check_dtype(const FlashAttentionTensor *t);
FlashAttentionStatus op_check_shape(const FlashAttentionTensor *t);   /* after op_check_dtype */
FlashAttentionStatus op_check_strides(const FlashAttentionTensor *t); /* after op_check_shape */
/* Tensor of 3 or 4 dimensions as [B][N][H][d] without data. Strides of size-1 dimensions become 0,
 * that of the last one 1, so that what does not matter cannot spoil a kernel's alignment test. */
Tensor op_view(const FlashAttentionTensor *t);
int op_overlaps_itself(const Tensor *t);

/* --- device.c ----------------------------------------------------------------------------------*/

void *op_host_alloc(size_t bytes); /* zeros; NULL when memory is short */
void op_host_free(void *p);
int op_default_threads(void);

int op_cuda_count(void);                       /* GPUs here; -1: a build without CUDA */
int op_cuda_arch(int device_id);               /* 0: it does not answer */
int op_cuda_compiled_for(int arch, int dtype); /* has this library kernels for it? dtype -1: any */
void *op_cuda_upload(int device_id, const void *from, size_t bytes); /* NULL: it failed */
int op_cuda_release(int device_id, void *p_dev);                     /* 0, or -1 */
int op_cuda_owns(int device_id, const void *p_dev); /* may kernels of this GPU use this address? */
size_t op_cuda_workspace_bytes(int device_id, const AttnShape *shape, AttnDtype dtype);

/* One run: mask_to [rows][cols] = mask_from with its stride (0 or >= cols) unless mask_to is NULL,
 * then the kernel. 0, or -1 when CUDA refused (it said why on stderr). */
typedef struct OpCudaRun {
    const AttnArgs *args;
    void *workspace;
    uint8_t *mask_to;
    const uint8_t *mask_from;
    int64_t mask_stride;
} OpCudaRun;

int op_cuda_run(int device_id, const OpCudaRun *run);
#endif
