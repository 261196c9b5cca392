/* SPDX-License-Identifier: MIT
 *
 * judge.h: what one result is compared with, and the verdict.
 *
 * The reference of a case is computed once and serves all its variants: that is what makes a sweep
 * over many variants affordable.
 *
 * Interface:
 * - reference_make / reference_free: oracle of a problem; empty with --no-check.
 * - judge_result: check_outputs with the runner's findings; explains a failure on stderr.
 */
#ifndef ATTN_JUDGE_H
#define ATTN_JUDGE_H

#include "harness/bench/run.h"
#include "harness/check/check.h"

typedef struct Reference {
    Oracle oracle;
    int ready; /* 0: nothing was computed (--no-check) */
} Reference;

/* EXIT_OK, EXIT_USAGE (numbers too large to be judged) or EXIT_RUNTIME (memory); a sentence. */
int reference_make(Reference *r, const Inputs *p, const CliCase *c);
void reference_free(Reference *r);
/* EXIT_OK, EXIT_WRONG, or EXIT_RUNTIME (memory; sentence printed). */
int judge_result(Check *check, const Reference *r, const RunResult *out, const CliCase *c,
                 const Variant *v);
#endif
