/* SPDX-License-Identifier: MIT
 *
 * model_row.c: from a row's tiles to its bytes. See model_row.h.
 */
#include "harness/models/model_row.h"

#include <string.h>

#include "harness/models/model.h"
#include "harness/stage_main.h"

/* The paper's algorithm that a rung is named after: 1 or 2 (v0_fa1_tiles, v1_fa2_rows), or 0. */
static int paper_of(const Variant *v)
{
    if (v->rung && strstr(v->name, "fa1"))
        return 1;
    return v->rung && strstr(v->name, "fa2") ? 2 : 0;
}

/* args: those of the row, with the dtype that it moves. */
static FlashTiles tiles_of(const ReportRow *row, AttnArgs *args)
{
    const Variant *v = row->variant;
    const Tiles t = stage_tiles(row);
    *args = row->result->args;
    if (!v->rung)
        return v->tiles(args);
    if (v->device == ON_CPU)
        args->Q.dtype = ATTN_F32;
    return flash_tiles_of(&args->shape, t.Br, t.Bc);
}

static void set_row(ReportRow *row, FlashTiles t, ModelTraffic traffic)
{
    row->tiles.Br = t.Br;
    row->tiles.Bc = t.Bc;
    row->tiles.splits = t.splits;
    row->model_bytes = traffic.load_bytes + traffic.store_bytes;
}

void model_forward_row(ReportRow *row, int64_t sram)
{
    AttnArgs args;
    const FlashTiles t = tiles_of(row, &args);
    const int paper = paper_of(row->variant), on_cpu = row->variant->device == ON_CPU;
    if (paper == 1)
        set_row(row, t, model_fa1_traffic(&args, t.Br, t.Bc));
    else if (paper == 2 || !on_cpu)
        set_row(row, t, model_fa2_traffic(&args, t.Br, t.Bc, t.splits));
    else
        set_row(row, t, model_packed_traffic(&args, t.Br, t.Bc));
    if (paper && on_cpu) /* their tiles are those of --sram */
        row->tiles.sram_elements = row->c->sram ? row->c->sram : sram;
}

/* Parts of the keys with a dQ of their own: on a CPU as many as `tasks` threads want. */
static int64_t parts_of(const AttnShape *n, int64_t Tc, int64_t tasks)
{
    const int64_t wanted = (tasks + n->B * n->Hkv - 1) / (n->B * n->Hkv);
    return Tc < wanted ? Tc : wanted;
}

/* A kernel adds to dQ by atomics, or its queries own dQ. */
void model_backward_row(ReportRow *row)
{
    const Rung *rung = row->variant->rung;
    const int paper = paper_of(row->variant), on_cpu = row->variant->device == ON_CPU;
    AttnArgs args;
    FlashTiles t;
    if (rung && !rung->tiles) { /* stage 01's */
        row->model_bytes = model_materialised_bytes(&row->result->args, 1);
        return;
    }
    t = tiles_of(row, &args);
    if (rung && on_cpu && paper != 1)
        t.splits = parts_of(&args.shape, t.Tc, paper == 2 ? 16 : 8);
    if (paper == 1 && on_cpu)
        set_row(row, t, model_fa1_backward_traffic(&args, t.Br, t.Bc));
    else if (paper == 2 && on_cpu)
        set_row(row, t, model_fa2_backward_traffic(&args, t.Br, t.Bc, t.splits));
    else if (on_cpu)
        set_row(row, t, model_packed_backward_traffic(&args, t.Br, t.Bc, t.splits));
    else if (rung ? (rung->flags & ATOMICS) != 0 : args.Q.dtype != ATTN_F32)
        set_row(row, t, model_atomic_backward_traffic(&args, t.Br, t.Bc, 1));
    else
        set_row(row, t, model_two_kernels_backward_traffic(&args, t.Br, t.Bc));
}
