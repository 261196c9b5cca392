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

#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attn_config.h"
#include "backward_steps.h"
#include "flash_backward.h"
#include "flash_backward_rungs.h"
#include "harness/models/model.h"
#include "harness/stage_main.h"

/* The first one's forward also feeds a --variant-so. */
static Variant variants[] = {
    {"v0_fa1_backward", ON_CPU, DTYPES_ALL, flash_forward_library_cpu,
     flash_backward_v0_fa1_backward, 0,
     "recompute S and P tile by tile, dQ back to slow memory each step", NULL},
    {"v1_fa2_backward", ON_CPU, DTYPES_ALL, flash_forward_library_cpu,
     flash_backward_v1_fa2_backward, 0, "delta once, lse only, tiles of keys side by side", NULL},
    {"v2_packing", ON_CPU, DTYPES_F32, flash_forward_library_cpu, flash_backward_v2_packing,
     VARIANT_PLAIN, "every operand laid out once, scores transposed", NULL},
    {"v3_register_tiles", ON_CPU, DTYPES_F32, flash_forward_library_cpu,
     flash_backward_v3_register_tiles, VARIANT_PLAIN,
     "6 x 2 or 12 x 2 vectors of sums in registers", NULL},
    {"v4_exp2", ON_CPU, DTYPES_F32, flash_forward_library_cpu, flash_backward_v4_exp2,
     VARIANT_PLAIN, "powers of 2, and P and dS in one pass over vectors", NULL},
    {"v5_own_heads", ON_CPU, DTYPES_F32, flash_forward_library_cpu, flash_backward_v5_own_heads,
     VARIANT_PLAIN, "each thread packs the heads that it computes", NULL},
    {"library", ON_CPU, DTYPES_ALL, flash_forward_library_cpu, flash_backward_library_cpu, 0,
     "v5 for every mask, stride and dtype, block by block if wanted", NULL},
    CUDA_RUNG(flash_backward, v0_atomics),
    CUDA_RUNG(flash_backward, v1_two_kernels),
    CUDA_RUNG(flash_backward, v2_mma),
    CUDA_RUNG(flash_backward, v3_transposed_scores),
    CUDA_RUNG(flash_backward, v4_cp_async),
    CUDA_RUNG(flash_backward, v5_dq_fragments),
    CUDA_RUNG(flash_backward, v6_full_tiles),
    CUDA_RUNG(flash_backward, v7_one_barrier),
    CUDA_RUNG(flash_backward, v8_32_keys),
    CUDA_RUNG(flash_backward, v9_warp_pairs),
    CUDA_RUNG(flash_backward, v10_wgmma),
    CUDA_RUNG(flash_backward, v11_warp_specialised),
    CUDA_RUNG(flash_backward, v12_turns),
    CUDA_RUNG(flash_backward, v13_fused_delta),
    {"library", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_library_cuda), VARIANT_TENSOR_CORES,
     "every mask, stride, segment and d, sums of several blocks of keys, dQ in turns", NULL},
    CPU_RUNG_AS(naive, v1_blas, "stage 01: P and dS as whole matrices, the row at 100 % memory"),
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
    {ATTN_CUDA_FN(flash_backward_library_cuda), ATTN_CUDA_FN(flash_backward_tiles_library_cuda),
     library_traffic},
};

/* The backward pass of a row of the table. A rung on a GPU adds to dQ by atomics, or its queries
 * own dQ. */
static void model(ReportRow *row)
{
    const Variant *v = row->variant;
    const AttnArgs *args = &row->result->args;
    FlashTiles tiles = {0};
    ModelTraffic traffic = {0};
    if (v->rung == &rung_naive_v1_blas) {
        traffic.load_bytes = model_materialised_bytes(args, 1);
    } else if (v->rung) {
        tiles = flash_tiles_of(&args->shape, stage_tiles(row).Br, stage_tiles(row).Bc);
        traffic = v->rung->flags & ATOMICS ? atomic_traffic(args, tiles)
                                           : two_kernels_traffic(args, tiles);
    }
    for (size_t m = 0; v->backward && m < sizeof models / sizeof *models; m++) {
        if (models[m].backward != v->backward)
            continue;
        tiles = models[m].tiles(args);
        traffic = models[m].traffic(args, tiles);
    }
    row->tiles = (ReportTiles){.Br = tiles.Br, .Bc = tiles.Bc, .splits = tiles.splits};
    row->model_bytes = traffic.load_bytes + traffic.store_bytes;
}

static void begin(const CliCase *c, const AttnShape *shape, int quiet)
{
    (void)shape, (void)quiet;
    flash_backward_set_deterministic(c->deterministic);
}

/* Nothing else makes a variant of this stage skip a case itself, but a GPU of another kind than the
 * rung is written for. */
static void explain_skip(RunResult *out, const CliCase *c)
{
    if (c->deterministic)
        snprintf(out->failure, sizeof out->failure,
                 "it adds to dQ by atomics, in another order on every run");
}

int main(int argc, char **argv)
{
    static const StageMain flash_backward = {
        .variants = variants,
        .forward = {flash_forward_library_cpu, ATTN_CUDA_FN(flash_forward_library_cuda)},
        .trace = flash_backward_trace,
        .trace_steps = flash_backward_trace_steps,
        .begin = begin,
        .model = model,
        .explain_skip = explain_skip};
    return stage_main(&stage, &flash_backward, argc, argv);
}
