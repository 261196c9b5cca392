/* SPDX-License-Identifier: MIT
 *
 * judge.h: what attn_judge says about a submission's wrong cases, beside the numbers.
 *
 * Interface:
 * - judge_hints_find: one verdict for all cases of a submission. The counterfactuals of a case are
 *   kept for the next submission of this process.
 * - judge_hints_say: code and sentence for one wrong array of one case.
 * - trace_case: runs a case again and says which of the states that a submission shows by
 *   attn_trace.h is the first that is not the definition's.
 */
#ifndef ATTN_JUDGE_H
#define ATTN_JUDGE_H

#include "course/contract.h"
#include "course/hints.h"

/* runs [count]: of the cases in their order. */
void judge_hints_find(HintVerdict *v, const JudgeCase *cases, const JudgeRun *runs, int count);
/* n: the number of the case. */
void judge_hints_say(HintSymptom *s, const HintVerdict *v, int n, const JudgeRun *run, int which);

/* Of a wrong run, into run->trace: 1; 0: the submission shows nothing. The verdict stays. */
int trace_case(const JudgeCase *c, const JudgeLimits *limits, const char *library, JudgeRun *run);

#endif
