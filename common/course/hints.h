/* SPDX-License-Identifier: MIT
 *
 * hints.h: which mistake is it?
 *
 * A checker says that O is off by 900 bounds. A student wants to hear: this is attention without
 * 1/sqrt(d). So the definition is computed again with one mistake built in, and the submission's
 * output is compared with that counterfactual. A mistake is named only if it explains every wrong
 * array of every case, failed or passed; if none does, or two of different kinds do, the symptom is
 * described instead.
 *
 * What a mistake computes depends on the case, not on the submission: a HintCase keeps the rows of
 * its counterfactuals, so that eighty submissions cost little more than one.
 *
 * Interface:
 * - hint_case_new / hint_case_free: inputs of a case as float64 and what was computed of them.
 * - hint_submission: all cases of a submission -> one HintVerdict: a named mistake or none.
 * - hint_symptom: one array of one case in words: where the wrong values are.
 * - hint_array: what a student hears of a wrong array: the verdict's mistake, or the symptom.
 * - hint_codes: every code that a verdict may have.
 *
 * Limits. Mistakes come one at a time: two at once give a symptom. Of cases above
 * HINT_WORK pair-channels a sample of rows is compared.
 */
#ifndef ATTN_HINTS_H
#define ATTN_HINTS_H

#include "harness/check/check.h"

#define HINT_WORK ((int64_t)1 << 27)

typedef struct HintCase HintCase;

/* args: host inputs, oracle: their reference; both stay until hint_case_free. backward: gradients
 * are judged, too. c: as in check_outputs. NULL: memory is short, the oracle is a sample, or the
 * case is so large that its rows cannot be computed in reasonable time (64 times HINT_WORK). */
HintCase *hint_case_new(const AttnArgs *args, const Oracle *oracle, int backward, double c);
void hint_case_free(HintCase *c);

/* A case as one submission computed it. */
typedef struct HintRun {
    HintCase *of;          /* NULL: nothing is known about this case but the check's verdict; if it
                              failed, no mistake is named */
    const AttnArgs *found; /* its O, lse and gradients; those that `check` did not look at may be
                              empty. With gradients O and lse are those that the backward pass
                              started from, checked or not. */
    const Check *check;
    int arrays; /* bits 1 << CHECK_... of what it computed; the rest of `found` is given. 0: all */
    int64_t block; /* the tile that the case asks for, 0 = none: tiles may differ between blocks */
} HintRun;

typedef struct HintVerdict {
    const char *code;   /* snake_case, stable; "" = no mistake explains all cases */
    char sentence[320]; /* one sentence for the student; "" without a code */
    int arrays;         /* bits 1 << CHECK_...: those that are wrong because of it */
} HintVerdict;

/* 0, or -1 when memory is short. */
int hint_submission(HintVerdict *v, const HintRun *runs, int count);

typedef struct HintSymptom {
    const char *code;
    char sentence[320];
} HintSymptom;

/* Of an array that check says is off: tail_tile, one_head, empty_rows ... */
void hint_symptom(HintSymptom *s, const HintRun *run, int which);

/* Likewise, if the verdict of all cases names no mistake. */
void hint_array(HintSymptom *s, const HintVerdict *v, const HintRun *run, int which);

/* Code number n of the mistakes, NULL behind the last; a code may come more than once. */
const char *hint_code(int n, const char **sentence);

#endif
