/* SPDX-License-Identifier: MIT
 *
 * problem_rows.cuh: problem_rows.h on a GPU. The scores of all heads, S [B][H][Nq][Nk], are one
 * matrix of B*H*Nq rows to a softmax, which it overwrites by P; its lse comes in the order
 * [B][H][Nq] that is asked for. The products around it are units/head_products.cuh.
 *
 * Interface:
 * - RUNG_ROWS.
 */
#ifndef PROBLEM_ROWS_CUH
#define PROBLEM_ROWS_CUH

#include "problem.cuh"
#include "problem_rows.h"
#include "units/head_products.cuh"

static inline HeadProducts products_of(const Problem *p)
{
    return {p->B,     p->H,       p->Hkv,  p->Nq, p->Nk,   p->d,        p->dtype == F32,
            p->scale, p->softcap, p->from, p->to, p->mask, stream_of(p)};
}

static inline int64_t count_rows(const Problem *p)
{
    return (int64_t)p->B * p->H * p->Nq;
}

static inline int64_t bytes_of_softmax(const Problem *p, const RowsRung *rung)
{
    return rung->work ? (rung->work(count_rows(p), p->Nk) + 255) / 256 * 256 : 0;
}

/* Work space: of the softmax, S, of the products. */
template <typename T> static void attend_by_rows(const Problem *p, const RowsRung *rung)
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

static inline int64_t rows_work_of(const Problem *p, const RowsRung *rung)
{
    return bytes_of_softmax(p, rung) + 4 * (count_rows(p) * p->Nk + product_floats(products_of(p)));
}

#ifdef COUNT_ACCESSES
#define RUNG_ROWS(stage, name, idea, softmax, work, reads, one_read_cols)                          \
    extern "C" const RowsRung rows_##name##_counted = {#name, softmax, work, reads, one_read_cols}
#else
#define RUNG_ROWS(stage, name, idea, softmax, work, reads, one_read_cols)                          \
    extern "C" const RowsRung rows_##name = {#name, softmax, work, reads, one_read_cols};          \
    template <typename T> static void launch_rows(const Problem *p)                                \
    {                                                                                              \
        attend_by_rows<T>(p, &rows_##name);                                                        \
    }                                                                                              \
    static void forward(const Problem *p)                                                          \
    {                                                                                              \
        RUN_ANY(launch_rows, p);                                                                   \
    }                                                                                              \
    static int64_t rows_work(const Problem *p, int)                                                \
    {                                                                                              \
        return rows_work_of(p, &rows_##name);                                                      \
    }                                                                                              \
    RUNG(stage, name, idea, F32 | F16 | BF16, forward, NULL, rows_work, NULL,                      \
         FULL | ANY_D | TENSOR_CORES)
#endif

#endif
