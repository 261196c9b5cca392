/* SPDX-License-Identifier: MIT
 *
 * contract_simple.c: the contracts for one head, flash_simple and backward_steps.
 *
 * The backward steps are judged one by one. Each gets correct inputs from the reference, rounded to
 * float32 as a forward pass would leave them, so that an error in one step costs the points of this
 * step only. What the bounds of the oracle say about gradients holds for such inputs: they allow
 * for an O and an lse that are off by their own bounds. delta has no bound there. It is a dot
 * product of d terms:
 *
 *     |delta - ref| <= c u (D + 1) sum_x |dO O| + 2^-126        D = 1 + sqrt(d)/4, c = 4
 *
 * with the D of the scores, and one rounding more for the end.
 *
 * flash_cuda is flash_simple by kernels in a model of a GPU. It adds what these did to memory: who
 * launched none, or moved fewer bytes than the result depends on, computed elsewhere.
 *
 * Interface: contract_flash_simple, contract_flash_cuda, contract_backward_steps (contract.h).
 */
#include "course/contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ORDER 4.0 /* c of the bounds: plain float32 */

static size_t tensor_bytes(const JudgeCase *c)
{
    return (size_t)(c->flags->Nq * c->flags->d) * sizeof(float);
}

static size_t row_bytes(const JudgeCase *c)
{
    return (size_t)c->flags->Nq * sizeof(float);
}

static int make_reference(JudgeCase *c)
{
    return case_is_square(c) == EXIT_OK ? case_make_reference(c) : EXIT_USAGE;
}

static int is_causal(const JudgeCase *c)
{
    return c->flags->mask == ATTN_MASK_CAUSAL_LOWER_RIGHT ||
           c->flags->mask == ATTN_MASK_CAUSAL_UPPER_LEFT;
}

/* --- flash_simple ------------------------------------------------------------------------------*/

static void add_flash_arrays(const JudgeCase *c, IsolateTask *task, JudgeRun *run)
{
    const AttnArgs *in = &c->problem.args;
    run_add(task, "Q", in->Q.data, tensor_bytes(c), 0);
    run_add(task, "K", in->K.data, tensor_bytes(c), 0);
    run_add(task, "V", in->V.data, tensor_bytes(c), 0);
    run_add(task, "O", run->out.args.O.data, tensor_bytes(c), 1);
    run_add(task, "lse", run->out.args.lse, row_bytes(c), 1);
}

static SmallNumbers numbers_of(const JudgeCase *c, const IsolateTask *task)
{
    return run_numbers(task, c->flags->Nq, c->flags->d, is_causal(c));
}

static void run_flash_simple(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                             JudgeRun *run)
{
    IsolateTask task = run_task(limits, library);
    if (run_outputs_new(c, run) != 0)
        return;
    add_flash_arrays(c, &task, run);
    run_add_trace(&task, run);
    run_small(&task, "flash_simple", c->contract->symbol, numbers_of(c, &task), run);
}

static void judge_flash_simple(const JudgeCase *c, JudgeRun *run)
{
    run_take_truth(c, run);
    check_outputs(&run->check, &c->oracle, &run->out.args, 0, ORDER);
}

static const char *const flash_simple_flags[] = {"--seq",    "-N",     "--head-dim", "-d",
                                                 "--causal", "--seed", "--dist",     NULL};
const Contract contract_flash_simple = {.name = "flash_simple",
                                        .symbol = "flash_simple_variant",
                                        .flags = flash_simple_flags,
                                        .runs_on_inputs = 1,
                                        .make = make_reference,
                                        .run = run_flash_simple,
                                        .judge = judge_flash_simple};

/* --- flash_cuda --------------------------------------------------------------------------------*/

enum { SECTOR = 32, FINDING_BYTES = 1024 };

/* A kernel that is about tiles in shared memory reads them at least so often, by warps and float4
 * for 16 rows of a thread. */
static double least_shared_reads(const JudgeCase *c)
{
    const double N = (double)c->flags->Nq;
    return 2.0 * N * N * (double)c->flags->d / (32.0 * 4.0 * 16.0) / (is_causal(c) ? 2.0 : 1.0);
}

/* O and lse, and a place for each that kernels write to: less than Q, K and V of 16 tokens. */
static double most_back(const JudgeCase *c)
{
    return 2.0 * (double)(tensor_bytes(c) + row_bytes(c)) + 1024.0;
}

