/* SPDX-License-Identifier: MIT
 *
 * flash_backward: how can gradients be computed when P was never stored?
 *
 *     variant           device  idea
 *     v1_blas           CPU     stage 01's: P and dS as whole matrices, the row at 100 % memory
 *     v0_fa1_backward   CPU     Algorithm 4 of the paper: recompute S and P tile by tile
 *     v1_fa2_backward   CPU     delta once, lse only, tiles of keys side by side
 *     v2_packing        CPU     every operand laid out once, scores transposed
 *     v3_register_tiles CPU     a tile of sums in registers
 *     v4_exp2           CPU     powers of 2, P and dS in one pass over vectors
 *     v5_own_heads      CPU     each thread packs the heads that it computes
 *     library           CPU     all of these, for every mask, stride and dtype
 *     v0_atomics            GPU   a block for each tile of keys, dQ by atomicAdd
 *     v1_two_kernels        GPU   queries own dQ, keys own dK and dV: no atomics, seven products
 *     v2_mma                GPU   tensor cores, P and dS through shared memory
 *     v3_transposed_scores  GPU   S^T: P and dS feed dV and dK from registers
 *     v4_cp_async           GPU   the next tile arrives while this one is multiplied
 *     v5_dq_fragments       GPU   dQ is added up in the order of the accumulators
 *     v6_full_tiles         GPU   tiles that are seen in full go through a body without a mask
 *     v7_one_barrier        GPU   dQ of a tile is made one tile later
 *     v8_32_keys            GPU   32 keys a warp: a fragment serves two products (d = 64)
 *     v9_warp_pairs         GPU   two warps share 32 keys (d = 128)
 *     v10_wgmma ... v13_fused_delta  GPU  for Hopper: --list tells the idea of each
 *     library               GPU   any mask, stride, segments and d: what later stages call
 *
 * The answer: compute P again. Q and K are there, and lse, one number a row, turns a score into a
 * probability. That is one more product, and it is cheaper than the way to memory and back.
 *
 * Every run is forward and backward; O and lse come from stage 03 (v1_blas brings its own), so a
 * disagreement about lse between the two stages would show here. Times and rates in the table are
 * those of the backward pass alone.
 *
 *     flash_backward                        small, checks all variants
 *     flash_backward -N 2048 --bench        time them
 *     flash_backward --trace -N 6 -d 2      every tile on one screen
 *     flash_backward --do dO.npy --q ...    gradients of your own loss
 *     flash_backward --deterministic        gradients with the same bits on every run
 */
#include <stdio.h>
#include <string.h>

#include "attention/rows.h"
#include "attn_config.h"
#include "backward_steps.h"
#include "bench/run.h"
#include "check/judge.h"
#include "cli/cli.h"
#include "cuda/device.h"
#include "cuda/hopper_backward.h"
#include "flash_backward.h"
#include "flash_forward.h"
#include "harness/rung.h"
#include "library/backward_library.h"
#include "library/flash_library.h"
#include "models/model.h"
#include "report/pages.h"
#include "report/report.h"

#ifdef HAVE_OPENBLAS
RUNG_FN(naive, v1_blas)
#endif

