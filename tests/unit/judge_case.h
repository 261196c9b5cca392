/* SPDX-License-Identifier: MIT
 *
 * judge_case.h: are the outputs that stand in a Case right?
 *
 * Interface:
 * - check_of: what the checker says of the outputs of args. explanation: its words.
 * - assert_pass: a check that must pass; prints where it does not.
 * - case_agrees: whether all is right; prints where it is not, unless label is NULL.
 * - assert_right: it must be. case_judge, args_judge: the same with an oracle of its own.
 */
#ifndef JUDGE_CASE_H
#define JUDGE_CASE_H

#include "harness/check/check.h"
#include "oracle_case.h"

static inline Check check_of(const AttnArgs *args, const Oracle *oracle, int backward,
                             double bound_c)
{
    Check check = {.inputs_intact = 1, .storage_intact = 1};
    check_outputs(&check, oracle, args, backward, bound_c);
    return check;
}

static inline const char *explanation(const Check *check, const AttnArgs *args)
{
    static char text[8192];
    FILE *to = fmemopen(text, sizeof text, "w");
    assert_non_null(to);
    check_explain(check, "variant", args, to);
    fclose(to);
    return text;
}

static inline void assert_pass(const Check *check, const AttnArgs *args, const char *label)
{
    if (check->pass)
        return;
    check_explain(check, label, args, stderr);
    fail_msg("%s", label);
}

static inline int case_agrees(const Case *c, const Oracle *oracle, int backward, double bound_c,
                              const char *label)
{
    const Check check = check_of(&c->args, oracle, backward, bound_c);
    if (!check.pass && label)
        check_explain(&check, label, &c->args, stderr);
    return check.pass;
}

static inline void assert_right(const Case *c, const Oracle *oracle, int backward, double bound_c,
                                const char *label)
{
    const Check check = check_of(&c->args, oracle, backward, bound_c);
    assert_pass(&check, &c->args, label);
}

static inline void args_judge(const AttnArgs *args, int backward, double bound_c, int threads,
                              const char *label)
{
    Oracle oracle = oracle_of(args, backward, threads);
    const Check check = check_of(args, &oracle, backward, bound_c);
    assert_pass(&check, args, label);
    oracle_free(&oracle);
}

static inline void case_judge(const Case *c, int backward, double bound_c, int threads,
                              const char *label)
{
    args_judge(&c->args, backward, bound_c, threads, label);
}

#endif
