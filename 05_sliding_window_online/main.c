/* SPDX-License-Identifier: MIT
 *
 * sliding_window: if attention is a sum that can be merged, how small can one step be, and what
 * does a window save?
 *
 *     variant             device  idea
 *     v0_offline_mask     CPU     all scores and a mask: what the others are compared with
 *     v1_online_block     CPU     one block of queries and keys a step, merged in place
 *     v3_streaming        CPU     a token at a time against a cache of window + 1 keys
 *     library             CPU     only the tiles that the window leaves, every option
 *     v0_online_block     GPU     the step of v1 on the device
 *     v3_decode_window    GPU     few queries, the keys split over warps and merged
 *     library             GPU     one launch over the visible tiles, every option
 *
 *     for each block i of queries, for each block j of keys that the window lets it see:
 *         (O_ij, lse_ij) = attention of Q_i over the keys of block j alone
 *         lse = max + log1p(exp(min - max))        of lse_i and lse_ij; -inf where both are
 *         O_i = exp(lse_i - lse) O_i + exp(lse_ij - lse) O_ij,   lse_i = lse
 *
 * Weights that a clip or dropout changes are exp(s - m) / l with the maximum and the sum of the
 * whole row. Not exp(s - lse): lse is rounded, at scores of 10^5 by a hundredth of a weight.
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
#include "attention/window/window_library.h"
#include "attn_config.h"
#include "harness/stage_main.h"
#include "harness/visits.h"
#include "sliding_window_rungs.h"
#include "variant_so.h"

STAGE_TRACE(sliding_window); /* trace.c */

static Variant variants[] = {
    CPU_RUNG(sliding_window, v0_offline_mask),
    CPU_RUNG(sliding_window, v1_online_block),
    CPU_RUNG(sliding_window, v3_streaming),
    {"library", ON_CPU, DTYPES_ALL, sliding_window_library_cpu, sliding_window_library_cpu_backward,
     0, "only the tiles that the window leaves, every option", NULL, NULL},
    CUDA_RUNG(sliding_window, v0_online_block),
    CUDA_RUNG(sliding_window, v3_decode_window),
    {"library", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(sliding_window_library_cuda),
     ATTN_CUDA_FN(sliding_window_library_cuda_backward), VARIANT_TENSOR_CORES,
     "one launch, visible tiles only, masked and full ones apart, every option", NULL, NULL},
};

static const Stage stage = {"sliding_window",
                            "05_sliding_window_online",
                            "If attention is a sum that can be merged, how small can one step be, "
                            "and what does a window save?",
                            SLIDING_WINDOW_ABI_VERSION,
                            STAGE_HAS_BACKWARD | STAGE_HAS_TRACE | STAGE_HAS_SMEM_LIMIT |
                                STAGE_HAS_VARLEN | STAGE_HAS_OFFLINE,
                            variants,
                            sizeof variants / sizeof *variants};

static void begin(const CliCase *c, const AttnShape *shape, int quiet)
{
    (void)shape, (void)quiet;
    visits_set_blocks(c->block_q, c->block_kv);
    visits_set_order((VisitOrder)c->order, c->seed);
}

int main(int argc, char **argv)
{
    static const StageMain sliding_window = {.variants = variants,
                                             .trace = sliding_window_trace,
                                             .trace_steps = sliding_window_trace_steps,
                                             .begin = begin,
                                             .model = window_model_row};
    return stage_main(&stage, &sliding_window, argc, argv);
}
