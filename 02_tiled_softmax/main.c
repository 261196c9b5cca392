/* SPDX-License-Identifier: MIT
 *
 * tiled_softmax: how can softmax be computed without seeing the whole row?
 *
 *     variant           device  idea                                         accesses of an element
 *     v0_three_pass     CPU     maximum, sum, write: a pass each             3 reads + 1 write
 *     v1_online         CPU     maximum and sum in one pass                  2 + 1
 *     v2_tiled_merge    CPU     blocks carry (m, l), a tree merges them      2 + 1
 *     v3_simd_threads   CPU     the same with vectors, threads, cache        1 + 1 to 4096 columns
 *     v4_fused_rows     CPU     attention on one tile of scores at a time    S is never stored
 *     v0_block_per_row  GPU     three passes by a block                      3 + 1
 *     v1_warp_online    GPU     one pass and a write by a warp               2 + 1
 *     v2_one_read       GPU     the row stays in registers                   1 + 1 to 32768 columns
 *     v3_split_row      GPU     many blocks share a row                      2 + 1
 *
 * The answer is the pair (m, l) and its merge, in tiled_softmax.h. v4 applies it to the output too,
 * and with that the N x N matrix is gone: stage 03 starts there.
 *
 *     tiled_softmax                              small, checks all variants on attention
 *     tiled_softmax --trace                      (m, l) filling in, block by block
 *     tiled_softmax --rows 8192 --cols 32768 --bench       the softmax alone
 */
#include <stdio.h>

#include "attn_config.h"
#include "bench/run.h"
#include "check/judge.h"
#include "cli/cli.h"
#include "models/model.h"
#include "report/pages.h"
#include "report/report.h"
#include "rows_mode.h"
#include "softmax_steps.h"
#include "tiled_softmax.h"

static const Variant variants[] = {
    {"v0_three_pass", ON_CPU, DTYPES_ALL, attention_v0_three_pass, NULL, 0,
     "maximum, sum, write: one pass each"},
    {"v1_online", ON_CPU, DTYPES_ALL, attention_v1_online, NULL, 0,
     "maximum and sum in one pass, corrected as the maximum grows"},
    {"v2_tiled_merge", ON_CPU, DTYPES_ALL, attention_v2_tiled_merge, NULL, 0,
     "blocks carry (m, l), a tree of merges makes the row's"},
    {"v3_simd_threads", ON_CPU, DTYPES_ALL, attention_v3_simd_threads, NULL, 0,
     "blocks that stay in the cache, vector exp, threads"},
    {"v4_fused_rows", ON_CPU, DTYPES_ALL, attention_v4_fused_rows, NULL, 0,
     "attention with the online state: one tile of scores exists"},
    {"v0_block_per_row", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(attention_v0_block_per_row), NULL, 1,
     "three passes, one block a row"},
    {"v1_warp_online", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(attention_v1_warp_online), NULL, 1,
     "online (m, l), one warp a row"},
    {"v2_one_read", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(attention_v2_one_read), NULL, 1,
     "the row stays in registers: one read, one write"},
    {"v3_split_row", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(attention_v3_split_row), NULL, 1,
     "many blocks share a row: two reads, one write"},
};

static const Stage stage = {"tiled_softmax",
                            "02_tiled_softmax",
                            "How can softmax be computed without seeing the whole row?",
                            TILED_SOFTMAX_ABI_VERSION,
                            STAGE_HAS_ROWS_COLS | STAGE_HAS_TRACE,
                            variants,
                            sizeof variants / sizeof *variants};

/* Inputs and outputs once, and S: written by the first product, touched by the softmax, read by
 * the second product. v4 has no S, but reads K and V again for each tile of queries. */
static double model_bytes(const Variant *v, const AttnArgs *args)
{
    const SoftmaxVariant *softmax = softmax_find(v->name, v->device);
    const AttnShape *n = &args->shape;
    if (!softmax)
        return v->forward == attention_v4_fused_rows ? model_row_tiles_bytes(args, FUSED_TILE_ROWS)
                                                     : 0.0;
    return model_compulsory_bytes(args, 0) +
           model_softmax_bytes(n->B * n->H * n->Nq, n->Nk,
                               softmax_model_accesses(softmax, n->Nk) + 2, sizeof(float));
}

/* Run one variant, compare its last timed output with the oracle, show the row. */
static int run_one(Report *report, const Cli *cli, const CliCase *c, const Problem *problem,
                   const Reference *reference, const Variant *v)
{
    RunResult out;
    Check check;
    int judged, status;
    if (v == &c->so) /* a user's own shared object: in a child process with limits */
        status = run_variant_so(&out, &stage, problem, c, cli);
    else
        status = run_variant(&out, v, problem, c);
    judged = out.ran && c->check;
    if (judged)
        status = exit_worst(status, judge_result(&check, reference, &out, c, v));
    if (status == EXIT_OK && out.status == ATTN_SKIP) {
        status = report_skip(report, c, v, out.failure);
    } else {
        ReportRow row = {
            c, problem, v, &out, judged ? &check : NULL, model_bytes(v, &problem->args), {0}};
        report_row(report, &row);
        if (out.ran)
            status = exit_worst(status, report_save(report, c, &out));
    }
    result_free(&out);
    return status;
}

static int run_case(Report *report, const Cli *cli, CliCase *c)
{
    Problem problem;
    Reference reference;
    const Variant *v = NULL;
    if (c->rows > 0)
        return bench_rows(report, cli, c);
    int ready, status = problem_make(&problem, c); /* Q K V from the seed, files or the bundle */
    if (status != EXIT_OK)
        return status;
    if (c->trace && pages_trace(c, &problem.args, softmax_trace, softmax_trace_steps) != 0)
        status = cli_no_memory("--trace");
    /* the oracle's O and lse and the bound of each element: once for all variants */
    status = exit_worst(status, reference_make(&reference, &problem, c));
    ready = status != EXIT_RUNTIME; /* a variant that fails does not stop the others */
    while (ready && status != EXIT_USAGE && (v = cli_next_variant(cli, c, v)) != NULL)
        status = exit_worst(status, run_one(report, cli, c, &problem, &reference, v));
    reference_free(&reference);
    problem_free(&problem);
    return status;
}

int main(int argc, char **argv)
{
    Cli cli;
    int status = cli_parse(&cli, &stage, argc, argv);
    if (status != CLI_CONTINUE)
        return status;
    status = report_cases(&cli, run_case);
    cli_free(&cli);
    return status;
}
