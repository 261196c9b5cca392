/* SPDX-License-Identifier: MIT
 *
 * module.c: what a stage program loads of the course. See harness/bench/foreign.h.
 */
#include <stdio.h>

#include "course/hints.h"
#include "course/isolate.h"
#include "harness/bench/foreign.h"

_Static_assert(ISOLATE_OFF == CLI_SANDBOX_OFF && ISOLATE_STRICT == CLI_SANDBOX_STRICT,
               "--so-sandbox is an IsolateMode");

/* The hint of its first wrong array. */
static void print_hint(const Check *check, const Oracle *oracle, const RunResult *out,
                       const CliCase *c)
{
    const HintRun run = {hint_case_new(&out->args, oracle, c->backward, 4.0), &out->args, check, 0,
                         c->block_kv};
    HintVerdict verdict;
    HintSymptom hint;
    int which = 0;
    while (which < CHECK_COUNT && !(check->array[which].checked && check->array[which].off))
        which++;
    if (which < CHECK_COUNT && hint_submission(&verdict, &run, 1) == 0) {
        hint_array(&hint, &verdict, &run, which);
        fprintf(stderr, "hint: %s\n", hint.sentence);
    }
    hint_case_free(run.of);
}

static void serve(const char *name, void (*take_setup)(const void *setup, size_t bytes))
{
    if (runner_wanted(name))
        runner_serve(take_setup);
}

int submission_run(RunResult *out, const Stage *stage, const Inputs *p, const CliCase *c,
                   const Cli *cli, const void *setup, size_t setup_bytes); /* run_so.c */

extern const Foreign attn_course;
const Foreign attn_course = {isolate_strict_here, submission_run, print_hint, serve};
