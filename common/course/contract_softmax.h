/* SPDX-License-Identifier: MIT
 *
 * contract_softmax.h: a case of softmax_rows or softmax_merge, and hints for it.
 *
 * Interface:
 * - Softmax: JudgeCase.own of these two contracts.
 * - softmax_hints_find: one verdict for all cases of a submission, as hint_submission.
 */
#ifndef ATTN_CONTRACT_SOFTMAX_H
#define ATTN_CONTRACT_SOFTMAX_H

#include "course/contract.h"
#include "course/hints.h"

typedef struct Softmax {
    int64_t rows, cols;          /* merge: pairs, and scores of a half at most */
    float *in[4];                /* S, or m_a l_a m_b l_b */
    double *value[2], *bound[2]; /* P and lse, or m and l */
} Softmax;

/* Arrays of the verdict: bits 1 << 0 (P, m) and 1 << 1 (lse, l). */
void softmax_hints_find(HintVerdict *v, const JudgeCase *cases, const JudgeRun *runs, int count);
/* Code number n of these mistakes, NULL behind the last. */
const char *softmax_hint_code(int n, const char **sentence);

#endif
