/* SPDX-License-Identifier: MIT
 *
 * sliding_window: if attention is a sum that can be merged, how small can one step be, and what
 * does a window save?
 *
 *     variant             device  idea
 *     v0_offline_mask     CPU     all scores and a mask: what the others are compared with
 *     v1_online_block     CPU     one block of queries and keys a step, merged in place
 *     v2_window_tiles     CPU     stage 03's tiles, of which the window leaves few
 *     v3_streaming        CPU     a token at a time against a cache of window + 1 keys
 *     v4_window_backward  CPU     the gradients by stage 04's tiles
 *     v0_online_block     GPU     the step of v1 on the device
 *     v1_window_tiles     GPU     one launch over the visible tiles, every option
 *     v2_mma_window       GPU     tensor cores
 *     v3_decode_window    GPU     few queries, the keys split over warps and merged
 *
 * The answer: a step can be a single pair of blocks, in any order and from anywhere, since
 * softmax over parts is a sum weighted by exp(lse). And a window of w keys leaves N (w + 1) of N^2
 * pairs: whoever only visits tiles that have some pays N times the window.
 *
 *     sliding_window                               small: causal, window 16, checks all variants
 *     sliding_window -N 8192 --causal --window 256,-1 --bench
 *     sliding_window --trace --order diagonal      blocks being visited, one screen
 *     sliding_window --backward --dropout 0.1 --qk-norm 32
 *     sliding_window --tensor-layout thd --cu-seqlens-q cu.npy --cu-seqlens-kv cu.npy
 */
#include <stdio.h>
#include <string.h>

#include "attention/backward/backward_library.h"
#include "attention/window/window_library.h"
#include "attn_config.h"
#include "attn_options.h"
#include "flash_forward.h"
#include "harness/bench/run.h"
#include "harness/check/judge.h"
#include "harness/cli/cli.h"
#include "harness/device/device.h"
#include "harness/models/model.h"
#include "harness/report/pages.h"
#include "harness/report/report.h"
#include "sliding_window.h"
#include "window_steps.h"

static const Variant variants[] = {
    {"v0_offline_mask", ON_CPU, DTYPES_ALL, sliding_window_v0_offline_mask,
     sliding_window_v0_offline_mask_backward, 0, "the whole score matrix and a mask, every option"},
    {"v1_online_block", ON_CPU, DTYPES_ALL, sliding_window_v1_online_block, NULL,
     VARIANT_ONLINE_STEPS, "one block of queries and keys a step, merged in place"},
    {"v2_window_tiles", ON_CPU, DTYPES_ALL, sliding_window_v2_window_tiles, NULL, 0,
     "stage 03's tiles, only those that the window leaves"},
    {"v3_streaming", ON_CPU, DTYPES_ALL, sliding_window_v3_streaming, NULL, 0,
     "a token at a time against a rolling cache of window + 1 keys"},
    {"v4_window_backward", ON_CPU, DTYPES_ALL, sliding_window_v2_window_tiles,
     sliding_window_v4_window_backward, 0, "v2, and its gradients by stage 04's tiles"},
    {"v0_online_block", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(sliding_window_v0_online_block), NULL,
     VARIANT_ONLINE_STEPS, "one block of queries and keys a step, merged in place"},
    {"v1_window_tiles", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(sliding_window_v1_window_tiles),
     ATTN_CUDA_FN(sliding_window_v1_window_tiles_backward), 0,
     "one launch, visible tiles only, masked and full ones apart, every option"},
    {"v2_mma_window", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(sliding_window_v2_mma_window),
     ATTN_CUDA_FN(sliding_window_v2_mma_window_backward), VARIANT_TENSOR_CORES,
     "tensor cores: the kernels of stages 03 and 04, which take the visible tiles only"},
    {"v3_decode_window", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(sliding_window_v3_decode_window), NULL,
     0, "few queries against a rolling cache, keys split over warps and merged"},
};

