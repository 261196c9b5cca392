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
 * The answer is the pair (m, l) and its merge (units/softmax_state.h). v4 applies it to the output
 * too, and with that the N x N matrix is gone: stage 03 starts there.
 *
 *     tiled_softmax                              small, checks all variants on attention
 *     tiled_softmax --trace                      (m, l) filling in, block by block
 *     tiled_softmax --rows 8192 --cols 32768 --bench       the softmax alone
 */
#include "harness/models/model.h"
#include "harness/rows_mode.h"
#include "harness/stage_main.h"
#include "problem_rows_attention.h"
#include "tiled_softmax_rungs.h"
#include "variant_so.h"

STAGE_TRACE(tiled_softmax); /* trace.c */

static Variant variants[] = {
    CPU_RUNG(tiled_softmax, v0_three_pass),   CPU_RUNG(tiled_softmax, v1_online),
    CPU_RUNG(tiled_softmax, v2_tiled_merge),  CPU_RUNG(tiled_softmax, v3_simd_threads),
    CPU_RUNG(tiled_softmax, v4_fused_rows),   CUDA_RUNG(tiled_softmax, v0_block_per_row),
    CUDA_RUNG(tiled_softmax, v1_warp_online), CUDA_RUNG(tiled_softmax, v2_one_read),
    CUDA_RUNG(tiled_softmax, v3_split_row),
};

static const Stage stage = {"tiled_softmax",
                            "02_tiled_softmax",
                            "How can softmax be computed without seeing the whole row?",
                            TILED_SOFTMAX_ABI_VERSION,
                            STAGE_HAS_ROWS_COLS | STAGE_HAS_TRACE,
                            variants,
                            sizeof variants / sizeof *variants};

static const RowsTable table = {rows_entries, sizeof rows_entries / sizeof *rows_entries};

/* Inputs and outputs once, and S: written by the first product, touched by the softmax, read by
 * the second product. v4 has no S, but reads K and V again for each tile of queries. */
static void model(ReportRow *row)
{
    const AttnArgs *args = &row->problem->args;
    const AttnShape *n = &args->shape;
    const RowsEntry *rows = rows_find(&table, row->variant->name, row->variant->device);
    if (!rows)
        row->model_bytes = model_row_tiles_bytes(args, stage_tiles(row).Br);
    else
        row->model_bytes =
            model_compulsory_bytes(args, 0) +
            model_softmax_bytes(n->B * n->H * n->Nq, n->Nk,
                                rows_model_accesses(rows->rung, n->Nk) + 2, sizeof(float));
}

/* --rows --cols: the softmax alone. */
static int rows_case(Report *report, const Cli *cli, CliCase *c, int *status)
{
    if (c->rows == 0)
        return 0;
    *status = bench_rows(&table, report, cli, c);
    return 1;
}

int main(int argc, char **argv)
{
    static const StageMain tiled_softmax = {.variants = variants,
                                            .trace = tiled_softmax_trace,
                                            .trace_steps = tiled_softmax_trace_steps,
                                            .model = model,
                                            .other_case = rows_case};
    return stage_main(&stage, &tiled_softmax, argc, argv);
}
