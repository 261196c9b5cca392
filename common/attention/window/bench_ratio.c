/* SPDX-License-Identifier: MIT
 *
 * bench_ratio: what does a window cost, per pair that it leaves?
 *
 * The library is stage 03's library with a rule, against sgemm's 2048^3 (see ratio.h). Only
 * visible pairs are counted. A narrow window is harder than a full row: a strip of rows meets few
 * tiles of keys, both ends of its span are cut, and what is done once for each row (Q in, O out,
 * the first maximum) is shared by 257 keys and not by thousands.
 *
 *     bench_ratio                         a minute or two
 *     bench_ratio --rounds 3 --threads 1
 *
 * The second figure is the first one's quotient of two lengths: cost linear in N is a rate that
 * does not depend on N.
 */
#include "attention/forward/flash_library.h"
#include "attention/window/window_library.h"
#include "harness/bench/ratio.h"
#include "variant_so.h"

static const Variant variants[] = {{.name = "library",
                                    .device = ON_CPU,
                                    .dtypes = DTYPES_ALL,
                                    .forward = sliding_window_library_cpu,
                                    .idea = "only the tiles that the window leaves"}};

static const Stage stage = {"sliding_window",
                            "05_sliding_window_online",
                            "What does a window cost, per pair that it leaves?",
                            SLIDING_WINDOW_ABI_VERSION,
                            0,
                            variants,
                            1};

/* d, causal, from this length on, floor, aim */
static const RatioTarget targets[] = {{64, 1, 8192, 0.70, 0.80}};

/* No option asks for more than the block kernel; no sequence but one. */
static AttnStatus run_window(const AttnArgs *args, void *workspace)
{
    return flash_simd_run(args, NULL, workspace);
}

int main(int argc, char **argv)
{
    const RatioStage ratio = {&stage,     0,       flash_simd_workspace_bytes,
                              run_window, targets, sizeof targets / sizeof *targets,
                              256};
    return ratio_main(&ratio, argc, argv);
}
