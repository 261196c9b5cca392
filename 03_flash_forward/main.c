/* SPDX-License-Identifier: MIT
 *
 * flash_forward: how can exact attention never write the N x N matrix, and why is that faster
 * although it computes more?
 *
 *     variant            device  idea
 *     v0_fa1_tiles       CPU     Algorithm 1 of the paper: keys outside, O and (m, l) go back
 *     v1_fa2_rows        CPU     queries outside: O and (m, l) stay, one division at the end
 *     v2_packing         CPU     keys and values laid out once, in the order of use
 *     v3_register_tiles  CPU     a tile of sums in registers
 *     v4_exp2            CPU     powers of 2 in vectors
 *     v5_own_heads       CPU     each thread packs the heads that it computes
 *     library            CPU     all of these, for every mask, stride and dtype
 *     v0_fa1             GPU     keys outside: O, m and l through device memory
 *     v1_fa2             GPU     queries outside, state in registers
 *     v2_register_tiles  GPU     tiles in registers and shared memory, vector loads
 *     v3_mma             GPU     tensor cores, P stays in registers
 *     v4_ldmatrix        GPU     four fragments a load, from swizzled shared memory
 *     v5_cp_async        GPU     loads that overlap with products
 *     v6_exp2            GPU     powers of two: scale and maximum in one multiply-add
 *     v7_full_tiles      GPU     no mask where all of a tile is seen
 *     v8_schedule        GPU     longest row tiles first, Q in registers
 *     library            GPU     all of attention, fast: what the other stages call
 *   and on Hopper (sm_90a), from v9 on, in plain CUDA and PTX:
 *     v9_wgmma ... v14_persistent: --list tells the idea of each
 *
 * The answer is stage 02's online state, applied to tiles that fit in fast memory; what is read
 * again and again is then a tile, and how often depends on the order of two loops.
 *
 *     flash_forward                              small, checks all variants
 *     flash_forward --trace                      m, l and O filling in, tile by tile
 *     flash_forward --sram 4096 --bench          v0 and v1 with a smaller fast memory
 */
#include <stdio.h>

#include "attn_config.h"
#include "bench/run.h"
#include "check/judge.h"
#include "cli/cli.h"
#include "cuda/device.h"
#include "cuda/flash_rungs.h"
#include "cuda/hopper_rungs.h"
#include "flash_forward.h"
#include "flash_forward_rungs.h"
#include "flash_steps.h"
#include "harness/stage_main.h"
#include "library/flash_library.h"
#include "models/model.h"
#include "report/pages.h"
#include "report/report.h"
#include "units/fast_memory.h"

