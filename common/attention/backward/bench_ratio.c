/* SPDX-License-Identifier: MIT
 *
 * bench_ratio: how near does the backward pass of the library come to a matrix product?
 *
 * Five products of thin matrices, 10 N^2 d operations, against sgemm's 2048^3 (see ratio.h). The
 * backward pass alone is timed: O and lse are there, everything that the pass itself needs (delta,
 * packed copies, the sum of the parts of dQ) is inside.
 *
 *     bench_ratio                         a few minutes
 *     bench_ratio --rounds 3 --threads 1
 *
 * Under a causal mask the operations of visible pairs are counted, and nothing else.
 */
#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "harness/bench/ratio.h"
#include "variant_so.h"

static const Variant variants[] = {{.name = "library",
                                    .device = ON_CPU,
                                    .dtypes = DTYPES_ALL,
                                    .forward = flash_forward_library_cpu,
                                    .backward = flash_backward_library_cpu,
                                    .idea = "packed operands, tiles in registers, vector exp"}};

static const Stage stage = {"flash_backward",
                            "04_flash_backward",
                            "How near does the library come to a matrix product?",
                            FLASH_BACKWARD_ABI_VERSION,
                            STAGE_ALWAYS_BACKWARD,
                            variants,
                            1};

/* d, causal, from this length on, floor, aim */
static const RatioTarget targets[] = {
    {64, 0, 1024, 0.80, 0.90},
    {128, 0, 1024, 0.85, 0.93},
    {64, 1, 2048, 0.75, 0.85},
    {128, 1, 2048, 0.75, 0.85},
};

/* A whole pass: no sums of the caller. */
static AttnStatus run_backward(const AttnArgs *args, void *workspace)
{
    return flash_backward_simd_run(args, NULL, (FlashSums){NULL, NULL, NULL}, workspace);
}

int main(int argc, char **argv)
{
    const RatioStage ratio = {&stage,
                              1,
                              flash_backward_simd_workspace_bytes,
                              run_backward,
                              targets,
                              sizeof targets / sizeof *targets,
                              0};
    return ratio_main(&ratio, argc, argv);
}
