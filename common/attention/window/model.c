/* SPDX-License-Identifier: MIT
 *
 * model.c: what the rows of stage 05 move between slow and fast memory, by their tiles.
 *
 * In the library tensors of 16 bits go to the kernels of stages 03 and 04 as they are, float32 to
 * those that make two passes backward. Clipping and dropout go over the tiles twice, which no
 * formula here knows.
 *
 * Interface: window_model_row (window_library.h).
 */
#include "harness/models/model.h"
#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attention/window/window_library.h"
#include "attn_config.h"
#include "attn_options.h"
#include "harness/report/report.h"
#include "harness/stage_main.h"

/* A pass: its tiles, and what goes between slow and fast memory. */
typedef struct WindowPass {
    FlashTiles tiles;
    ModelTraffic traffic;
} WindowPass;

#ifdef HAVE_CUDA
static WindowPass pass_on_cuda(const AttnArgs *args, int backward)
{
    const FlashTiles t =
        backward ? flash_backward_tiles_library_cuda(args) : flash_tiles_library_cuda(args);
    WindowPass pass = {.tiles = t};
    if (!backward)
        pass.traffic = model_fa2_traffic(args, t.Br, t.Bc, t.splits);
    else if (args->Q.dtype == ATTN_F32)
        pass.traffic = model_two_kernels_backward_traffic(args, t.Br, t.Bc);
    else
        pass.traffic = model_atomic_backward_traffic(args, t.Br, t.Bc, 1);
    return pass;
}
#endif

static WindowPass pass_of_library(const AttnArgs *args, int on_cuda, int backward)
{
    const FlashTiles t =
        backward ? flash_backward_tiles_library_cpu(args) : flash_tiles_library_cpu(args);
    WindowPass pass = {.tiles = t};
#ifdef HAVE_CUDA
    AttnArgs copies = *args; /* in float32 where weights are not P */
    if (attn_clips(args) || attn_drops(args))
        copies.Q.dtype = ATTN_F32;
    if (on_cuda)
        return pass_on_cuda(&copies, backward);
#endif
    (void)on_cuda;
    pass.traffic = backward ? model_packed_backward_traffic(args, t.Br, t.Bc, t.splits)
                            : model_packed_traffic(args, t.Br, t.Bc);
    return pass;
}

/* What a pass moves, and its tiles. */
static WindowPass pass_of(const ReportRow *row, const AttnArgs *args, int backward)
{
    const Rung *rung = row->variant->rung;
    WindowPass pass = {0};
    if (!rung)
        return pass_of_library(args, row->variant->device == ON_CUDA, backward);
    if (rung->flags & FULL)
        pass.traffic.load_bytes = model_materialised_bytes(args, backward);
    else if (rung->flags & STREAM)
        pass.traffic = model_stream_traffic(args);
    else if (!(rung->flags & STEPS))
        pass.traffic = model_decode_traffic(args);
    else {
        pass.tiles = flash_tiles_of(&args->shape, stage_tiles(row).Br, stage_tiles(row).Bc);
        pass.traffic = model_online_traffic(args, pass.tiles.Br, pass.tiles.Bc);
    }
    return pass;
}

void window_model_row(ReportRow *row)
{
    const AttnArgs *args = &row->problem->args;
    for (int backward = 0; backward <= row->c->backward; backward++) {
        const WindowPass pass = pass_of(row, args, backward);
        const FlashTiles t = pass.tiles;
        row->model_bytes += pass.traffic.load_bytes + pass.traffic.store_bytes;
        if (t.Br == 0)
            continue;
        const WindowTiles seen = window_count_tiles(args, t.Br, t.Bc);
        row->tiles = (ReportTiles){0, t.Br, t.Bc, t.splits, seen.skipped, seen.masked, seen.clean};
    }
    if (attn_clips(args) || attn_drops(args)) /* tiles are gone over twice */
        row->model_bytes = 0.0;
}