static const Stage stage = {
    "sliding_window",
    "05_sliding_window_online",
    "If attention is a sum that can be merged, how small can one step be, and what does a window "
    "save?",
    SLIDING_WINDOW_ABI_VERSION,
    STAGE_HAS_BACKWARD | STAGE_HAS_TRACE | STAGE_HAS_SMEM_LIMIT | STAGE_HAS_VARLEN |
        STAGE_HAS_OFFLINE,
    variants,
    sizeof variants / sizeof *variants};

/* --- the byte model: each pass tells its tiles, common/model does the sums ---------------------*/

static FlashTiles blocks_of(const AttnArgs *args)
{
    return flash_tiles_of(&args->shape, window_block_q(), window_block_kv());
}

static ModelTraffic online_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_online_traffic(args, tiles.Br, tiles.Bc);
}

static ModelTraffic packed_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_packed_traffic(args, tiles.Br, tiles.Bc);
}

static ModelTraffic packed_backward_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_packed_backward_traffic(args, tiles.Br, tiles.Bc, tiles.splits);
}

static ModelTraffic split_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_fa2_traffic(args, tiles.Br, tiles.Bc, tiles.splits);
}

static ModelTraffic clean_backward_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_atomic_backward_traffic(args, tiles.Br, tiles.Bc, 1);
}

/* v1_window_tiles works on float32 copies; making them is not counted. */
static AttnArgs float_copies(const AttnArgs *args)
{
    AttnArgs copies = *args;
    copies.Q.dtype = ATTN_F32;
    return copies;
}

static FlashTiles float_tiles(const AttnArgs *args)
{
    FlashTiles (*const tiles)(const AttnArgs *args) = ATTN_CUDA_FN(flash_tiles_library_cuda);
    const AttnArgs copies = float_copies(args);
    return tiles(&copies);
}

static FlashTiles float_backward_tiles(const AttnArgs *args)
{
    FlashTiles (*const tiles)(const AttnArgs *args) =
        ATTN_CUDA_FN(flash_backward_tiles_library_cuda);
    const AttnArgs copies = float_copies(args);
    return tiles(&copies);
}

static ModelTraffic float_traffic(const AttnArgs *args, FlashTiles tiles)
{
    const AttnArgs copies = float_copies(args);
    return split_traffic(&copies, tiles);
}

static ModelTraffic float_backward_traffic(const AttnArgs *args, FlashTiles tiles)
{
    const AttnArgs copies = float_copies(args);
    return model_two_kernels_backward_traffic(&copies, tiles.Br, tiles.Bc);
}

static const struct {
    AttnFn pass;
    FlashTiles (*tiles)(const AttnArgs *args);
    ModelTraffic (*traffic)(const AttnArgs *args, FlashTiles tiles);
} models[] = {
    {sliding_window_v1_online_block, blocks_of, online_traffic},
    {sliding_window_v2_window_tiles, flash_tiles_library_cpu, packed_traffic},
    {sliding_window_v4_window_backward, flash_backward_tiles_library_cpu, packed_backward_traffic},
    {ATTN_CUDA_FN(sliding_window_v0_online_block), blocks_of, online_traffic},
    {ATTN_CUDA_FN(sliding_window_v1_window_tiles), float_tiles, float_traffic},
    {ATTN_CUDA_FN(sliding_window_v1_window_tiles_backward), float_backward_tiles,
     float_backward_traffic},
    {ATTN_CUDA_FN(sliding_window_v2_mma_window), ATTN_CUDA_FN(flash_tiles_library_cuda),
     split_traffic},
    {ATTN_CUDA_FN(sliding_window_v2_mma_window_backward),
     ATTN_CUDA_FN(flash_backward_tiles_library_cuda), clean_backward_traffic},
};

/* Adds a pass to what the row says about traffic and tiles. Clipping and dropout go over the tiles
 * twice, which the formulas do not know. */
