/* SPDX-License-Identifier: MIT
 *
 * problem_rows.h: a rung that is a softmax of rows; attention is the same products around it.
 *
 * For each head: all scores S [Nq][Nk] (scaled, capped, -inf where hidden), the rung's softmax on
 * them in place, the product with V. Threads take heads when there are at least as many heads as
 * threads; otherwise heads come one after the other and the softmax gets the threads.
 *
 * Interface:
 * - SoftmaxArgs, SoftmaxFn: the softmax alone, on rows x cols float32, row-major and contiguous.
 * - RowsRung, RUNG_ROWS: the last line of such a rung's file, on the CPU; problem_rows.cuh has its
 *   twin for a GPU.
 */
#ifndef PROBLEM_ROWS_H
#define PROBLEM_ROWS_H

#include "problem.h"
#include "units/scores.h"

typedef struct SoftmaxArgs {
    const float *x; /* [rows][cols] scores; a device pointer on a GPU */
    float *y;       /* [rows][cols] probabilities; may be x itself */
    float *lse;     /* [rows], or NULL when nobody asks */
    int64_t rows, cols;
    int threads;  /* CPU threads, >= 1 */
    void *work;   /* as many bytes as the rung's work() says; NULL if 0 */
    void *stream; /* cudaStream_t, or NULL on the CPU */
} SoftmaxArgs;

typedef void (*SoftmaxFn)(const SoftmaxArgs *args);

typedef struct RowsRung {
    const char *name;
    SoftmaxFn softmax;
    int64_t (*work)(int64_t rows, int64_t cols); /* bytes; NULL: none */
    int reads;             /* of each element in a row that does not stay on chip */
    int64_t one_read_cols; /* rows up to this width are read once; 0: never */
} RowsRung;

#ifndef __cplusplus
static inline void attend_by_rows(const Problem *p, SoftmaxFn softmax)
{
    const ScoreRule rule = {p->scale, p->softcap, p->from, p->to, p->mask, p->Nk};
    const int heads = p->B * p->H, share = heads >= p->threads; /* 1: threads take heads */
    const int workers = share ? p->threads : 1, inner = share ? 1 : p->threads;
    const int64_t ld_q = (int64_t)p->H * p->d, ld_k = (int64_t)p->Hkv * p->d;
#pragma omp parallel for num_threads(workers) schedule(static) if (workers > 1)
    for (int worker = 0; worker < workers; worker++)
        for (int head = worker; head < heads; head += workers) {
            const int b = head / p->H, h = head % p->H;
            const int64_t query = query_row(p, b, h, 0), key = key_row(p, b, kv_head(p, h), 0);
            float *S = (float *)p->work + worker * (int64_t)p->Nq * p->Nk; /* [Nq][Nk], then P */
            const SoftmaxArgs rows = {S,    S,   p->lse + lse_row(p, b, h, 0), p->Nq, p->Nk, inner,
                                      NULL, NULL};
            score_block(&rule, (const float *)p->Q + query, ld_q, 0, p->Nq,
                        (const float *)p->K + key, ld_k, 0, p->Nk, p->d, S, p->Nk);
            softmax(&rows);
            matmul(AS_IS, AS_IS, p->Nq, p->d, p->Nk, 1.0f, S, p->Nk, (const float *)p->V + key,
                   ld_k, 0.0f, (float *)p->O + query, ld_q);
        }
}

static inline int64_t rows_work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * p->Nq * p->Nk * (p->B * p->H >= p->threads ? p->threads : 1);
}

#ifdef COUNT_ACCESSES /* the same source, compiled to count its element accesses (counted.h) */
#define RUNG_ROWS(stage, name, idea, softmax, work, reads, one_read_cols)                          \
    const RowsRung rows_##name##_counted = {#name, softmax, work, reads, one_read_cols}
#else
#define RUNG_ROWS(stage, name, idea, softmax, work, reads, one_read_cols)                          \
    const RowsRung rows_##name = {#name, softmax, work, reads, one_read_cols};                     \
    static void forward(const Problem *p)                                                          \
    {                                                                                              \
        attend_by_rows(p, softmax);                                                                \
    }                                                                                              \
    RUNG(stage, name, idea, F32, forward, NULL, rows_work, NULL, FULL)
#endif
#endif

#endif
