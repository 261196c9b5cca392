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
 *     v10_wgmma ... v15_persistent GPU  for Hopper: --list tells the idea of each
 *     library               GPU   any mask, stride, segments and d: what later stages call
 *
 *     delta_i = rowsum(dO_i * O_i)                    once for each query
 *     for each tile j of Bc keys, for each tile i of Br queries:
 *         S     = scale * Q_i K_j^T                   recomputed: it was never stored
 *         P     = exp(S - lse_i)                      no maximum, no sum: the forward kept lse
 *         dP    = dO_i V_j^T
 *         dS    = P * (dP - delta_i)                  times 1 - (S / cap)^2 with a softcap
 *         dV_j += P^T dO_i
 *         dK_j += scale * dS^T Q_i
 *         dQ_i += scale * dS K_j
 *
 * Five products instead of the forward's two. In this loop order dK_j and dV_j stay in fast memory,
 * and every tile of keys adds to dQ; with the loops swapped it is the other way round. Somebody has
 * to add up what many tiles give, and how that is done tells the variants apart. With grouped heads
 * the query heads of a group add to the same dK and dV.
 *
 * The answer: compute P again. Q and K are there, and lse, one number a row, turns a score into a
 * probability. That is one more product, and it is cheaper than the way to memory and back.
 *
 * Every run is forward and backward; O and lse come from stage 03 (v1_blas brings its own), so a
 * disagreement about lse between the two stages would show here. Times and rates in the table are
 * those of the backward pass alone.
 *
 * lse is rounded to a float32, and P with it: at scores of 10^5 by a hundredth, and from 10^8 on P
 * says nothing. It stays at most 1 all the same and the gradients finite, but in the kernels with
 * tensor cores, where the comparison would cost time for each pair: there they may be infinite.
 *
 * On a CPU every variant is deterministic: the same arguments give the same bits, run after run,
 * because every sum has one order that follows from the shape alone; the library with any number of
 * threads too. (v0_fa1_backward and v1_fa2_backward leave their products to OpenBLAS, which may cut
 * a large one for its threads where ours have only one task.) On the GPU a tile of keys adds to dQ
 * by atomics, in an order that is a matter of luck: dQ may differ in the last bits from run to run.
 * dK and dV do not, nor does anything of v1_two_kernels.
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
#include "flash_backward_rungs.h"
#include "harness/models/model_row.h"
#include "harness/stage_main.h"
#include "variant_so.h"

STAGE_TRACE(flash_backward); /* trace.c */

static Variant variants[] = {
    CPU_RUNG(flash_backward, v0_fa1_backward),
    CPU_RUNG(flash_backward, v1_fa2_backward),
    CPU_RUNG(flash_backward, v2_packing),
    CPU_RUNG(flash_backward, v3_register_tiles),
    CPU_RUNG(flash_backward, v4_exp2),
    CPU_RUNG(flash_backward, v5_own_heads),
    {"library", ON_CPU, DTYPES_ALL, flash_forward_library_cpu, flash_backward_library_cpu, 0,
     "v5 for every mask, stride and dtype, block by block if wanted", NULL,
     flash_backward_tiles_library_cpu},
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
    CUDA_RUNG(flash_backward, v14_cluster_pair),
    CUDA_RUNG(flash_backward, v15_persistent),
    {"library", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(flash_forward_library_cuda),
     ATTN_CUDA_FN(flash_backward_library_cuda), VARIANT_TENSOR_CORES,
     "every mask, stride, segment and d, sums of several blocks of keys, dQ in turns", NULL,
     ATTN_CUDA_FN(flash_backward_tiles_library_cuda)},
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

int main(int argc, char **argv)
{
    static const StageMain flash_backward = {
        .variants = variants,
        .forward = {flash_forward_library_cpu, ATTN_CUDA_FN(flash_forward_library_cuda)},
        .trace = flash_backward_trace,
        .trace_steps = flash_backward_trace_steps,
        .deterministic = flash_backward_set_deterministic,
        .model = model_backward_row};
    return stage_main(&stage, &flash_backward, argc, argv);
}
