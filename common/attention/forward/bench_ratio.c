/* SPDX-License-Identifier: MIT
 *
 * bench_ratio: how near does the CPU library come to a matrix product that does nothing else?
 *
 * Attention is two products with a softmax between them. A product of matrices as large and square
 * as sgemm's 2048^3 is the easiest thing that a core can be given; so its rate is the measure, and
 * what is lacking to 1 is the price of thin operands, of the softmax and of the mask. (The products
 * alone are faster than sgemm: their panels are laid out once and lie in L2.)
 *
 *     bench_ratio                         a minute or two
 *     bench_ratio --rounds 3 --threads 1
 *
 * Under a causal mask the operations of visible pairs are counted, and nothing else.
 */
#include "attention/forward/flash_library.h"
#include "harness/bench/ratio.h"
#include "variant_so.h"

static const Variant variants[] = {{.name = "library",
                                    .device = ON_CPU,
                                    .dtypes = DTYPES_ALL,
                                    .forward = flash_forward_library_cpu,
                                    .idea = "packed operands, tiles in registers, vector exp"}};

static const Stage stage = {"flash_forward",
                            "03_flash_forward",
                            "How near does the CPU library come to a matrix product?",
                            FLASH_FORWARD_ABI_VERSION,
                            0,
                            variants,
                            1};

/* d, causal, from this length on, floor, aim */
static const RatioTarget targets[] = {
    {64, 0, 1024, 0.88, 0.95}, {128, 0, 1024, 0.92, 0.98}, {64, 1, 1024, 0.80, 0.88},
    {64, 1, 2048, 0.85, 0.92}, {128, 1, 1024, 0.80, 0.88}, {128, 1, 2048, 0.90, 0.95},
};

static AttnStatus run_forward(const AttnArgs *args, void *workspace)
{
    return flash_simd_run(args, NULL, workspace);
}

int main(int argc, char **argv)
{
    const RatioStage ratio = {&stage,
                              0,
                              flash_simd_workspace_bytes,
                              run_forward,
                              targets,
                              sizeof targets / sizeof *targets,
                              0};
    return ratio_main(&ratio, argc, argv);
}
