/* SPDX-License-Identifier: MIT
 *
 * contract_sliding.c: the contract of the coursework's online module, one block step in place. Our
 * traversal calls the submission's step for all blocks, in any order, and compares after each.
 *
 * What is right after a step: row i of global_o is the attention of query i over the keys of the
 * blocks that its own block of queries has met so far. That is attention with a mask, so the
 * oracle computes it, once for each step, for the rows that the step touches. All other rows must
 * be what they were, to the bit. The bound allows for one more rounding of O at every step.
 *
 * Interface: contract_sliding_window_step (contract.h).
 */
#include "attn_pairs.h"
#include "course/contract.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/visits.h"

enum { MAX_STEPS = 4096, STEP_BYTES = 1 << 28 };

typedef struct SlidingStepTruth {
    int64_t i, j;        /* block of queries, block of keys */
    AttnSegment queries; /* positions of the block's rows */
    uint8_t *mask;       /* [rows][Nk]: keys of blocks that were not met are hidden */
    AttnArgs args;
    Oracle oracle;
} SlidingStepTruth;

typedef struct Sliding {
    int64_t Br, Bc, Tr, Tc, steps;
    float *Q, *K, *V; /* whole blocks, filled up with zeros */
    SlidingStepTruth *step;
} Sliding;

static float *padded(const Tensor *t, int64_t rows)
{
    const int64_t N = t->shape[1], d = t->shape[3];
    float *to = case_alloc(rows * d, sizeof *to);
    for (int64_t n = 0; n < N; n++)
        tensor_read_row(t, 0, n, 0, to + n * d);
    return to;
}

/* Step t's rows with the keys of the blocks that they have met by then. */
static int make_step(const JudgeCase *c, Sliding *s, int64_t t)
{
    SlidingStepTruth *step = &s->step[t];
    const int64_t Nk = c->truth.shape.Nk, first = step->i * s->Br;
    const int64_t rows = c->truth.shape.Nq - first < s->Br ? c->truth.shape.Nq - first : s->Br;
    AttnArgs *a = &step->args;
    uint8_t *met = case_alloc(s->Tc, 1);
    step->mask = case_alloc(rows * Nk, 1);
    for (int64_t before = 0; before <= t; before++)
        if (s->step[before].i == step->i)
            met[s->step[before].j] = 1;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < Nk; k++)
            step->mask[r * Nk + k] =
                !met[k / s->Bc] || (c->truth.mask && c->truth.mask[(first + r) * Nk + k]);
    free(met);
    *a = c->truth;
    a->mask = step->mask;
    a->shape.Nq = a->Q.shape[1] = rows;
    a->Q.data = (float *)a->Q.data + first * a->Q.stride[1];
    step->queries =
        (AttnSegment){0, rows, 0, attn_position(c->truth.positions_q, first).position, 1};
    a->positions_q = attn_positions(&step->queries, 1);
    return oracle_run(&step->oracle, a, 0, 1);
}

static int check_sizes(const JudgeCase *c, const Sliding *s)
{
    const double bytes =
        (double)s->steps * (double)s->Br * ((double)c->flags->Nk + 40.0 * (double)c->flags->d);
    if (s->steps > MAX_STEPS || bytes > STEP_BYTES)
        return cli_refuse("found a traversal of %" PRId64 " steps, accepted are %d, or fewer when "
                          "they are large: --block-q and --block-kv",
                          s->steps, MAX_STEPS);
    return EXIT_OK;
}

static int make_sliding(JudgeCase *c)
{
    const CliCase *f = c->flags;
    Sliding *s = c->own = case_alloc(1, sizeof *s);
    int64_t *visits;
    int status, failed = 0;
    s->Br = f->block_q;
    s->Bc = f->block_kv;
    s->Tr = (f->Nq + s->Br - 1) / s->Br;
    s->Tc = (f->Nk + s->Bc - 1) / s->Bc;
    s->steps = s->Tr * s->Tc;
    status = check_sizes(c, s) == EXIT_OK ? case_make_reference(c) : EXIT_USAGE;
    if (status != EXIT_OK)
        return status;
    s->Q = padded(&c->problem.args.Q, s->Tr * s->Br);
    s->K = padded(&c->problem.args.K, s->Tc * s->Bc);
    s->V = padded(&c->problem.args.V, s->Tc * s->Bc);
    s->step = case_alloc(s->steps, sizeof *s->step);
    visits = case_alloc(s->steps, sizeof *visits);
    visits_set_order((VisitOrder)f->order, f->seed);
    visits_fill(s->Tr, s->Tc, visits);
    for (int64_t t = 0; !failed && t < s->steps; t++) {
        s->step[t].i = visits[t] / s->Tc;
        s->step[t].j = visits[t] % s->Tc;
        failed = make_step(c, s, t) != 0;
    }
    free(visits);
    return failed ? cli_no_memory("the reference") : EXIT_OK;
}

