/* SPDX-License-Identifier: MIT
 *
 * contract_attention.c: the contracts of the stages, a whole attention pass behind one function
 * with AttnArgs. The submission gets the problem as the programs make it: any shape, layout, dtype
 * and mask that the flags can say, without the twist.
 *
 * With --backward the backward pass follows in the same process and reads the O and lse that the
 * forward pass left, as in the programs. flash_backward is a backward pass alone: O and lse are the
 * reference's, rounded to their types.
 *
 * Interface: contract_naive, contract_tiled_softmax, contract_flash_forward,
 * contract_flash_backward, contract_sliding_window (contract.h).
 */
#include <stdio.h>
#include <string.h>

#include "course/attn_block.h"
#include "course/contract.h"
#include "dtype_f64.h"
#include "harness/bench/run.h"

static int make_reference(JudgeCase *c)
{
    if (oracle_overflows(&c->truth, c->flags->backward) > 0)
        return cli_refuse("found inputs with which a sum on the way to the result overflows "
                          "float32, accepted are smaller ones");
    return case_make_reference(c);
}

/* O and lse of the reference: what a correct forward pass leaves for the backward pass. */
static void write_forward(const JudgeCase *c, RunResult *out)
{
    const AttnShape *s = &c->truth.shape;
    const double *from = c->oracle.O.value;
    float row[CLI_MAX_D];
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t h = 0; h < s->H; h++)
            for (int64_t i = 0; i < s->Nq; i++, from += s->d) {
                for (int64_t x = 0; x < s->d; x++)
                    row[x] = dtype_round_f64(out->args.O.dtype, from[x]);
                tensor_write_row(&out->args.O, b, i, h, row);
            }
    for (int64_t n = 0; n < c->oracle.lse.count; n++)
        out->args.lse[n] = (float)c->oracle.lse.value[n];
}

static void run_attention(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                          JudgeRun *run)
{
    const int alone = (c->contract->features & STAGE_ALWAYS_BACKWARD) != 0;
    IsolateTask task = run_task(limits, library);
    Storage *all[RUN_OUTPUTS];
    AttnBlock block;
    Isolate *session;
    char backward[128];
    if (run_outputs_new(c, run) != 0)
        return;
    if (alone)
        write_forward(c, &run->out);
    attn_block_arrays(&task, &run->out, &c->problem, alone);
    run_add_trace(&task, run);
    session = isolate_open(&task, &run->end);
    if (!session)
        return;
    run->out.args.threads = limits->threads;
    attn_block_make(&block, &run->out.args, &task);
    snprintf(backward, sizeof backward, "%s_backward", c->contract->symbol);
    if (isolate_call(session, "attn", c->contract->symbol, &block, sizeof block)) {
        run->ms = run->end.ms;
        if (c->flags->backward && !alone && run->end.status == 0 &&
            isolate_call(session, "attn", backward, &block, sizeof block))
            run->ms += run->end.ms;
        run->check.storage_intact = run->end.end != ISOLATE_FINISHED || isolate_take(session);
    }
    isolate_close(session);
    run_outputs(&run->out, all);
    for (int i = 0; i < RUN_OUTPUTS; i++)
        if (all[i]->mapping && !tensor_intact(all[i]))
            run->check.storage_intact = 0;
}

static void judge_attention(const JudgeCase *c, JudgeRun *run)
{
    run_take_truth(c, run);
    check_outputs(&run->check, &c->oracle, &run->out.args, c->flags->backward, 4.0);
}

#define SIZES                                                                                      \
    "--batch", "-B", "--heads", "-H", "--kv-heads", "--seq", "-N", "--seq-q", "--seq-kv",          \
        "--head-dim", "-d", "--dtype", "--mask", "--causal", "--window", "--scale", "--softcap",   \
        "--seed", "--dist", "--bundled", "--strides"

#define CONTRACT(of, features_, flags_)                                                            \
    const Contract contract_##of = {.name = #of,                                                   \
                                    .symbol = #of "_variant",                                      \
                                    .features = features_,                                         \
                                    .flags = flags_,                                               \
                                    .runs_on_inputs = !((features_)&STAGE_ALWAYS_BACKWARD),        \
                                    .make = make_reference,                                        \
                                    .run = run_attention,                                          \
                                    .judge = judge_attention}

static const char *const forward_flags[] = {SIZES, NULL};
static const char *const both_flags[] = {SIZES, "--backward", NULL};

CONTRACT(naive, STAGE_HAS_BACKWARD, both_flags);
CONTRACT(tiled_softmax, 0, forward_flags);
CONTRACT(flash_forward, 0, forward_flags);
CONTRACT(flash_backward, STAGE_ALWAYS_BACKWARD, forward_flags);
CONTRACT(sliding_window, STAGE_HAS_BACKWARD, both_flags);
