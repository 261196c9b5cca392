/* SPDX-License-Identifier: MIT
 *
 * judge_trace.h: the states that a submission shows by attn_trace.h against those of the
 * definition.
 *
 * Interface:
 * - trace_case: runs a case again and says which state is the first that is wrong.
 */
#ifndef ATTN_JUDGE_TRACE_H
#define ATTN_JUDGE_TRACE_H

#include "course/contract.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a wrong run, into run->trace: 1; 0: the submission shows nothing. The verdict stays. */
int trace_case(const JudgeCase *c, const JudgeLimits *limits, const char *library, JudgeRun *run);

#ifdef __cplusplus
}
#endif
#endif