static void tell_pass(ReportRow *row, AttnFn pass, const AttnArgs *args)
{
    for (size_t m = 0; pass && m < sizeof models / sizeof *models; m++) {
        if (models[m].pass != pass)
            continue;
        const FlashTiles tiles = models[m].tiles(args);
        const WindowTiles seen = window_count_tiles(args, tiles.Br, tiles.Bc);
        const ModelTraffic traffic = models[m].traffic(args, tiles);
        row->model_bytes += traffic.load_bytes + traffic.store_bytes;
        row->tiles = (ReportTiles){0,           tiles.Br,  tiles.Bc, tiles.splits, seen.skipped,
                                   seen.masked, seen.clean};
    }
}

/* Nothing for a user's shared object. The tiles are those of the last pass. */
static void tell_traffic(ReportRow *row, const Variant *v, const AttnArgs *args)
{
    tell_pass(row, v->forward, args);
    if (row->c->backward)
        tell_pass(row, v->backward, args);
    if (v->forward == sliding_window_v0_offline_mask)
        row->model_bytes = model_materialised_bytes(args, 0) +
                           (row->c->backward ? model_materialised_bytes(args, 1) : 0.0);
    if (v->forward == sliding_window_v3_streaming) {
        const ModelTraffic traffic = model_stream_traffic(args);
        row->model_bytes = traffic.load_bytes + traffic.store_bytes;
    }
    if (v->forward && v->forward == ATTN_CUDA_FN(sliding_window_v3_decode_window)) {
        const ModelTraffic traffic = model_decode_traffic(args);
        row->model_bytes = traffic.load_bytes + traffic.store_bytes;
    }
    if (attn_clips(args) || attn_drops(args))
        row->model_bytes = 0.0;
}

/* Why a variant skipped the case itself. */
static void tell_skip(RunResult *out)
{
    if (out->status != ATTN_SKIP || !out->answered)
        return;
    if (device_smem_explain(out->failure, sizeof out->failure))
        return;
    if (window_skip_reason()[0])
        snprintf(out->failure, sizeof out->failure, "%s", window_skip_reason());
}

/* Run one variant, compare its last timed output with the oracle, show the row. */
static int run_one(Report *report, const Cli *cli, const CliCase *c, const Inputs *problem,
                   const Reference *reference, const Variant *v)
{
    RunResult out;
    Check check;
    int judged, status;
    device_set_smem_limit(c->smem_limit);
    window_set_skip_reason("");
    if (v == &c->so) /* a user's own shared object: in a child process with limits */
        status = run_variant_so(&out, &stage, problem, c, cli);
    else
        status = run_variant(&out, v, problem, c);
    tell_skip(&out);
    judged = out.ran && c->check;
    if (judged)
        status = exit_worst(status, judge_result(&check, reference, &out, c, v));
    if (status == EXIT_OK && out.status == ATTN_SKIP) {
        status = report_skip(report, c, v, out.failure);
    } else {
        ReportRow row = {c, problem, v, &out, judged ? &check : NULL, 0.0, {0}};
        tell_traffic(&row, v, &problem->args);
        report_row(report, &row);
        if (out.ran)
            status = exit_worst(status, report_save(report, c, &out));
    }
    result_free(&out);
    return status;
}

static int run_case(Report *report, const Cli *cli, CliCase *c)
{
    Inputs problem;
    Reference reference;
    const Variant *v = NULL;
    int ready,
        status = inputs_make(&problem, c); /* Q K V (dO) from the seed, files or the bundle */
    if (status != EXIT_OK)
        return status;
    window_set_blocks(c->block_q, c->block_kv);
    window_set_order((WindowOrder)c->order, c->seed);
    if (c->trace &&
        pages_trace(c, &problem.args, sliding_window_trace, sliding_window_trace_steps) != 0)
        status = cli_no_memory("--trace");
    /* the oracle's O, lse (dQ, dK, dV) and the bound of each element: once for all variants */
    status = exit_worst(status, reference_make(&reference, &problem, c));
    ready = status != EXIT_RUNTIME; /* a variant that fails does not stop the others */
    while (ready && status != EXIT_USAGE && (v = cli_next_variant(cli, c, v)) != NULL)
        status = exit_worst(status, run_one(report, cli, c, &problem, &reference, v));
    reference_free(&reference);
    inputs_free(&problem);
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
