/* SPDX-License-Identifier: MIT
 *
 * rows_attention.cu: attention around a softmax of rows, on a GPU. See rows_attention.h.
 */
#include "harness/rows_attention.h"

#include "problem.cuh"
#include "units/head_products.cuh"

static HeadProducts products_of(const Problem *p)
{
    return {p->B,     p->H,       p->Hkv,  p->Nq, p->Nk,   p->d,        p->dtype == F32,
            p->scale, p->softcap, p->from, p->to, p->mask, stream_of(p)};
}

static int64_t count_rows(const Problem *p)
{
    return (int64_t)p->B * p->H * p->Nq;
}

static int64_t bytes_of_softmax(const Problem *p, const RowsRung *rung)
{
    return rung->work ? (rung->work(count_rows(p), p->Nk) + 255) / 256 * 256 : 0;
}

/* Work space: of the softmax, S, of the products. */
template <typename T> static void attend(const Problem *p, const RowsRung *rung)
{
    const HeadProducts products = products_of(p);
    float *S = (float *)((char *)p->work + bytes_of_softmax(p, rung));
    const SoftmaxArgs rows = {S, S, p->lse, count_rows(p), p->Nk, 1, p->work, p->stream};
    int failed = multiply_QK<T>(products, (const T *)p->Q, (const T *)p->K, S);
    rung->softmax(&rows);
    failed |= multiply_PV<T>(products, S, (const T *)p->V, S + rows.rows * rows.cols, (T *)p->O);
    if (failed)
        note_failure();
}

int64_t rows_work_cuda(const Problem *p, const RowsRung *rung)
{
    return bytes_of_softmax(p, rung) + 4 * (count_rows(p) * p->Nk + product_floats(products_of(p)));
}

void attend_by_rows_cuda(const Problem *p, const RowsRung *rung)
{
    if (p->dtype == F32)
        attend<float>(p, rung);
    else if (p->dtype == BF16)
        attend<__nv_bfloat16>(p, rung);
    else
        attend<__half>(p, rung);
}
