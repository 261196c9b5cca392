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
 * element, memory with guard pages, and the order of events (harness/stage_main.h).
 */
#include "attn_config.h"
#include "harness/models/model.h"
#include "harness/stage_main.h"
#include "naive_rungs.h"
#include "variant_so.h"

STAGE_TRACE(naive); /* trace.c */

static Variant variants[] = {
    CPU_RUNG(naive, v0_loops),
    CPU_RUNG(naive, v1_blas),
    CUDA_RUNG(naive, v0_thread_per_score),
    CUDA_RUNG(naive, v1_cublas),
};

static const Stage stage = {"naive",
                            "01_naive",
                            "What does attention compute, and what does it cost?",
                            NAIVE_ABI_VERSION,
                            STAGE_HAS_BACKWARD | STAGE_HAS_TRACE,
                            variants,
                            sizeof variants / sizeof *variants};

static void model(ReportRow *row)
{
    row->model_bytes = model_materialised_bytes(&row->problem->args, row->problem->backward);
}

int main(int argc, char **argv)
{
    static const StageMain naive = {.variants = variants,
                                    .trace = naive_trace,
                                    .trace_steps = naive_trace_steps,
                                    .model = model};
    return stage_main(&stage, &naive, argc, argv);
}
