/* SPDX-License-Identifier: MIT
 *
 * v0_online_block: the seed's step on the device. Every pair of a block of queries and a block of
 * keys is a launch of its own, in the order of --order:
 *
 *     O = 0, lse = -inf                                            window_start_cuda
 *     for each visit (i, j):   step, unless the window hides it    window_step_cuda
 *
 * (the step, and its launch: attention/window/cuda/online.cu).
 *
 * Any order gives the same result, and this is the variant that shows it. What it costs: O and lse
 * go to memory and back in every step, where the kernels of stage 03 keep them in registers; a
 * launch has only the rows of one block to work on (B * H * block_q of them), so most of the GPU
 * watches; and with 16 bits every step rounds O.
 *
 * A block outside the window costs a look at four numbers on the host: O(1), no launch.
 *
 * Interface:
 * - sliding_window_v0_online_block: every dtype, d <= 256, full mask, several sequences; no
 *   clipping and no dropout.
 */
#include "alloc.h"
#include "attention/window/cuda/window_cuda.h"
#include "attn_options.h"

/* Block `index` of a segment: again a run of tokens with consecutive positions. */
static AttnSegment block_of(const AttnSegment *segment, int64_t index, int64_t size)
{
    const int64_t skipped = index * size;
    AttnSegment block = *segment;
    block.first += skipped;
    block.position += skipped;
    block.length -= skipped;
    block.length = block.length < size ? block.length : size;
    return block;
}

/* All blocks of a segment of queries and one of keys, which are of the same sequence. */
static AttnStatus visit_blocks(const AttnArgs *a, const AttnSegment *q, const AttnSegment *k)
{
    const int64_t Br = window_block_q(), Bc = window_block_kv();
    const int64_t Tr = (q->length + Br - 1) / Br, Tc = (k->length + Bc - 1) / Bc;
    AttnStatus status = ATTN_OK;
    if (Tr * Tc == 0)
        return ATTN_OK;
    int64_t *visits = (int64_t *)workspace_alloc((size_t)(Tr * Tc) * sizeof *visits);
    if (!visits)
        return ATTN_NO_MEMORY;
    window_order_blocks(Tr, Tc, visits);
    for (int64_t t = 0; status == ATTN_OK && t < Tr * Tc; t++)
        status =
            window_step_cuda(a, block_of(q, visits[t] / Tc, Br), block_of(k, visits[t] % Tc, Bc));
    workspace_free(visits);
    return status;
}

static bool consecutive(AttnPositions map)
{
    for (int64_t s = 0; s < map.count; s++)
        if (map.host[s].stride != 1)
            return false;
    return true;
}

static AttnStatus run_steps(const AttnArgs *a)
{
    const AttnPositions q = a->positions_q, k = a->positions_k;
    if (!consecutive(q) || !consecutive(k)) {
        window_set_skip_reason("v0_online_block takes blocks of consecutive positions");
        return ATTN_SKIP;
    }
    AttnStatus status = window_start_cuda(a);
    for (int64_t s = 0; status == ATTN_OK && s < q.count; s++)
        for (int64_t t = 0; status == ATTN_OK && t < k.count; t++)
            if (q.host[s].sequence == k.host[t].sequence)
                status = visit_blocks(a, &q.host[s], &k.host[t]);
    return status;
}

AttnStatus sliding_window_v0_online_block(const AttnArgs *args)
{
    if (attn_clips(args) || attn_drops(args)) {
        window_set_skip_reason("v0_online_block knows no clipping and no dropout: both need the "
                               "final weights, and a step sees those of its own block");
        return ATTN_SKIP;
    }
    return window_plain_run_cuda(args, run_steps);
}