static Variant variants[] = {
    CPU_RUNG(flash_forward, v0_fa1_tiles),
    CPU_RUNG(flash_forward, v1_fa2_rows),
    CPU_RUNG(flash_forward, v2_packing),
    CPU_RUNG(flash_forward, v3_register_tiles),
    CPU_RUNG(flash_forward, v4_exp2),
    CPU_RUNG(flash_forward, v5_own_heads),
    {"library", ON_CPU, DTYPES_ALL, flash_forward_library_cpu, NULL, 0,
     "v5 for every mask, stride, dtype and state to resume from"},
    {"v0_fa1", ON_CUDA, DTYPES_F32, ATTN_CUDA_FN(flash_forward_v0_fa1), NULL, VARIANT_PLAIN,
     "keys outside: O, m and l through device memory"},
    {"v1_fa2", ON_CUDA, DTYPES_F32, ATTN_CUDA_FN(flash_forward_v1_fa2), NULL, VARIANT_PLAIN,
     "queries outside, state in registers"},
    {"v2_register_tiles", ON_CUDA, DTYPES_F32, ATTN_CUDA_FN(flash_forward_v2_register_tiles), NULL,
     VARIANT_PLAIN, "tiles in registers and shared memory, vector loads"},
    {"v3_mma", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_v3_mma), NULL,
     VARIANT_PLAIN | VARIANT_TENSOR_CORES, "tensor cores, P stays in registers"},
    {"v4_ldmatrix", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_v4_ldmatrix), NULL,
     VARIANT_PLAIN | VARIANT_TENSOR_CORES, "four fragments a load, from swizzled shared memory"},
    {"v5_cp_async", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_v5_cp_async), NULL,
     VARIANT_PLAIN | VARIANT_TENSOR_CORES, "loads that overlap with products"},
    {"v6_exp2", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_v6_exp2), NULL,
     VARIANT_PLAIN | VARIANT_TENSOR_CORES, "powers of two: scale and maximum in one multiply-add"},
    {"v7_full_tiles", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_v7_full_tiles), NULL,
     VARIANT_PLAIN | VARIANT_TENSOR_CORES, "no mask where all of a tile is seen"},
    {"v8_schedule", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_v8_schedule), NULL,
     VARIANT_PLAIN | VARIANT_TENSOR_CORES, "longest row tiles first, Q in registers"},
    {"v9_wgmma", ON_CUDA, DTYPES_16BIT, ATTN_HOPPER_FN(flash_forward_v9_wgmma), NULL,
     VARIANT_TENSOR_CORES | VARIANT_PLAIN,
     "wgmma and the copy engine, everything waits for everything"},
    {"v10_warp_specialised", ON_CUDA, DTYPES_16BIT,
     ATTN_HOPPER_FN(flash_forward_v10_warp_specialised), NULL, VARIANT_TENSOR_CORES | VARIANT_PLAIN,
     "one warpgroup loads, the others compute"},
    {"v11_overlapped_softmax", ON_CUDA, DTYPES_16BIT,
     ATTN_HOPPER_FN(flash_forward_v11_overlapped_softmax), NULL,
     VARIANT_TENSOR_CORES | VARIANT_PLAIN,
     "the next S is multiplied, and this O, while the softmax runs"},
    {"v12_lazy_rescale", ON_CUDA, DTYPES_16BIT, ATTN_HOPPER_FN(flash_forward_v12_lazy_rescale),
     NULL, VARIANT_TENSOR_CORES | VARIANT_PLAIN,
     "the maximum, and O with it, moves only when it must"},
    {"v13_more_warpgroups", ON_CUDA, DTYPES_16BIT,
     ATTN_HOPPER_FN(flash_forward_v13_more_warpgroups), NULL, VARIANT_TENSOR_CORES | VARIANT_PLAIN,
     "smaller key tiles, so that more warpgroups fit"},
    {"v14_persistent", ON_CUDA, DTYPES_16BIT, ATTN_HOPPER_FN(flash_forward_v14_persistent), NULL,
     VARIANT_TENSOR_CORES | VARIANT_PLAIN,
     "blocks that stay: the next row tile loads while one ends"},
    {"library", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(flash_forward_library_cuda), NULL,
     VARIANT_TENSOR_CORES, "every mask, stride, segment and d; full tiles, split keys, resume"},
};

static const Stage stage = {"flash_forward",
                            "03_flash_forward",
                            "How can exact attention never write the N x N matrix, and why is that "
                            "faster although it computes more?",
                            FLASH_FORWARD_ABI_VERSION,
                            STAGE_HAS_TRACE | STAGE_HAS_SRAM | STAGE_HAS_SMEM_LIMIT,
                            variants,
                            sizeof variants / sizeof *variants};

/* --- the byte model: each variant tells its tiles, models/model.c does the sums ----------------*/

static ModelTraffic fa1_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_fa1_traffic(args, tiles.Br, tiles.Bc);
}

static ModelTraffic fa2_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_fa2_traffic(args, tiles.Br, tiles.Bc, tiles.splits);
}

static ModelTraffic packed_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_packed_traffic(args, tiles.Br, tiles.Bc);
}