/* What the kernels did, and what is no kernel. */
static void judge_counts(const JudgeCase *c, const double *counts, JudgeRun *run)
{
    const double read = 3.0 * (double)tensor_bytes(c) / SECTOR;
    const double written = (double)(tensor_bytes(c) + row_bytes(c)) / SECTOR;
    const double moved = counts[CUDA_READ] + counts[CUDA_WRITTEN];
    int sane = 1;
    for (int n = 0; n < CUDA_COUNTS; n++) /* they come from the submission's memory */
        sane = sane && isfinite(counts[n]) && counts[n] >= 0.0;
    if (!sane || counts[CUDA_IDEAL] > counts[CUDA_WAVES])
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "it overwrote the counts of its kernels");
    else if (counts[CUDA_BLOCKS] <= 0.0)
        snprintf(run->end.sentence, sizeof run->end.sentence, "it launched no kernel");
    else if (counts[CUDA_READ] < read || counts[CUDA_WRITTEN] < written)
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "its kernels read %.0f sectors of 32 bytes and wrote %.0f: the result depends on "
                 "%.0f, and has %.0f",
                 counts[CUDA_READ], counts[CUDA_WRITTEN], read, written);
    else if (counts[CUDA_BACK] > most_back(c))
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "%.0f bytes came back to the host, or are shared with it, accepted are %.0f: O "
                 "and lse, which kernels compute",
                 counts[CUDA_BACK], most_back(c));
    else {
        run->sectors = (read + written) / moved;
        if (counts[CUDA_SHARED] >= least_shared_reads(c) && counts[CUDA_WAVES] > 0.0)
            run->banks = counts[CUDA_IDEAL] / counts[CUDA_WAVES];
        return;
    }
    run->end.end = ISOLATE_REFUSED;
}

static void run_flash_cuda(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                           JudgeRun *run)
{
    IsolateTask task = run_task(limits, library);
    char finding[FINDING_BYTES] = "";
    double counts[CUDA_COUNTS] = {0.0};
    Isolate *session;
    SmallNumbers n;
    int done = 0, intact = 0;
    if (run_outputs_new(c, run) != 0)
        return;
    add_flash_arrays(c, &task, run);
    run_add(&task, "counts", counts, sizeof counts, 1);
    run_add(&task, "finding", finding, sizeof finding, 1);
    n = numbers_of(c, &task);
    session = isolate_open(&task, &run->end);
    if (session) {
        done = isolate_call(session, "flash_cuda", c->contract->symbol, &n, sizeof n);
        intact = isolate_take(session);
        isolate_close(session);
    }
    run->ms = run->end.ms;
    finding[sizeof finding - 1] = 0;
    if (finding[0]) { /* it may have ended the process */
        run->end.end = ISOLATE_FINISHED;
        run->end.status = 0;
        run->code = "gpu_rule_broken";
        snprintf(run->message, sizeof run->message, "%.700s", finding);
    } else if (done && !intact) {
        run->end.end = ISOLATE_CRASHED;
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "memory outside the outputs was written to");
    } else if (done && run->end.status == 0)
        judge_counts(c, counts, run);
}

static void judge_flash_cuda(const JudgeCase *c, JudgeRun *run)
{
    if (!run->message[0])
        judge_flash_simple(c, run);
}

const Contract contract_flash_cuda = {.name = "flash_cuda",
                                      .symbol = "flash_cuda_variant",
                                      .flags = flash_simple_flags,
                                      .make = make_reference,
                                      .run = run_flash_cuda,
                                      .judge = judge_flash_cuda};

/* --- backward_steps ----------------------------------------------------------------------------*/

/* The reference in float32: what the forward pass and the other steps leave behind. */
typedef struct StepInputs {
    float *O, *lse, *delta;            /* [N][d], [N], [N] */
    double *delta_value, *delta_bound; /* [N], of this float O */
} StepInputs;

static StepInputs *round_inputs(const JudgeCase *c)
{
    const int64_t N = c->flags->Nq, d = c->flags->d;
    const double D = 1.0 + sqrt((double)d) / 4.0;
    const float *dO = c->problem.args.dO.data;
    StepInputs *s = case_alloc(1, sizeof *s);
    s->O = case_alloc(N * d, sizeof *s->O);
    s->lse = case_alloc(N, sizeof *s->lse);
    s->delta = case_alloc(N, sizeof *s->delta);
    s->delta_value = case_alloc(N, sizeof *s->delta_value);
    s->delta_bound = case_alloc(N, sizeof *s->delta_bound);
    for (int64_t i = 0; i < N; i++) {
        double sum = 0.0, size = 0.0;
        for (int64_t x = 0; x < d; x++) {
            const int64_t e = i * d + x;
            s->O[e] = (float)c->oracle.O.value[e];
            sum += (double)dO[e] * (double)s->O[e];
            size += fabs((double)dO[e] * (double)s->O[e]);
        }
        s->lse[i] = (float)c->oracle.lse.value[i];
        s->delta[i] = (float)sum;
        s->delta_value[i] = sum;
        s->delta_bound[i] = ORDER * 0x1p-24 * (D + 1.0) * size + 0x1p-126;
    }
    return s;
}