/* The first one's forward also feeds a --variant-so. */
static const Variant variants[] = {
    {"v0_fa1_backward", ON_CPU, DTYPES_ALL, flash_forward_library_cpu,
     flash_backward_v0_fa1_backward, 0,
     "recompute S and P tile by tile, dQ back to slow memory each step"},
    {"v1_fa2_backward", ON_CPU, DTYPES_ALL, flash_forward_library_cpu,
     flash_backward_v1_fa2_backward, 0, "delta once, lse only, tiles of keys side by side"},
    {"v2_packing", ON_CPU, DTYPES_F32, flash_forward_library_cpu, flash_backward_v2_packing,
     VARIANT_PLAIN, "every operand laid out once, scores transposed"},
    {"v3_register_tiles", ON_CPU, DTYPES_F32, flash_forward_library_cpu,
     flash_backward_v3_register_tiles, VARIANT_PLAIN,
     "6 x 2 or 12 x 2 vectors of sums in registers"},
    {"v4_exp2", ON_CPU, DTYPES_F32, flash_forward_library_cpu, flash_backward_v4_exp2,
     VARIANT_PLAIN, "powers of 2, and P and dS in one pass over vectors"},
    {"v5_own_heads", ON_CPU, DTYPES_F32, flash_forward_library_cpu, flash_backward_v5_own_heads,
     VARIANT_PLAIN, "each thread packs the heads that it computes"},
    {"library", ON_CPU, DTYPES_ALL, flash_forward_library_cpu, flash_backward_library_cpu, 0,
     "v5 for every mask, stride and dtype, block by block if wanted"},
    {"v0_atomics", ON_CUDA, DTYPES_F32, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v0_atomics), VARIANT_PLAIN,
     "a block for each tile of keys, dQ by atomicAdd"},
    {"v1_two_kernels", ON_CUDA, DTYPES_F32, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v1_two_kernels), VARIANT_PLAIN,
     "queries own dQ, keys own dK and dV: no atomics, seven products"},
    {"v2_mma", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v2_mma), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "tensor cores, P and dS through shared memory"},
    {"v3_transposed_scores", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v3_transposed_scores), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "S^T: P and dS feed dV and dK from registers"},
    {"v4_cp_async", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v4_cp_async), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "the next tile arrives while this one is multiplied"},
    {"v5_dq_fragments", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v5_dq_fragments), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "dQ is added up in the order of the accumulators"},
    {"v6_full_tiles", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v6_full_tiles), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "tiles that are seen in full go through a body without a mask"},
    {"v7_one_barrier", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v7_one_barrier), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "dQ of a tile is made one tile later"},
    {"v8_32_keys", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v8_32_keys), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "32 keys a warp: a fragment serves two products (d = 64)"},
    {"v9_warp_pairs", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_v9_warp_pairs), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "two warps share 32 keys (d = 128)"},
    {"v10_wgmma", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_HOPPER_FN(flash_backward_v10_wgmma), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "wgmma and the copy engine, everything waits for everything"},
    {"v11_warp_specialised", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_HOPPER_FN(flash_backward_v11_warp_specialised), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "one warpgroup loads, two compute, and meet once a tile"},
    {"v12_turns", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_HOPPER_FN(flash_backward_v12_turns), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "while one warpgroup exponentiates, the other multiplies"},
    {"v13_fused_delta", ON_CUDA, DTYPES_16BIT, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_HOPPER_FN(flash_backward_v13_fused_delta), VARIANT_PLAIN | VARIANT_TENSOR_CORES,
     "delta, lse and the zeros of dQ by one kernel"},
    {"library", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_library_cuda), VARIANT_TENSOR_CORES,
     "every mask, stride, segment and d, sums of several blocks of keys, dQ in turns"},
#ifdef HAVE_OPENBLAS
    {"v1_blas", ON_CPU, DTYPES_ALL, naive_v1_blas, naive_v1_blas_backward, 0,
     "stage 01: P and dS as whole matrices, the row at 100 % memory"},
#endif
};

static const Stage stage = {"flash_backward",
                            "04_flash_backward",
                            "How can gradients be computed when P was never stored?",
                            FLASH_BACKWARD_ABI_VERSION,
                            STAGE_ALWAYS_BACKWARD | STAGE_HAS_SMEM_LIMIT | STAGE_HAS_DETERMINISTIC |
                                STAGE_HAS_TRACE,
                            variants,
                            sizeof variants / sizeof *variants};

/* --- the byte model: each variant tells its tiles, models/model_backward.c does the sums -------*/

/* Rungs v2 to v5 of the CPU. */
static FlashTiles tiles_of_blocks(const AttnArgs *args)
{
    FlashTiles tiles =
        flash_tiles_of(&args->shape, FLASH_BACKWARD_PACKED_QUERIES, FLASH_BACKWARD_PACKED_KEYS);
    const int64_t kv_heads = args->shape.B * args->shape.Hkv,
                  wanted = (8 + kv_heads - 1) / kv_heads;
    tiles.splits = tiles.Tc < wanted ? tiles.Tc : wanted;
    return tiles;
}

static ModelTraffic fa1_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_fa1_backward_traffic(args, tiles.Br, tiles.Bc);
}

