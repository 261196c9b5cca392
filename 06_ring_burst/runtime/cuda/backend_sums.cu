/* SPDX-License-Identifier: MIT
 *
 * backend_sums.cu: the small work between the block kernels, on a rank's queue: delta, sums, and
 * the way from float32 to the dtype and back.
 *
 * Interface: of RingBackend (ring_world.h) delta, finish_O, add, narrow, widen.
 */
#include "attention/backward/backward_library.h"
#include "runtime/cuda/backend_internal.h"
#include "runtime/cuda/small_work.h"
#include "tensor.h"

int cuda_backend_delta_of(RingRank *r, const AttnArgs *args, float *delta)
{
    AttnArgs a = *args;
    a.stream = cuda_backend_work(r);
    return cuda_backend_answer(r, flash_backward_delta_cuda(&a, delta), "delta");
}

/* Divided and rounded once, at the end, if the last kernel has not done it. Without rows there was
 * no remote block that could not be the last one, and O is zeros. */
int cuda_backend_finish_O(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows)
{
    const AttnShape *n = &args->shape;
    const int64_t count = n->B * n->Nq * n->H * n->d;
    const void *finished = cuda_backend_of(r)->finished;
    AttnArgs a = *args;
    cuda_backend_of(r)->finished = NULL;
    if (finished && finished == args->O.data)
        return 0;
    if (cuda_backend_settle(r, O_state, (size_t)count * sizeof *O_state) != 0 ||
        cuda_backend_touch(r, rows.l, (size_t)(n->B * n->H * n->Nq) * sizeof *rows.l) != 0)
        return -1;
    a.stream = cuda_backend_work(r);
    return cuda_backend_answer(
        r,
        rows.m ? flash_cuda_rows_store(&a, O_state, rows)
               : launch_cast(a.O.data, a.O.dtype, O_state, count, cuda_backend_work(r)),
        "O");
}

int cuda_backend_add(RingRank *r, float *to, const float *from, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(float);
    if (cuda_backend_settle(r, to, bytes) != 0 || cuda_backend_settle(r, from, bytes) != 0)
        return -1;
    return cuda_backend_answer(r, launch_add(to, from, count, cuda_backend_work(r)), "a sum");
}

/* All of dQ is in the workspace, and its sums are the zeros that they were made of: instead of
 * being added to them it goes to the tensor that they are to become. */
static int store_dQ(RingRank *r, void *p, size_t bytes)
{
    CudaBackend *s = cuda_backend_of(r);
    const FlashSums none = {NULL, NULL, NULL};
    AttnArgs a = s->begun;
    a.dQ = cuda_backend_whole(r, p, a.shape.Nq, a.shape.H);
    a.stream = cuda_backend_work(r);
    s->sums.dQ = NULL;
    cuda_backend_forget_zeros(s, p, bytes);
    return cuda_backend_answer(r, flash_backward_cuda_end(&a, none, s->workspace_dev), "dQ");
}

/* float32 to the dtype. To another place in one step; where it stands in two, where the workspace
 * has room, or in place in many (small_work.cu). Stream 1 takes the last way: nothing orders it and
 * stream 0, whose elements may be in the workspace just then. */
int cuda_backend_narrow(RingRank *r, void *to, void *p, int64_t count, AttnDtype dtype)
{
    CudaBackend *s = cuda_backend_of(r);
    const size_t bytes = (size_t)count * sizeof(float), narrow = (size_t)count * dtype_size(dtype);
    if (to != p)
        return cuda_backend_settle(r, p, bytes) != 0 || cuda_backend_settle(r, to, narrow) != 0
                   ? -1
                   : cuda_backend_answer(
                         r, launch_cast(to, dtype, (const float *)p, count, cuda_backend_work(r)),
                         "narrowing");
    if (dtype != ATTN_F32 && s->sums.dQ == p && dtype == s->begun.Q.dtype &&
        cuda_backend_is_zero(s, p, bytes))
        return store_dQ(r, p, bytes);
    if (cuda_backend_settle(r, p, bytes) != 0)
        return -1;
    if (dtype == ATTN_F32 || narrow > s->workspace_bytes || s->sums.dQ || s->stream == 1)
        return cuda_backend_answer(r, launch_narrow(p, count, dtype, cuda_backend_work(r)),
                                   "narrowing");
    if (cuda_backend_answer(
            r, launch_cast(s->workspace_dev, dtype, (const float *)p, count, cuda_backend_work(r)),
            "narrowing") != 0)
        return -1;
    return cuda_backend_try(r,
                            cudaMemcpyAsync(p, s->workspace_dev, narrow, cudaMemcpyDeviceToDevice,
                                            cuda_backend_work(r)),
                            "narrowing");
}

int cuda_backend_widen(RingRank *r, void *p, int64_t count, AttnDtype dtype)
{
    if (cuda_backend_settle(r, p, (size_t)count * sizeof(float)) != 0)
        return -1;
    return cuda_backend_answer(r, launch_widen(p, count, dtype, cuda_backend_work(r)), "widening");
}
