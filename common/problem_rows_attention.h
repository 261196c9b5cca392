/* SPDX-License-Identifier: MIT
 *
 * problem_rows_attention.h: attention around a softmax of rows, so that one sweep judges the rungs
 * of stage 02 as all others: all scores S, the rung's softmax on them in place, the product with V.
 *
 * Interface:
 * - attend_by_rows, rows_work (CPU); attend_by_rows_cuda, rows_work_cuda.
 * - ROWS_RUNG, ROWS_RUNG_CUDA: the Rung of a RowsRung, `static const` where they stand.
 */
#ifndef PROBLEM_ROWS_ATTENTION_H
#define PROBLEM_ROWS_ATTENTION_H

#include "problem.h"
#include "problem_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Threads take heads when there are at least as many heads as threads; otherwise heads come one
 * after the other and the softmax gets the threads. */
void attend_by_rows(const Problem *p, const RowsRung *rung);
int64_t rows_work(const Problem *p, const RowsRung *rung);

/* The scores of all heads, S [B][H][Nq][Nk], are one matrix of B*H*Nq rows to a softmax, which it
 * overwrites by P; its lse comes in the order [B][H][Nq] that is asked for. */
void attend_by_rows_cuda(const Problem *p, const RowsRung *rung);
int64_t rows_work_cuda(const Problem *p, const RowsRung *rung);

#define ROWS_RUNG_(suffix, stage, name, idea, dtypes, flags)                                       \
    extern const RowsRung rows_##name;                                                             \
    static void forward_##name(const Problem *p)                                                   \
    {                                                                                              \
        attend_by_rows##suffix(p, &rows_##name);                                                   \
    }                                                                                              \
    static int64_t work_##name(const Problem *p, int backward)                                     \
    {                                                                                              \
        (void)backward;                                                                            \
        return rows_work##suffix(p, &rows_##name);                                                 \
    }                                                                                              \
    static const Rung rung_##stage##_##name = {#name,          idea, dtypes,      flags,           \
                                               forward_##name, NULL, work_##name, NULL}
#define ROWS_RUNG(stage, name, idea) ROWS_RUNG_(, stage, name, idea, F32, FULL)
#define ROWS_RUNG_CUDA(stage, name, idea)                                                          \
    ROWS_RUNG_(_cuda, stage, name, idea, F32 | F16 | BF16, FULL | ANY_D | TENSOR_CORES)

#ifdef __cplusplus
}
#endif
#endif
