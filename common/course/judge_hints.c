/* SPDX-License-Identifier: MIT
 *
 * judge_hints.c: hints for attn_judge. softmax_rows and softmax_merge have counterfactuals of their
 * own (hints_softmax.c). Those of attention (hints.c) are asked only if no twist hides pairs by a
 * mask of its own: the submission never saw that mask, so what it did with a mask is no question.
 * See judge.h.
 */
#include "course/judge.h"

#include <stdlib.h>
#include <string.h>

#include "course/contract_softmax.h"

static HintCase **known; /* by case; of this process */
static int known_count;

static int is_attention(const JudgeCase *c, const JudgeRun *run)
{
    return run->has_hint_data && (run->status == JUDGE_RIGHT || run->status == JUDGE_WRONG) &&
           c->truth.mask == c->problem.args.mask;
}

static int is_softmax(const JudgeCase *c)
{
    return c->contract == &contract_softmax_rows || c->contract == &contract_softmax_merge;
}

/* A step of backward_steps computes one array, and the judge fills in the others. */
static int computed(const JudgeCase *c)
{
    static const int arrays[] = {
        [PART_DV] = 1 << CHECK_DV, [PART_DK] = 1 << CHECK_DK, [PART_DQ] = 1 << CHECK_DQ};
    return c->contract == &contract_backward_steps ? arrays[c->part] : 0;
}

static HintCase *hints_of(const JudgeCase *cases, int n, int count)
{
    if (!known) {
        known = calloc((size_t)count, sizeof *known);
        known_count = known ? count : 0;
    }
    if (n < known_count && !known[n])
        known[n] = hint_case_new(&cases[n].truth, &cases[n].oracle, cases[n].problem.backward, 4.0);
    return n < known_count ? known[n] : NULL;
}

void judge_hints_find(HintVerdict *v, const JudgeCase *cases, const JudgeRun *runs, int count)
{
    HintRun *all = calloc((size_t)count, sizeof *all);
    int used = 0, wrong = 0;
    memset(v, 0, sizeof *v);
    v->code = "";
    for (int n = 0; n < count; n++)
        wrong |= runs[n].status == JUDGE_WRONG;
    if (wrong && is_softmax(&cases[0])) {
        softmax_hints_find(v, cases, runs, count);
        wrong = 0;
    }
    for (int n = 0; all && wrong && n < count; n++) {
        if (runs[n].status == JUDGE_WRONG || is_attention(&cases[n], &runs[n]))
            all[used++] = (HintRun){
                is_attention(&cases[n], &runs[n]) ? hints_of(cases, n, count) : NULL,
                &runs[n].out.args, &runs[n].check, computed(&cases[n]), cases[n].flags->block_kv};
    }
    if (used && hint_submission(v, all, used) != 0)
        v->code = "";
    free(all);
}

void judge_hints_say(HintSymptom *s, const HintVerdict *v, int n, const JudgeRun *run, int which)
{
    const HintRun one = {n < known_count ? known[n] : NULL, &run->out.args, &run->check, 0, 0};
    if (!run->has_hint_data) {
        s->code = v->code;
        snprintf(s->sentence, sizeof s->sentence, "%s",
                 v->code[0] ? v->sentence : run->check.array[which].hint);
        return;
    }
    hint_array(s, v, &one, which);
}
