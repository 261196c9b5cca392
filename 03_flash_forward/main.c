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
 *     v9_wgmma ... v14_persistent: --list tells the idea of each
 *
 * The answer is stage 02's online state, applied to tiles that fit in fast memory; what is read
 * again and again is then a tile, and how often depends on the order of two loops.
 *
 *     flash_forward                              small, checks all variants
 *     flash_forward --trace                      m, l and O filling in, tile by tile
 *     flash_forward --sram 4096 --bench          v0 and v1 with a smaller fast memory
 */
#include <stdio.h>

#include "attention/forward/flash_library.h"
#include "attn_config.h"
#include "flash_forward.h"
#include "flash_forward_rungs.h"
#include "harness/models/model.h"
#include "harness/stage_main.h"
#include "units/fast_memory.h"

static Variant variants[] = {
    CPU_RUNG(flash_forward, v0_fa1_tiles),
    CPU_RUNG(flash_forward, v1_fa2_rows),
    CPU_RUNG(flash_forward, v2_packing),
    CPU_RUNG(flash_forward, v3_register_tiles),
    CPU_RUNG(flash_forward, v4_exp2),
    CPU_RUNG(flash_forward, v5_own_heads),
    {"library", ON_CPU, DTYPES_ALL, flash_forward_library_cpu, NULL, 0,
     "v5 for every mask, stride, dtype and state to resume from", NULL},
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
    {"library", ON_CUDA, DTYPES_ALL, ATTN_CUDA_FN(flash_forward_library_cuda), NULL,
     VARIANT_TENSOR_CORES, "every mask, stride, segment and d; full tiles, split keys, resume",
     NULL},
};

static const Stage stage = {"flash_forward",
                            "03_flash_forward",
                            "How can exact attention never write the N x N matrix, and why is that "
                            "faster although it computes more?",
                            FLASH_FORWARD_ABI_VERSION,
                            STAGE_HAS_TRACE | STAGE_HAS_SRAM | STAGE_HAS_SMEM_LIMIT,
                            variants,
                            sizeof variants / sizeof *variants};

/* --- the byte model: each variant tells its tiles, models/model.c does the sums ----------------*/

static ModelTraffic fa1_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_fa1_traffic(args, tiles.Br, tiles.Bc);
}

static ModelTraffic fa2_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_fa2_traffic(args, tiles.Br, tiles.Bc, tiles.splits);
}

static ModelTraffic packed_traffic(const AttnArgs *args, FlashTiles tiles)
{
    return model_packed_traffic(args, tiles.Br, tiles.Bc);
}

static const struct {
    AttnFn forward;
    FlashTiles (*tiles)(const AttnArgs *args);
    ModelTraffic (*traffic)(const AttnArgs *args, FlashTiles tiles);
} models[] = {
    {flash_forward_library_cpu, flash_tiles_library_cpu, packed_traffic},
    {ATTN_CUDA_FN(flash_forward_library_cuda), ATTN_CUDA_FN(flash_tiles_library_cuda), fa2_traffic},
};

/* A rung on a CPU moves float32, whatever the tensors hold. v0 and v1 have tiles for --sram. */
static ModelTraffic rung_traffic(ReportRow *row, AttnArgs args)
{
    const Rung *rung = row->variant->rung;
    const Tiles t = stage_tiles(row);
    const FlashTiles tiles = flash_tiles_of(&args.shape, t.Br, t.Bc);
    const int sram =
        rung == &rung_flash_forward_v0_fa1_tiles || rung == &rung_flash_forward_v1_fa2_rows;
    row->tiles = (ReportTiles){.Br = tiles.Br, .Bc = tiles.Bc, .splits = 1};
    row->tiles.sram_elements = !sram ? 0 : row->c->sram ? row->c->sram : FAST_ELEMENTS;
    if (row->variant->device == ON_CPU)
        args.Q.dtype = ATTN_F32;
    if (rung == &rung_flash_forward_v0_fa1_tiles || rung == &rung_flash_forward_v0_fa1)
        return fa1_traffic(&args, tiles);
    return sram || row->variant->device == ON_CUDA ? fa2_traffic(&args, tiles)
                                                   : packed_traffic(&args, tiles);
}

static void model(ReportRow *row)
{
    const Variant *v = row->variant;
    const AttnArgs *args = &row->result->args;
    ModelTraffic traffic = {0};
    if (v->rung)
        traffic = rung_traffic(row, *args);
    for (size_t m = 0; v->forward && m < sizeof models / sizeof *models; m++) {
        if (models[m].forward != v->forward)
            continue;
        const FlashTiles tiles = models[m].tiles(args);
        row->tiles = (ReportTiles){.Br = tiles.Br, .Bc = tiles.Bc, .splits = tiles.splits};
        traffic = models[m].traffic(args, tiles);
    }
    row->model_bytes = traffic.load_bytes + traffic.store_bytes;
}

/* --sram M is what tile sizes are made from; this is what has to fit. */
static void print_fast_memory(const AttnShape *shape, int64_t M)
{
    const FastMemory fast = fast_memory(M, (int)shape->Nq, (int)shape->Nk, (int)shape->d);
    const int64_t elements = fast_elements(&fast);
    printf("# M = %lld elements: v0_fa1_tiles and v1_fa2_rows have tiles of %d x %d; with S, m "
           "and l %lld elements have to fit, %.2f M\n",
           (long long)M, fast.Br, fast.Bc, (long long)elements, (double)elements / (double)M);
}

static int64_t asked_sram; /* --sram, or 0 */

static void begin(const CliCase *c, const AttnShape *shape, int quiet)
{
    asked_sram = c->sram;
    if (c->sram && !quiet)
        print_fast_memory(shape, c->sram);
}

static int trace(const AttnArgs *args, FILE *to)
{
    return flash_trace(args, asked_sram, to);
}

static int trace_steps(const AttnArgs *args, FILE *to)
{
    return flash_trace_steps(args, asked_sram, to);
}

int main(int argc, char **argv)
{
    static const StageMain flash_forward = {.variants = variants,
                                            .trace = trace,
                                            .trace_steps = trace_steps,
                                            .begin = begin,
                                            .model = model};
    return stage_main(&stage, &flash_forward, argc, argv);
}
