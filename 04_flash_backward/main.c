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
#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attn_config.h"
#include "flash_backward.h"
#include "flash_backward_rungs.h"
#include "harness/models/model.h"
#include "harness/stage_main.h"

static Variant variants[] = {
    CPU_RUNG(flash_backward, v0_fa1_backward),
    CPU_RUNG(flash_backward, v1_fa2_backward),
    CPU_RUNG(flash_backward, v2_packing),
    CPU_RUNG(flash_backward, v3_register_tiles),
    CPU_RUNG(flash_backward, v4_exp2),
    CPU_RUNG(flash_backward, v5_own_heads),
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

/* Parts of the keys with a dQ of their own: on a CPU as many as `tasks` threads want. */
static int64_t parts_of(const AttnShape *n, int64_t Tc, int64_t tasks)
{
    const int64_t wanted = (tasks + n->B * n->Hkv - 1) / (n->B * n->Hkv);
    return Tc < wanted ? Tc : wanted;
}

/* A rung's tiles; it moves float32 on a CPU, whatever the tensors hold. */
static FlashTiles tiles_of_rung(const ReportRow *row, AttnArgs *args)
{
    const Tiles t = stage_tiles(row);
    FlashTiles tiles = flash_tiles_of(&args->shape, t.Br, t.Bc);
    const int v1 = row->variant->rung == &rung_flash_backward_v1_fa2_backward;
    if (row->variant->device == ON_CPU) {
        args->Q.dtype = ATTN_F32;
        tiles.splits = parts_of(&args->shape, tiles.Tc, v1 ? 16 : 8);
    }
    return tiles;
}

/* The byte model of the backward pass. A kernel adds to dQ by atomics, or its queries own dQ. */
static void model(ReportRow *row)
{
    const Rung *rung = row->variant->rung;
    const int on_cpu = row->variant->device == ON_CPU;
    AttnArgs args = row->result->args;
    FlashTiles (*const library)(const AttnArgs *) =
        on_cpu ? flash_backward_tiles_library_cpu : ATTN_CUDA_FN(flash_backward_tiles_library_cuda);
    ModelTraffic traffic;
    if (rung == &rung_naive_v1_blas) {
        row->model_bytes = model_materialised_bytes(&args, 1);
        return;
    }
    const FlashTiles t = rung ? tiles_of_rung(row, &args) : library(&args);
    row->tiles = (ReportTiles){.Br = t.Br, .Bc = t.Bc, .splits = t.splits};
    if (rung == &rung_flash_backward_v0_fa1_backward) {
        traffic = model_fa1_backward_traffic(&args, t.Br, t.Bc);
        row->tiles.splits = 1;
    } else if (rung == &rung_flash_backward_v1_fa2_backward) {
        traffic = model_fa2_backward_traffic(&args, t.Br, t.Bc, t.splits);
    } else if (on_cpu) {
        traffic = model_packed_backward_traffic(&args, t.Br, t.Bc, t.splits);
    } else if (rung ? (rung->flags & ATOMICS) != 0 : args.Q.dtype != ATTN_F32) {
        traffic = model_atomic_backward_traffic(&args, t.Br, t.Bc, 1);
    } else {
        traffic = model_two_kernels_backward_traffic(&args, t.Br, t.Bc);
    }
    row->model_bytes = traffic.load_bytes + traffic.store_bytes;
}

static void begin(const CliCase *c, const AttnShape *shape, int quiet)
{
    (void)shape, (void)quiet;
    flash_backward_set_deterministic(c->deterministic); /* the library */
}

int main(int argc, char **argv)
{
    static const StageMain flash_backward = {
        .variants = variants,
        .forward = {flash_forward_library_cpu, ATTN_CUDA_FN(flash_forward_library_cuda)},
        .trace = flash_backward_trace,
        .trace_steps = flash_backward_trace_steps,
        .begin = begin,
        .model = model};
    return stage_main(&stage, &flash_backward, argc, argv);
}