/* --- a run -------------------------------------------------------------------------------------*/

static SmallNumbers step_numbers(const JudgeCase *c, const IsolateTask *task, int64_t t)
{
    const Sliding *s = c->own;
    const SlidingStepTruth *step = &s->step[t];
    const AttnArgs *a = &c->problem.args;
    const int64_t d = a->shape.d, first = step->i * s->Br, first_k = step->j * s->Bc;
    const int64_t rows_k = a->shape.Nk - first_k < s->Bc ? a->shape.Nk - first_k : s->Bc;
    SmallNumbers n = {
        .pointer = {isolate_pointer(task, s->Q + first * d),
                    isolate_pointer(task, s->K + first_k * d),
                    isolate_pointer(task, s->V + first_k * d),
                    isolate_pointer(task, task->arrays[3].data),
                    isolate_pointer(task, task->arrays[4].data)},
        .integer = {(int32_t)s->Br, (int32_t)s->Bc, (int32_t)d, (int32_t)step->args.shape.Nq,
                    (int32_t)rows_k, (int32_t)step->queries.position,
                    (int32_t)attn_position(a->positions_k, first_k).position, (int32_t)a->rule.left,
                    (int32_t)a->rule.right, (int32_t)first, (int32_t)a->shape.Nq},
        .real = a->scale};
    return n;
}

/* The first wrong step in words; its arrays become the run's until the whole is compared. */
static void explain_step(const JudgeCase *c, int64_t t, const Check *check, JudgeRun *run)
{
    static const char *const orders[] = {"rows first", "columns first", "diagonal", "random"};
    const Sliding *s = c->own;
    const SlidingStepTruth *step = &s->step[t];
    const CheckArray *a = &check->array[check->array[CHECK_LSE].off ? CHECK_LSE : CHECK_O];
    const char *wrong = check->array[CHECK_O].off && check->array[CHECK_LSE].off
                            ? "global_o and global_lse are wrong"
                        : check->array[CHECK_O].off ? "global_o is wrong"
                                                    : "global_lse is wrong";
    snprintf(run->message, sizeof run->message,
             "after step %" PRId64 " of %" PRId64 " (block %" PRId64 " of queries, block %" PRId64
             " of keys; order: %s) %s%s. O and lse below: after the last step",
             t + 1, s->steps, step->i, step->j, orders[c->flags->order & 3],
             check->storage_intact ? wrong : "rows of other blocks were written to",
             t > 0 ? "; steps before it are right" : "");
    if (a->off)
        snprintf(run->trace, sizeof run->trace,
                 "after query tile %" PRId64 ", key tile %" PRId64 ": %s of row %" PRId64
                 " is %.6g, expected %.6g",
                 step->i, step->j, a == &check->array[CHECK_O] ? "global_o" : "global_lse",
                 step->i * s->Br + a->i, a->found, a->expected);
}

/* The rows of step t in the state against the oracle, the others against `before`. */
static int step_is_right(const JudgeCase *c, int64_t t, const float *O, const float *lse,
                         const float *before_O, const float *before_lse, Check *check)
{
    const Sliding *s = c->own;
    const SlidingStepTruth *step = &s->step[t];
    const int64_t d = c->truth.shape.d, Nq = c->truth.shape.Nq, first = step->i * s->Br;
    const int64_t behind = first + step->args.shape.Nq;
    const size_t row = (size_t)d * sizeof(float);
    AttnArgs args = step->args;
    memset(check, 0, sizeof *check);
    check->inputs_intact = 1;
    check->storage_intact =
        memcmp(O, before_O, (size_t)first * row) == 0 &&
        memcmp(lse, before_lse, (size_t)first * sizeof *lse) == 0 &&
        memcmp(O + behind * d, before_O + behind * d, (size_t)(Nq - behind) * row) == 0 &&
        memcmp(lse + behind, before_lse + behind, (size_t)(Nq - behind) * sizeof *lse) == 0;
    check->online_block = s->Bc;
    args.O = args.Q;
    args.O.data = (float *)(uintptr_t)(O + first * d);
    args.O.stride[0] = args.shape.Nq * d;
    args.O.stride[1] = args.O.stride[2] = d;
    args.lse = (float *)(uintptr_t)(lse + first);
    check_outputs(check, &step->oracle, &args, 0, 4.0);
    return check->pass;
}