static ModelTraffic fa2_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_fa2_backward_traffic(args, tiles.Br, tiles.Bc, tiles.splits);
}

static ModelTraffic packed_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_packed_backward_traffic(args, tiles.Br, tiles.Bc, tiles.splits);
}

/* dK and dV are rounded where they are, without sums in memory. */
static ModelTraffic atomic_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_atomic_backward_traffic(args, tiles.Br, tiles.Bc, 1);
}

static ModelTraffic two_kernels_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_two_kernels_backward_traffic(args, tiles.Br, tiles.Bc);
}

static ModelTraffic library_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return args->Q.dtype == ATTN_F32 ? two_kernels_traffic(args, tiles)
                                     : atomic_traffic(args, tiles);
}

static const struct {
    AttnFn backward;
    FlashTiles (*tiles)(const AttnArgs *args);
    ModelTraffic (*traffic)(const AttnArgs *args, FlashTiles tiles);
} models[] = {
    {flash_backward_v0_fa1_backward, flash_backward_tiles_v0_fa1_backward, fa1_traffic},
    {flash_backward_v1_fa2_backward, flash_backward_tiles_v1_fa2_backward, fa2_traffic},
    {flash_backward_v2_packing, tiles_of_blocks, packed_traffic},
    {flash_backward_v3_register_tiles, tiles_of_blocks, packed_traffic},
    {flash_backward_v4_exp2, tiles_of_blocks, packed_traffic},
    {flash_backward_v5_own_heads, tiles_of_blocks, packed_traffic},
    {flash_backward_library_cpu, flash_backward_tiles_library_cpu, packed_traffic},
    {ATTN_CUDA_FN(flash_backward_v0_atomics), ATTN_CUDA_FN(flash_backward_tiles_v0_atomics),
     atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_v1_two_kernels), ATTN_CUDA_FN(flash_backward_tiles_v1_two_kernels),
     two_kernels_traffic},
    {ATTN_CUDA_FN(flash_backward_v2_mma), ATTN_CUDA_FN(flash_backward_tiles_v2_mma),
     atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_v3_transposed_scores),
     ATTN_CUDA_FN(flash_backward_tiles_v3_transposed_scores), atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_v4_cp_async), ATTN_CUDA_FN(flash_backward_tiles_v4_cp_async),
     atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_v5_dq_fragments),
     ATTN_CUDA_FN(flash_backward_tiles_v5_dq_fragments), atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_v6_full_tiles), ATTN_CUDA_FN(flash_backward_tiles_v6_full_tiles),
     atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_v7_one_barrier), ATTN_CUDA_FN(flash_backward_tiles_v7_one_barrier),
     atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_v8_32_keys), ATTN_CUDA_FN(flash_backward_tiles_v8_32_keys),
     atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_v9_warp_pairs), ATTN_CUDA_FN(flash_backward_tiles_v9_warp_pairs),
     atomic_traffic},
    {ATTN_HOPPER_FN(flash_backward_v10_wgmma), ATTN_HOPPER_FN(flash_backward_tiles_v10_wgmma),
     atomic_traffic},
    {ATTN_HOPPER_FN(flash_backward_v11_warp_specialised),
     ATTN_HOPPER_FN(flash_backward_tiles_v11_warp_specialised), atomic_traffic},
    {ATTN_HOPPER_FN(flash_backward_v12_turns), ATTN_HOPPER_FN(flash_backward_tiles_v12_turns),
     atomic_traffic},
    {ATTN_HOPPER_FN(flash_backward_v13_fused_delta),
     ATTN_HOPPER_FN(flash_backward_tiles_v13_fused_delta), atomic_traffic},
    {ATTN_CUDA_FN(flash_backward_library_cuda), ATTN_CUDA_FN(flash_backward_tiles_library_cuda),
     library_traffic},
};

/* Fills in what the row says about traffic of the backward pass; nothing for a user's shared
 * object. */
