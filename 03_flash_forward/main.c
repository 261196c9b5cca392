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
 *     v9_wgmma ... v15_fp8: --list tells the idea of each
 *
 *     for each tile i of Br queries, for each tile j of Bc keys:
 *         S_ij  = scale * Q_i K_j^T                   [Br][Bc], lives in fast memory only
 *         m_new = max(m_i, rowmax(S_ij))              alpha = exp(m_i - m_new)
 *         P_ij  = exp(S_ij - m_new)
 *         l_i   = alpha * l_i + rowsum(P_ij)          O_i   = alpha * O_i + P_ij V_j
 *     O_i = O_i / l_i                                 lse_i = m_i + ln l_i
 *
 * Fast memory is what a tile fits in: registers and L1 on a CPU, registers and shared memory on a
 * GPU. Slow memory is the rest. The variants differ in which loop is outside, that is, in which
 * tiles travel between the two again and again.
 *
 * The answer is stage 02's online state, applied to tiles that fit in fast memory; what is read
 * again and again is then a tile, and how often depends on the order of two loops.
 *
 * All variants are deterministic: the same arguments give the same bits, run after run; the CPU
 * library with any number of threads too. (v0_fa1_tiles and v1_fa2_rows leave a large product to
 * OpenBLAS, which may cut it for its threads. The GPU's library: on GPUs with equally many
 * multiprocessors.)
 *
 *     flash_forward                              small, checks all variants
 *     flash_forward --trace                      m, l and O filling in, tile by tile
 *     flash_forward --sram 4096 --bench          v0 and v1 with a smaller fast memory
 */
#include "attention/forward/flash_library.h"
#include "attn_config.h"
#include "flash_forward_rungs.h"
#include "harness/models/model_row.h"
#include "harness/stage_main.h"
#include "units/fast_memory.h"
#include "variant_so.h"

STAGE_TRACE(flash_forward); /* trace.c */
void flash_forward_begin(const CliCase *c, const AttnShape *n, int quiet);

static Variant variants[] = {
    CPU_RUNG(flash_forward, v0_fa1_tiles),
    CPU_RUNG(flash_forward, v1_fa2_rows),
    CPU_RUNG(flash_forward, v2_packing),
    CPU_RUNG(flash_forward, v3_register_tiles),
    CPU_RUNG(flash_forward, v4_exp2),
    CPU_RUNG(flash_forward, v5_own_heads),
    {"library", ON_CPU, DTYPES_ALL, flash_forward_library_cpu, NULL, 0,
     "v5 for every mask, stride, dtype and state to resume from", NULL, flash_tiles_library_cpu},
    CUDA_RUNG(flash_forward, v0_fa1),
    CUDA_RUNG(flash_forward, v1_fa2),
    CUDA_RUNG(flash_forward, v2_register_tiles),
    CUDA_RUNG(flash_forward, v3_mma),
    CUDA_RUNG(flash_forward, v4_ldmatrix),
    CUDA_RUNG(flash_forward, v5_cp_async),
    CUDA_RUNG(flash_forward, v6_exp2),
    CUDA_RUNG(flash_forward, v7_full_tiles),
    CUDA_RUNG(flash_forward, v8_schedule),
    CUDA_RUNG(flash_forward, v9_wgmma),
    CUDA_RUNG(flash_forward, v10_warp_specialised),
    CUDA_RUNG(flash_forward, v11_overlapped_softmax),
    CUDA_RUNG(flash_forward, v12_lazy_rescale),
    CUDA_RUNG(flash_forward, v13_more_warpgroups),
    CUDA_RUNG(flash_forward, v14_persistent),
    CUDA_RUNG(flash_forward, v15_fp8),
    {"library", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(flash_forward_library_cuda), NULL,
     VARIANT_TENSOR_CORES, "every mask, stride, segment and d; full tiles, split keys, resume",
     NULL, ATTN_CUDA_FN(flash_tiles_library_cuda)},
};

static const Stage stage = {"flash_forward",
                            "03_flash_forward",
                            "How can exact attention never write the N x N matrix, and why is that "
                            "faster although it computes more?",
                            FLASH_FORWARD_ABI_VERSION,
                            STAGE_HAS_TRACE | STAGE_HAS_SRAM | STAGE_HAS_SMEM_LIMIT,
                            variants,
                            sizeof variants / sizeof *variants};

static void model(ReportRow *row)
{
    model_forward_row(row, FAST_ELEMENTS);
}

int main(int argc, char **argv)
{
    static const StageMain flash_forward = {.variants = variants,
                                            .trace = flash_forward_trace,
                                            .trace_steps = flash_forward_trace_steps,
                                            .begin = flash_forward_begin,
                                            .model = model};
    return stage_main(&stage, &flash_forward, argc, argv);
}