static const struct {
    AttnFn forward;
    FlashTiles (*tiles)(const AttnArgs *args);
    ModelTraffic (*traffic)(const AttnArgs *args, FlashTiles tiles);
} models[] = {
    {flash_forward_library_cpu, flash_tiles_library_cpu, packed_traffic},
    {ATTN_CUDA_FN(flash_forward_v0_fa1), ATTN_CUDA_FN(flash_tiles_v0_fa1), fa1_traffic},
    {ATTN_CUDA_FN(flash_forward_v1_fa2), ATTN_CUDA_FN(flash_tiles_v1_fa2), fa2_traffic},
    {ATTN_CUDA_FN(flash_forward_v2_register_tiles), ATTN_CUDA_FN(flash_tiles_v2_register_tiles),
     fa2_traffic},
    {ATTN_CUDA_FN(flash_forward_v3_mma), ATTN_CUDA_FN(flash_tiles_v3_mma), fa2_traffic},
    {ATTN_CUDA_FN(flash_forward_v4_ldmatrix), ATTN_CUDA_FN(flash_tiles_v4_ldmatrix), fa2_traffic},
    {ATTN_CUDA_FN(flash_forward_v5_cp_async), ATTN_CUDA_FN(flash_tiles_v5_cp_async), fa2_traffic},
    {ATTN_CUDA_FN(flash_forward_v6_exp2), ATTN_CUDA_FN(flash_tiles_v6_exp2), fa2_traffic},
    {ATTN_CUDA_FN(flash_forward_v7_full_tiles), ATTN_CUDA_FN(flash_tiles_v7_full_tiles),
     fa2_traffic},
    {ATTN_CUDA_FN(flash_forward_v8_schedule), ATTN_CUDA_FN(flash_tiles_v8_schedule), fa2_traffic},
    {ATTN_HOPPER_FN(flash_forward_v9_wgmma), ATTN_HOPPER_FN(flash_tiles_v9_wgmma), fa2_traffic},
    {ATTN_HOPPER_FN(flash_forward_v10_warp_specialised),
     ATTN_HOPPER_FN(flash_tiles_v10_warp_specialised), fa2_traffic},
    {ATTN_HOPPER_FN(flash_forward_v11_overlapped_softmax),
     ATTN_HOPPER_FN(flash_tiles_v11_overlapped_softmax), fa2_traffic},
    {ATTN_HOPPER_FN(flash_forward_v12_lazy_rescale), ATTN_HOPPER_FN(flash_tiles_v12_lazy_rescale),
     fa2_traffic},
    {ATTN_HOPPER_FN(flash_forward_v13_more_warpgroups),
     ATTN_HOPPER_FN(flash_tiles_v13_more_warpgroups), fa2_traffic},
    {ATTN_HOPPER_FN(flash_forward_v14_persistent), ATTN_HOPPER_FN(flash_tiles_v14_persistent),
     fa2_traffic},
    {ATTN_CUDA_FN(flash_forward_library_cuda), ATTN_CUDA_FN(flash_tiles_library_cuda), fa2_traffic},
};

/* A rung on a CPU moves float32, whatever the tensors hold. v0 and v1 have tiles for --sram. */
static void report_rung_traffic(ReportRow *row, const Variant *v, AttnArgs args)
{
    const Tiles tiles = stage_tiles(row);
    const int keys_outside = strcmp(v->name, "v0_fa1_tiles") == 0;
    const int counted = keys_outside || strcmp(v->name, "v1_fa2_rows") == 0;
    ModelTraffic traffic;
    args.Q.dtype = ATTN_F32;
    traffic = keys_outside ? model_fa1_traffic(&args, tiles.Br, tiles.Bc)
              : counted    ? model_fa2_traffic(&args, tiles.Br, tiles.Bc, 1)
                           : model_packed_traffic(&args, tiles.Br, tiles.Bc);
    row->model_bytes = traffic.load_bytes + traffic.store_bytes;
    row->tiles.Br = tiles.Br;
    row->tiles.Bc = tiles.Bc;
    row->tiles.splits = 1;
    row->tiles.sram_elements = !counted ? 0 : row->c->sram ? row->c->sram : FAST_ELEMENTS;
}

/* Fills in what the row says about traffic; nothing for a user's shared object. */
static void tell_traffic(ReportRow *row, const Variant *v, const AttnArgs *args)
{
    if (v->rung && v->device == ON_CPU)
        report_rung_traffic(row, v, *args);
    for (size_t m = 0; v->forward && m < sizeof models / sizeof *models; m++) {
        if (models[m].forward != v->forward)
            continue;
        FlashTiles tiles = models[m].tiles(args);
        ModelTraffic traffic = models[m].traffic(args, tiles);
        row->model_bytes = traffic.load_bytes + traffic.store_bytes;
        row->tiles.Br = tiles.Br;
        row->tiles.Bc = tiles.Bc;
        row->tiles.splits = tiles.splits;
    }
}

