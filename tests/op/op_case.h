/* SPDX-License-Identifier: MIT
 *
 * op_case.h: from a Case of the oracle's tests to a call of the operator.
 *
 * Interface:
 * - describe_view: a Tensor as the operator's description of 3 or 4 dimensions.
 * - op_like, op_alike: an operator for a Case; op_scratch: its workspace, fenced and full of NaN.
 * - flip: a tensor read backwards. (judge_case.h: is what stands in O and lse right?)
 */
#ifndef OP_CASE_H
#define OP_CASE_H

#include "../unit/judge_case.h"

#include "alloc.h"
#include "attention/op/flash_attention_op.h"

#define SUCCESS FLASH_ATTENTION_SUCCESS

static inline FlashAttentionTensor describe_view(const Tensor *t, int ndim)
{
    FlashAttentionTensor made;
    assert_int_equal(SUCCESS, flash_attention_describe(&made, (FlashAttentionDtype)t->dtype, ndim,
                                                       t->shape + 4 - ndim, t->stride + 4 - ndim));
    return made;
}

/* The operator for this case; mask of a full mask, or NULL: contiguous. */
static inline FlashAttention *op_like(const FlashAttentionHandle *handle, const Case *c, int ndim,
                                      FlashAttentionMask mask_type,
                                      const FlashAttentionTensor *mask)
{
    const AttnArgs *a = &c->args;
    const FlashAttentionTensor out = describe_view(&a->O, ndim), q = describe_view(&a->Q, ndim),
                               k = describe_view(&a->K, ndim), v = describe_view(&a->V, ndim);
    const FlashAttentionTensor whole = {.dtype = FLASH_ATTENTION_U8,
                                        .ndim = 2,
                                        .shape = {a->shape.Nq, a->shape.Nk},
                                        .strides = {a->shape.Nk, 1}};
    FlashAttention *op;
    assert_int_equal(SUCCESS, flash_attention_create(handle, &op, &out, &q, &k, &v,
                                                     mask ? mask : &whole, mask_type, &a->scale));
    return op;
}

typedef struct Scratch {
    void *memory, *at;
    size_t bytes;
} Scratch;

/* The worst address: one byte past an aligned one. A fence, which workspace_intact asks, stands
 * behind the last byte. */
static inline Scratch op_scratch(const FlashAttention *op)
{
    Scratch s;
    assert_int_equal(SUCCESS, flash_attention_workspace_size(op, &s.bytes));
    s.memory = workspace_alloc(s.bytes + 1);
    assert_non_null(s.memory);
    s.at = (char *)s.memory + 1;
    return s;
}

static inline FlashAttentionStatus case_run(const FlashAttention *op, const Case *c,
                                            const Scratch *s, const void *mask, float *lse)
{
    const AttnArgs *a = &c->args;
    return flash_attention_run(op, s->at, s->bytes, a->O.data, a->Q.data, a->K.data, a->V.data,
                               mask, lse, NULL);
}

static inline void flip(Tensor *t, int n)
{
    t->data = (char *)t->data + (t->shape[n] - 1) * t->stride[n] * (int64_t)dtype_size(t->dtype);
    t->stride[n] = -t->stride[n];
}

#endif
