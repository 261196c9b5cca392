/* SPDX-License-Identifier: MIT
 *
 * v2_window_tiles: only the tiles that the window leaves.
 *
 * There is no new kernel here. Stage 03's asks attn_tile_class before it touches a tile, and a
 * window is nothing but more tiles that answer "skip". With a window of w keys a row tile of Br
 * queries meets about (Br + w) / Bc tiles of keys instead of Nk / Bc, wherever it stands, so the
 * work is N times the window. The memory need not grow with N either: where the window is narrow,
 * that kernel packs only the keys that a block of queries meets (simd_run.c of stage 03). What
 * remains to be done around it:
 *
 * - the options that change inputs only: window_plain_run (plain.c);
 * - several sequences, one after the other (sequences.h);
 * - dropout, and clipping, which needs the finished probabilities. A single pass over the keys
 *   never has them: it learns the sum of a row with the last key. So the pass above gives lse, and
 *   one over the same tiles, two with a clip, make P, change it and multiply it with V
 *   (weight_tiles.c). That is four or five products instead of two, since the first pass makes an O
 *   that nobody keeps, and still no N x N matrix.
 *
 * Interface: sliding_window_v2_window_tiles (sliding_window.h).
 */
#include <math.h>
#include <string.h>

#include "attention/forward/flash_library.h"
#include "attention/window/cpu/sequences.h"
#include "attention/window/window_library.h"
#include "attn_options.h"
#include "tensor.h"

/* Queries of a sequence without keys. */
static void store_nothing(const AttnArgs *args, const WindowPart *part)
{
    const AttnShape *n = &part->args.shape;
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t i = 0; i < n->Nq; i++) {
                const int64_t row = tensor_offset(&part->args.O, b, i, h);
                for (int64_t x = 0; x < n->d; x++)
                    tensor_set(&part->args.O, row + x, 0.0f);
                args->lse[window_part_row(args, part, b, h) + i] = -INFINITY;
            }
}

/* One sequence of several. The kernel writes lse as [B][H][Nq of this sequence], which is not how
 * its rows lie in the whole: by way of a copy. */
static AttnStatus attend_part(const AttnArgs *args, WindowPart *part, void *unused)
{
    const AttnShape *n = &part->args.shape;
    AttnStatus status;
    float *lse;
    (void)unused;
    if (n->Nk == 0)
        store_nothing(args, part);
    if (n->Nq == 0 || n->Nk == 0)
        return ATTN_OK;
    if (part->whole)
        return flash_forward_library_cpu(args);
    lse = workspace_alloc((size_t)(n->B * n->H * n->Nq) * sizeof *lse);
    if (!lse)
        return ATTN_NO_MEMORY;
    part->args.lse = lse;
    status = flash_forward_library_cpu(&part->args);
    for (int64_t bh = 0; bh < n->B * n->H && status == ATTN_OK; bh++)
        memcpy(args->lse + window_part_row(args, part, bh / n->H, bh % n->H), lse + bh * n->Nq,
               (size_t)n->Nq * sizeof *lse);
    workspace_free(lse);
    return status;
}

static AttnStatus attend_and_weigh(const AttnArgs *args)
{
    AttnStatus status = window_each_part(args, attend_part, NULL);
    if (status == ATTN_OK && (attn_clips(args) || attn_drops(args)))
        status = window_weigh_tiles(args);
    return status;
}

AttnStatus sliding_window_v2_window_tiles(const AttnArgs *args)
{
    return window_plain_run(args, attend_and_weigh);
}