/* Run one variant, compare its last timed output with the oracle, show the row. */
static int run_one(Report *report, const Cli *cli, const CliCase *c, const Inputs *problem,
                   const Reference *reference, const Variant *v)
{
    RunResult out;
    Check check;
    int judged, status;
    device_set_smem_limit(c->smem_limit);
    if (v == &c->so) /* a user's own shared object: in a child process with limits */
        status = run_variant_so(&out, &stage, problem, c, cli);
    else
        status = run_variant(&out, v, problem, c);
    if (out.status == ATTN_SKIP)
        (void)device_smem_explain(out.failure, sizeof out.failure);
    judged = out.ran && c->check;
    if (judged)
        status = exit_worst(status, judge_result(&check, reference, &out, c, v));
    if (status == EXIT_OK && out.status == ATTN_SKIP) {
        status = report_skip(report, c, v, out.failure);
    } else {
        ReportRow row = {c, problem, v, &out, judged ? &check : NULL, 0.0, {0}};
        tell_traffic(&row, v, &out.args);
        report_row(report, &row);
        if (out.ran)
            status = exit_worst(status, report_save(report, c, &out));
    }
    result_free(&out);
    return status;
}

/* --sram M is what tile sizes are made from; this is what has to fit. */
static void print_fast_memory(const AttnShape *shape, int64_t M)
{
    const FastMemory fast = fast_memory(M, (int)shape->Nq, (int)shape->Nk, (int)shape->d);
    const int64_t elements = fast_elements(&fast);
    printf("# M = %lld elements: v0_fa1_tiles and v1_fa2_rows have tiles of %d x %d; with S, m "
           "and l %lld elements have to fit, %.2f M\n",
           (long long)M, fast.Br, fast.Bc, (long long)elements, (double)elements / (double)M);
}

/* --trace on one screen, or with --step page by page. 0, or -1: no memory. */
static int show_trace(const AttnArgs *args, const CliCase *c)
{
    Pages pages;
    FILE *to;
    if (!c->step)
        return flash_trace(args, c->sram, stdout);
    if (!(to = pages_open(&pages)))
        return -1;
    int failed = flash_trace_steps(args, c->sram, to);
    return pages_play(&pages, stdin, stdout) | failed;
}

static int run_case(Report *report, const Cli *cli, const CliCase *c)
{
    Inputs problem;
    Reference reference;
    const Variant *v = NULL;
    int status = inputs_make(&problem, c); /* Q K V from the seed, files or the bundle */
    if (status != EXIT_OK)
        return status;
    if (c->sram && !cli->quiet)
        print_fast_memory(&problem.args.shape, c->sram);
    if (c->trace && show_trace(&problem.args, c) != 0)
        status = cli_no_memory("--trace");
    /* the oracle's O and lse and the bound of each element: once for all variants */
    status = exit_worst(status, reference_make(&reference, &problem, c));
    while (status != EXIT_RUNTIME && status != EXIT_USAGE &&
           (v = cli_next_variant(cli, c, v)) != NULL)
        status = exit_worst(status, run_one(report, cli, c, &problem, &reference, v));
    reference_free(&reference);
    inputs_free(&problem);
    return status;
}

int main(int argc, char **argv)
{
    Cli cli;
    Report report;
    int i, status;
    for (i = 0; i < stage.variant_count; i++)
        variant_of_rung(&variants[i]);
    status = cli_parse(&cli, &stage, argc, argv);
    if (status != CLI_CONTINUE)
        return status;
    status = report_open(&report, &cli);
    for (i = 0; status != EXIT_USAGE && i < cli.case_count; i++)
        status = exit_worst(status, run_case(&report, &cli, &cli.cases[i]));
    status = exit_worst(status, report_close(&report));
    cli_free(&cli);
    return status;
}
