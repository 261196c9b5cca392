/* SPDX-License-Identifier: MIT
 *
 * problem_rows_attention.c: attention around a softmax of rows, on a CPU. See
 * problem_rows_attention.h.
 */
#include "problem_rows_attention.h"

#include "units/scores.h"

void attend_by_rows(const Problem *p, const RowsRung *rung)
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
            rung->softmax(&rows);
            matmul(AS_IS, AS_IS, p->Nq, p->d, p->Nk, 1.0f, S, p->Nk, (const float *)p->V + key,
                   ld_k, 0.0f, (float *)p->O + query, ld_q);
        }
}

int64_t rows_work(const Problem *p, const RowsRung *rung)
{
    (void)rung; /* none has work space of its own on a CPU */
    return (int64_t)sizeof(float) * p->Nq * p->Nk * (p->B * p->H >= p->threads ? p->threads : 1);
}
