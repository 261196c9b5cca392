/* SPDX-License-Identifier: MIT
 *
 * judge_hints.h: what the judge says about a submission's wrong cases, beside the numbers.
 *
 * Interface:
 * - judge_hints_find: one verdict for all cases of a submission. The counterfactuals of a case are
 *   kept for the next submission of this process.
 * - judge_hints_say: code and sentence for one wrong array of one case.
 */
#ifndef ATTN_JUDGE_HINTS_H
#define ATTN_JUDGE_HINTS_H

#include "course/contract.h"
#include "course/hints.h"

#ifdef __cplusplus
extern "C" {
#endif

/* runs [count]: of the cases in their order. */
void judge_hints_find(HintVerdict *v, const JudgeCase *cases, const JudgeRun *runs, int count);
/* n: the number of the case. */
void judge_hints_say(HintSymptom *s, const HintVerdict *v, int n, const JudgeRun *run, int which);

#ifdef __cplusplus
}
#endif
#endif
