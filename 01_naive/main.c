/* SPDX-License-Identifier: MIT
 *
 * naive: what does attention compute, and what does it cost?
 *
 *     variant               device  idea                                       verdict
 *     v0_loops              CPU     one loop for each index of the formula     read this first
 *     v1_blas               CPU     products by OpenBLAS, vector exp, threads  the CPU baseline
 *     v0_thread_per_score   GPU     one thread computes one score              starved for data
 *     v1_cublas             GPU     both products by cuBLAS                    the GPU baseline
 *
 * All four write the whole Nq x Nk matrix of scores to memory and read it back, and no arithmetic
 * trick repairs that: time and memory both grow with N^2. Stage 02 takes the softmax apart to see
 * why, and stage 03 stops writing the matrix.
 *
 *     naive                       small, checks every variant that this machine can run
 *     naive --trace               S, P and O of one head of 4 tokens
 *     naive -N 2048 --bench       time them; add --backward for the gradients
 *
 * The checks live in common/: inputs from a seed, a float64 oracle with an error bound for each
 * element, memory with guard pages. What is left here is the order of events.
 */
#include <stdio.h>

#include "attn_config.h"
#include "bench/run.h"
#include "check/judge.h"
#include "cli/cli.h"
#include "models/model.h"
#include "naive.h"
#include "naive_steps.h"
#include "report/pages.h"
#include "report/report.h"

static const Variant variants[] = {
    {"v0_loops", ON_CPU, DTYPES_ALL, naive_v0_loops, naive_v0_loops_backward, 0,
     "the formula, one loop for each index"},
#ifdef HAVE_OPENBLAS
    {"v1_blas", ON_CPU, DTYPES_ALL, naive_v1_blas, naive_v1_blas_backward, 0,
     "both products by OpenBLAS, vector exp, threads over heads"},
#endif
    {"v0_thread_per_score", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(naive_v0_thread_per_score),
     ATTN_CUDA_FN(naive_v0_thread_per_score_backward), 0, "one thread computes one score"},
#if defined(HAVE_CUBLAS) || !defined(HAVE_CUDA)
    {"v1_cublas", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(naive_v1_cublas),
     ATTN_CUDA_FN(naive_v1_cublas_backward), 1, "both products by cuBLAS, no TF32 for f32"},
#endif
};

static const Stage stage = {"naive",
                            "01_naive",
                            "What does attention compute, and what does it cost?",
                            NAIVE_ABI_VERSION,
                            STAGE_HAS_BACKWARD | STAGE_HAS_TRACE,
                            variants,
                            sizeof variants / sizeof *variants};

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
        ReportRow row = {c,
                         problem,
                         v,
                         &out,
                         judged ? &check : NULL,
                         model_materialised_bytes(&problem->args, problem->backward),
                         {0}};
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
    int ready,
        status = problem_make(&problem, c); /* Q K V (dO) from the seed, files or the bundle */
    if (status != EXIT_OK)
        return status;
    if (c->trace && pages_trace(c, &problem.args, naive_trace, naive_trace_steps) != 0)
        status = cli_no_memory("--trace");
    /* the oracle's O, lse (dQ, dK, dV) and the bound of each element: once for all variants */
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