static void traverse(const JudgeCase *c, const IsolateTask *task, JudgeRun *run)
{
    const Sliding *s = c->own;
    const size_t o_bytes = task->arrays[3].bytes, lse_bytes = task->arrays[4].bytes;
    float *O = task->arrays[3].data, *lse = task->arrays[4].data;
    float *before = malloc(o_bytes + lse_bytes);
    float *before_lse = before ? before + o_bytes / sizeof *before : NULL;
    Isolate *session = before ? isolate_open(task, &run->end) : NULL;
    int good = session != NULL;
    Check check;
    if (!before)
        run->end.end = ISOLATE_BROKEN;
    for (int64_t t = 0; good && t < s->steps; t++) {
        const SmallNumbers n = step_numbers(c, task, t);
        memcpy(before, O, o_bytes);
        memcpy(before_lse, lse, lse_bytes);
        good = isolate_call(session, "sliding_window_step", c->contract->symbol, &n, sizeof n) &&
               run->end.status == 0;
        run->ms += run->end.ms;
        if (good && !isolate_take(session)) {
            run->check.storage_intact = 0;
            snprintf(run->message, sizeof run->message,
                     "after step %" PRId64 " of %" PRId64 " memory outside global_o and global_lse "
                     "was written to",
                     t + 1, s->steps);
            break;
        }
        if (good && !run->message[0] && !step_is_right(c, t, O, lse, before, before_lse, &check))
            explain_step(c, t, &check, run);
    }
    if (session)
        isolate_close(session);
    free(before);
}

static void run_sliding(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                        JudgeRun *run)
{
    const Sliding *s = c->own;
    const int64_t d = c->flags->d, Nq = c->flags->Nq;
    const size_t row = (size_t)d * sizeof(float);
    IsolateTask task = run_task(limits, library);
    float *lse;
    if (run_outputs_new(c, run) != 0)
        return;
    lse = run->out.args.lse;
    memset(run->out.args.O.data, 0, (size_t)Nq * row);
    for (int64_t i = 0; i < Nq; i++)
        lse[i] = -INFINITY;
    run_add(&task, "Q", s->Q, (size_t)(s->Tr * s->Br) * row, 0);
    run_add(&task, "K", s->K, (size_t)(s->Tc * s->Bc) * row, 0);
    run_add(&task, "V", s->V, (size_t)(s->Tc * s->Bc) * row, 0);
    run_add(&task, "global_o", run->out.args.O.data, (size_t)Nq * row, 1);
    run_add(&task, "global_lse", lse, (size_t)Nq * sizeof *lse, 1);
    traverse(c, &task, run);
}

/* A step that was wrong stays wrong, whatever the end looks like. */
static void judge_sliding(const JudgeCase *c, JudgeRun *run)
{
    const int good = run->message[0] == 0;
    run_take_truth(c, run);
    run->check.online_block = ((const Sliding *)c->own)->Bc;
    check_outputs(&run->check, &c->oracle, &run->out.args, 0, 4.0);
    run->check.pass = run->check.pass && good;
}

static const char *const sliding_flags[] = {
    "--seq",   "-N",     "--seq-q", "--seq-kv",  "--head-dim", "-d",      "--causal", "--window",
    "--scale", "--seed", "--dist",  "--block-q", "--block-kv", "--order", NULL};
const Contract contract_sliding_window_step = {.name = "sliding_window_step",
                                               .symbol = "sliding_window_step_variant",
                                               .features = STAGE_HAS_OFFLINE,
                                               .flags = sliding_flags,
                                               .make = make_sliding,
                                               .run = run_sliding,
                                               .judge = judge_sliding};