static void tell_traffic(ReportRow *row, const Variant *v, const AttnArgs *args)
{
    if (strcmp(v->name, "v1_blas") == 0)
        row->model_bytes = model_materialised_bytes(args, 1);
    for (size_t m = 0; v->backward && m < sizeof models / sizeof *models; m++) {
        if (models[m].backward != v->backward)
            continue;
        FlashTiles tiles = models[m].tiles(args);
        ModelTraffic traffic = models[m].traffic(args, tiles);
        row->model_bytes = traffic.load_bytes + traffic.store_bytes;
        row->tiles.Br = tiles.Br;
        row->tiles.Bc = tiles.Bc;
        row->tiles.splits = tiles.splits;
    }
}

/* Why a CUDA variant skipped the case itself: nothing else makes one of this stage do that, but a
 * GPU of another kind than the rung is written for. */
static void tell_skip(RunResult *out, const CliCase *c)
{
    if (out->status != ATTN_SKIP || !out->answered)
        return;
    if (device_smem_explain(out->failure, sizeof out->failure))
        return;
    if (c->deterministic)
        snprintf(out->failure, sizeof out->failure,
                 "it adds to dQ by atomics, in another order on every run");
}

/* Run one variant, compare its last timed output with the oracle, show the row. */
static int run_one(Report *report, const Cli *cli, const CliCase *c, const Inputs *problem,
                   const Reference *reference, const Variant *v)
{
    RunResult out;
    Check check;
    int judged, status;
    device_set_smem_limit(c->smem_limit);
    flash_backward_set_deterministic(c->deterministic);
    if (v == &c->so) /* a user's own shared object: in a child process with limits */
        status = run_variant_so(&out, &stage, problem, c, cli);
    else
        status = run_variant(&out, v, problem, c);
    tell_skip(&out, c);
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

/* A problem and its oracle, which may take longer than all variants: kept as long as the next line
 * of a --cases file asks for the same one, say with --deterministic. */
typedef struct Prepared {
    CliCase of;
    int ready;
    Inputs problem;
    Reference reference;
} Prepared;
static Prepared prepared;

/* Bytes, so that a flag counts as part of the problem unless it is named here. */
static int same_problem(const CliCase *a, const CliCase *b)
{
    CliCase x = *a;
    x.line = b->line;
    x.variant = b->variant;
    x.own_variants = b->own_variants;
    x.needs_cuda = b->needs_cuda;
    x.deterministic = b->deterministic;
    x.smem_limit = b->smem_limit;
    x.warmup = b->warmup;
    x.iters = b->iters;
    return memcmp(&x, b, sizeof x) == 0;
}

static void prepared_free(Prepared *p)
{
    if (p->ready) {
        reference_free(&p->reference);
        inputs_free(&p->problem);
    }
    p->ready = 0;
}

static int prepare(Prepared *p, const CliCase *c)
{
    int status;
    if (p->ready && same_problem(&p->of, c))
        return EXIT_OK;
    prepared_free(p);
    status = inputs_make(&p->problem, c); /* Q K V dO from the seed, files or the bundle */
    if (status != EXIT_OK)
        return status;
    /* the oracle's O, lse, dQ, dK, dV and the bound of each element: once for all variants */
    status = reference_make(&p->reference, &p->problem, c);
    p->of = *c;
    p->ready = 1;
    if (status != EXIT_OK)
        prepared_free(p);
    return status;
}

static int run_case(Report *report, const Cli *cli, CliCase *c)
{
    const Variant *v = NULL;
    Prepared *p = &prepared;
    int ready, status = prepare(p, c);
    if (status != EXIT_OK)
        return status;
    if (c->trace &&
        pages_trace(c, &p->problem.args, flash_backward_trace, flash_backward_trace_steps) != 0)
        status = cli_no_memory("--trace");
    ready = status != EXIT_RUNTIME; /* a variant that fails does not stop the others */
    while (ready && (v = cli_next_variant(cli, c, v)) != NULL)
        status = exit_worst(status, run_one(report, cli, c, &p->problem, &p->reference, v));
    return status;
}

int main(int argc, char **argv)
{
    Cli cli;
    int status = cli_parse(&cli, &stage, argc, argv);
    if (status != CLI_CONTINUE)
        return status;
    status = report_cases(&cli, run_case);
    prepared_free(&prepared);
    cli_free(&cli);
    return status;
}