static int make_steps(JudgeCase *c)
{
    const int status = c->part < 0
                           ? cli_refuse("--part: found none, accepted is one of delta, dV, dK, "
                                        "dQ")
                           : make_reference(c);
    c->own = status == EXIT_OK ? round_inputs(c) : NULL;
    return status;
}

static const struct {
    const char *row, *symbol, *arrays[8];
} parts[] = {
    [PART_DELTA] = {"delta", "backward_delta_variant", {"O", "dO", "delta"}},
    [PART_DV] = {"dV", "backward_dv_variant", {"Q", "K", "lse", "dO", "dV"}},
    [PART_DK] = {"dK", "backward_dk_variant", {"Q", "K", "V", "lse", "dO", "delta", "dK"}},
    [PART_DQ] = {"dQ", "backward_dq_variant", {"Q", "K", "V", "lse", "dO", "delta", "dQ"}},
};

/* The array of this name: input, or what the step writes. */
static void add_step_array(const JudgeCase *c, IsolateTask *task, const char *name, JudgeRun *run)
{
    const AttnArgs *in = &c->problem.args;
    const StepInputs *s = c->own;
    const int rows = strcmp(name, "lse") == 0 || strcmp(name, "delta") == 0;
    const int last = strcmp(name, parts[c->part].row) == 0;
    const void *data = strcmp(name, "Q") == 0     ? in->Q.data
                       : strcmp(name, "K") == 0   ? in->K.data
                       : strcmp(name, "V") == 0   ? in->V.data
                       : strcmp(name, "dO") == 0  ? in->dO.data
                       : strcmp(name, "O") == 0   ? s->O
                       : strcmp(name, "lse") == 0 ? s->lse
                       : strcmp(name, "dV") == 0  ? run->out.args.dV.data
                       : strcmp(name, "dK") == 0  ? run->out.args.dK.data
                       : strcmp(name, "dQ") == 0  ? run->out.args.dQ.data
                       : last                     ? run->values[0]
                                                  : s->delta;
    run_add(task, name, data, rows ? row_bytes(c) : tensor_bytes(c), last);
}

static void run_steps(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                      JudgeRun *run)
{
    IsolateTask task = run_task(limits, library);
    if (run_outputs_new(c, run) != 0 || !run_values_new(run, 0, c->flags->Nq))
        return;
    for (int i = 0; parts[c->part].arrays[i]; i++)
        add_step_array(c, &task, parts[c->part].arrays[i], run);
    run_small(&task, parts[c->part].row, parts[c->part].symbol, numbers_of(c, &task), run);
}

static void copy_rounded(float *to, const OracleArray *from)
{
    for (int64_t n = 0; n < from->count; n++)
        to[n] = (float)from->value[n];
}

/* All that this step does not compute is as the reference has it, so check and hints see one
 * backward pass in which at most this array is wrong. */
static void judge_steps(const JudgeCase *c, JudgeRun *run)
{
    const StepInputs *s = c->own;
    const AttnArgs *out = &run->out.args;
    if (c->part == PART_DELTA) {
        judge_floats(&run->check.array[0], "delta", run->values[0], s->delta_value, s->delta_bound,
                     c->flags->Nq, 1);
        run->check.pass = run->check.array[0].off == 0;
        return;
    }
    run_take_truth(c, run);
    copy_rounded(out->O.data, &c->oracle.O);
    copy_rounded(out->lse, &c->oracle.lse);
    if (c->part != PART_DV)
        copy_rounded(out->dV.data, &c->oracle.dV);
    if (c->part != PART_DK)
        copy_rounded(out->dK.data, &c->oracle.dK);
    if (c->part != PART_DQ)
        copy_rounded(out->dQ.data, &c->oracle.dQ);
    check_outputs(&run->check, &c->oracle, out, 1, ORDER);
    for (int which = 0; which < CHECK_COUNT; which++) /* the others are ours */
        if (which != (c->part == PART_DV ? CHECK_DV : c->part == PART_DK ? CHECK_DK : CHECK_DQ))
            run->check.array[which].checked = 0;
}

static const char *const backward_steps_flags[] = {
    "--seq", "-N", "--head-dim", "-d", "--causal", "--seed", "--dist", "--part", NULL};
const Contract contract_backward_steps = {.name = "backward_steps",
                                          .symbol = "backward_delta_variant",
                                          .features = STAGE_ALWAYS_BACKWARD,
                                          .flags = backward_steps_flags,
                                          .make = make_steps,
                                          .run = run_steps,
                                          .judge = judge_steps};
