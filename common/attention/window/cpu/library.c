/* SPDX-License-Identifier: MIT
 *
 * library.c: whole calls of stage 05 on a CPU, forward and backward, with every option: only the
 * tiles that the window leaves.
 *
 * There is no new kernel here. Stage 03's asks attn_tile_class before it touches a tile, and a
 * window is nothing but more tiles that answer "skip". With a window of w keys a row tile of Br
 * queries meets about (Br + w) / Bc tiles of keys instead of Nk / Bc, wherever it stands, so the
 * work is N times the window. The memory need not grow with N either: where the window is narrow,
 * that kernel packs only the keys that a block of queries meets. What remains to be done around it:
 *
 * - the options that change inputs only: window_plain_run (plain.c);
 * - several sequences, one after the other (sequences.h);
 * - dropout, and clipping, which needs the finished probabilities. A single pass over the keys
 *   never has them: it learns the sum of a row with the last key. So the pass above gives lse, and
 *   one over the same tiles, two with a clip, make P, change it and multiply it with V
 *   (weight_tiles.c). That is four or five products instead of two, since the first pass makes an O
 *   that nobody keeps, and still no N x N matrix.
 *
 * Nothing in the backward pass asks for the whole matrix. A pair that is not visible has P = 0,
 * hence dS = 0, and adds nothing to any gradient; so the tiles that the forward pass skipped are
 * skipped again, and stage 04's kernel does that by itself. lse is all it needs from the forward
 * pass. Who adds to what is as in stage 04: with grouped heads, the query heads of a group to one
 * dK and dV; with a window, up to (Br + w) / Bc tiles of keys to one row of dQ.
 *
 * Two ways through the backward pass. Where the gradients of the kernel are the gradients of the
 * tensors, it rounds them where they belong. Otherwise they are sums in float32 first: with a QK
 * norm the chain rule goes on from them (plain.c), with several sequences each adds its own rows.
 *
 * Interface: sliding_window_library_cpu, sliding_window_library_cpu_backward (window_library.h).
 */
#include <math.h>
#include <string.h>

#include "attention/backward/backward_library.h"
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

AttnStatus sliding_window_library_cpu(const AttnArgs *args)
{
    return window_plain_run(args, attend_and_weigh);
}

/* --- backward ----------------------------------------------------------------------------------*/

/* Adds what one sequence gives, or the whole problem. A sequence's rows of lse are brought together
 * first: [B][H][Nq of this sequence], like its delta. */
static AttnStatus add_part(const AttnArgs *args, WindowPart *part, void *whole_sums)
{
    const AttnShape *n = &part->args.shape;
    const int64_t rows = n->B * n->H * n->Nq;
    FlashSums sums = *(const FlashSums *)whole_sums;
    AttnStatus status;
    float *lse;
    if (n->Nq == 0 || n->Nk == 0)
        return ATTN_OK; /* no pairs, nothing to add */
    lse = workspace_alloc((size_t)(2 * rows) * sizeof *lse);
    if (!lse)
        return ATTN_NO_MEMORY;
    for (int64_t bh = 0; bh < n->B * n->H; bh++)
        memcpy(lse + bh * n->Nq, args->lse + window_part_row(args, part, bh / n->H, bh % n->H),
               (size_t)n->Nq * sizeof *lse);
    part->args.lse = lse;
    flash_backward_delta(&part->args, lse + rows);
    /* a part that is not the whole has B = 1 (sequences.h): its rows are one run of the sums */
    sums.dQ += part->first_q * n->H * n->d;
    sums.dK += part->first_k * n->Hkv * n->d;
    sums.dV += part->first_k * n->Hkv * n->d;
    status = flash_backward_block_cpu(&part->args, lse + rows, sums);
    workspace_free(lse);
    return status;
}

static AttnStatus add_gradients(const AttnArgs *args, FlashSums sums)
{
    if (attn_clips(args) || attn_drops(args))
        return window_weigh_tiles_backward(args, sums);
    return window_each_part(args, add_part, &sums);
}

/* Are the kernel's gradients those of the tensors of args? */
static int is_direct(const AttnArgs *args)
{
    WindowPart part = {0};
    window_next_part(args, &part);
    return part.whole && !(args->options && args->options->norm_group > 0) && !attn_clips(args) &&
           !attn_drops(args);
}

AttnStatus sliding_window_library_cpu_backward(const AttnArgs *args)
{
    if (is_direct(args))
        return window_plain_run(args, flash_backward_library_cpu);
    return window_plain_backward(args, add_gradients);
}
