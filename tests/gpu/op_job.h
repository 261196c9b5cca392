/* SPDX-License-Identifier: MIT
 *
 * op_job.h: an operator on a GPU with everything that it works on.
 *
 * Interface:
 * - job_new: mask_stride: of the rows of a full mask, Nk or more, or 0 for one row. job_free.
 * - job_poison, job_run, job_fetch, job_judge: one run and the look at it.
 */
#ifndef OP_JOB_H
#define OP_JOB_H

#include <cuda_runtime_api.h>

#include "device_case.h"

#include "../op/op_case.h"

#define CUDA(call) assert_int_equal(cudaSuccess, call)

/* An operator with everything it needs on the device. */
typedef struct Job {
    Case *c;
    DeviceCase *d;
    AttnArgs a; /* with device pointers */
    FlashAttention *op;
    void *workspace, *mask;
    size_t bytes;
    cudaStream_t stream;
} Job;

static inline Job job_new(const FlashAttentionHandle *handle, Case *c, int ndim,
                          FlashAttentionMask type, int64_t mask_stride)
{
    const AttnShape *s = &c->args.shape;
    const FlashAttentionTensor mask = {
        FLASH_ATTENTION_U8, 2, {s->Nq, s->Nk, 0, 0}, {mask_stride, 1, 0, 0}};
    Job j = {.c = c};
    case_align(c, (AttnMask)type);
    if (type == FLASH_ATTENTION_MASK_FULL) {
        const size_t mask_bytes = (size_t)((s->Nq - 1) * mask_stride + s->Nk);
        uint8_t *spread = malloc(mask_bytes);
        assert_non_null(spread);
        memset(spread, 1, mask_bytes);
        case_mask(c);
        for (int64_t e = 0; e < s->Nq * s->Nk; e++) {
            c->mask[e] = mask_stride ? c->mask[e] : c->mask[e % s->Nk];
            spread[e / s->Nk * mask_stride + e % s->Nk] = c->mask[e];
        }
        j.mask = device_copy_of(spread, mask_bytes);
        free(spread);
    }
    j.op = op_like(handle, c, ndim, type, &mask);
    j.d = device_case_new(c);
    j.a = device_case_args(j.d, &c->args);
    assert_int_equal(SUCCESS, flash_attention_workspace_size(j.op, &j.bytes));
    j.workspace = workspace_alloc_device(j.bytes);
    assert_non_null(j.workspace);
    CUDA(cudaStreamCreateWithFlags(&j.stream, cudaStreamNonBlocking));
    CUDA(cudaDeviceSynchronize());
    return j;
}

static inline FlashAttentionStatus job_run(const Job *j, float *lse_dev)
{
    return flash_attention_run(j->op, j->workspace, j->bytes, j->a.O.data, j->a.Q.data, j->a.K.data,
                               j->a.V.data, j->mask, lse_dev, j->stream);
}

/* What stands on the device, on the host. The fingerprint of O. */
static inline uint64_t job_fetch(const Job *j)
{
    CUDA(cudaStreamSynchronize(j->stream));
    assert_int_equal(0, device_download(j->c->O.base, j->d->O_dev, j->c->O.bytes));
    assert_int_equal(0, device_download(j->c->lse, j->d->lse_dev, j->d->rows * sizeof(float)));
    return tensor_fingerprint(&j->c->O);
}

static inline void job_poison(const Job *j)
{
    assert_int_equal(0, device_fill_bytes(j->d->O_dev, 0xFF, j->c->O.bytes));
    assert_int_equal(0, device_fill_bytes(j->d->lse_dev, 0xFF, j->d->rows * sizeof(float)));
    assert_int_equal(0, device_fill_bytes(j->workspace, 0x7F, j->bytes));
    CUDA(cudaDeviceSynchronize());
}

static inline void job_judge(const Job *j, const char *name)
{
    case_judge(j->c, 0, j->c->args.Q.dtype == ATTN_F32 ? 4 : 16, 4, name);
    assert_true(tensor_intact(&j->c->O));
}

static inline void job_free(Job *j)
{
    CUDA(cudaStreamSynchronize(j->stream));
    assert_int_equal(SUCCESS, flash_attention_destroy(j->op));
    workspace_reset_peak();
    workspace_free_device(j->workspace);
    assert_true(workspace_intact()); /* nothing was written beside it */
    CUDA(cudaStreamDestroy(j->stream));
    device_free(j->mask);
    device_case_free(j->d);
    case_free(j->c);
}

#endif
