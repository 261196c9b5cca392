/* SPDX-License-Identifier: MIT
 *
 * runner_contracts.c: how a runner calls a function of a submission: a row for each prototype.
 *
 * Interface: runner_contract (runner.h).
 */
#include <string.h>

#include "course/attn_block.h"
#include "course/runner_ring.h"
#include "course/runner_small.h"
#include "course/runner_trace.h"

/* dlsym gives a void *, which ISO C does not let us cast to a function. */
static int call_attn(const RunnerCall *call)
{
    AttnBlock block;
    AttnFn function;
    memcpy(&function, &call->function, sizeof function);
    if (attn_block_open(&block, call) != 0)
        return -1;
    runner_trace_shape(block.args.shape.Nq, block.args.shape.d);
    return (int)function(&block.args);
}

/* "attn": AttnStatus f(const AttnArgs *), what every stage has. */
static const RunnerContract contracts[] = {{"attn", call_attn}, {"ring_method", runner_call_ring}};

const RunnerContract *runner_contract(const char *name)
{
    for (size_t i = 0; i < sizeof contracts / sizeof *contracts; i++)
        if (strcmp(contracts[i].name, name) == 0)
            return &contracts[i];
    for (int i = 0; i < runner_small_count; i++)
        if (strcmp(runner_small[i].name, name) == 0)
            return &runner_small[i];
    return NULL;
}
