/* SPDX-License-Identifier: MIT
 *
 * naive_loops.c: judges a changed 01_naive/cpu/v0_loops.c.
 *
 * Interface: the flags of make_head.
 */
#include "stage_args.h"

extern const Rung rung_naive_v0_loops;

const Mistake mistakes[] = {ATTENTION_MISTAKES, {NULL, NULL}};

static Head head;
static Output *O, *lse;

void prepare(void)
{
    head = make_head(&O, &lse);
}

void call(void)
{
    call_rung(&head, &rung_naive_v0_loops, O->found, lse->found);
}

void expect(int mistake)
{
    reference(&head, mistake, O->expected, lse->expected);
}

const Mistake *diagnose(void)
{
    return diagnose_attention(O, lse, 0);
}
