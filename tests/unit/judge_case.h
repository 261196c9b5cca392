/* SPDX-License-Identifier: MIT
 *
 * judge_case.h: are the outputs that stand in a Case right?
 *
 * Interface:
 * - case_check: what the checker says. case_agrees: whether all is right; prints where it is not,
 *   unless label is NULL.
 * - assert_right: it must be. case_judge: the same with an oracle of its own.
 */
#ifndef JUDGE_CASE_H
#define JUDGE_CASE_H

#include "harness/check/check.h"
#include "oracle_case.h"

static inline Check case_check(const Case *c, const Oracle *oracle, int backward, double bound_c)
{
    Check check = {.inputs_intact = 1, .storage_intact = 1};
    check_outputs(&check, oracle, &c->args, backward, bound_c);
    return check;
}

static inline int case_agrees(const Case *c, const Oracle *oracle, int backward, double bound_c,
                              const char *label)
{
    const Check check = case_check(c, oracle, backward, bound_c);
    if (!check.pass && label)
        check_explain(&check, label, &c->args, stderr);
    return check.pass;
}

static inline void assert_right(const Case *c, const Oracle *oracle, int backward, double bound_c,
                                const char *label)
{
    if (!case_agrees(c, oracle, backward, bound_c, label))
        fail_msg("%s", label);
}

static inline void case_judge(const Case *c, int backward, double bound_c, int threads,
                              const char *label)
{
    Oracle oracle = oracle_of(&c->args, backward, threads);
    assert_right(c, &oracle, backward, bound_c, label);
    oracle_free(&oracle);
}

#endif
