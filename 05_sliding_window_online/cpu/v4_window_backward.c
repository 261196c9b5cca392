/* SPDX-License-Identifier: MIT
 *
 * v4_window_backward: the gradients of v2, at the cost of N times the window too.
 *
 * Nothing in the backward pass asks for the whole matrix. A pair that is not visible has P = 0,
 * hence dS = 0, and adds nothing to any gradient; so the tiles that the forward pass skipped are
 * skipped again, and stage 04's kernel does that by itself. lse is all it needs from the forward
 * pass.
 *
 * Who adds to what is as in stage 04: with grouped heads, the query heads of a group to one dK and
 * dV; with a window, up to (Br + w) / Bc tiles of keys to one row of dQ.
 *
 * Two ways through this file. Where the gradients of the kernel are the gradients of the tensors,
 * it rounds them where they belong. Otherwise they are sums in float32 first: with a QK norm the
 * chain rule goes on from them (plain.c), with several sequences each adds its own rows.
 *
 * Interface: sliding_window_v4_window_backward (sliding_window.h).
 */
#include <string.h>

#include "attention/backward/backward_library.h"
#include "attention/window/cpu/sequences.h"
#include "attention/window/window_library.h"
#include "attn_options.h"

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

AttnStatus sliding_window_v4_window_backward(const AttnArgs *args)
{
    if (is_direct(args))
        return window_plain_run(args, flash_backward_library_cpu);
    return window_plain_backward(args, add_gradients);
}
