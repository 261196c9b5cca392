/* SPDX-License-Identifier: MIT
 *
 * sequences.c: the walk over the sequences of a problem.
 *
 * Both maps list sequences by rising id. A sequence may be in one of them only (nobody asks, or
 * there is nothing to see), so this is the merge of two sorted lists: take the smaller head, or
 * both when they are equal.
 *
 * Interface: window_next_part, window_each_part (sequences.h).
 */
#include "sequences.h"

#include <string.h>

#include "alloc.h"
#include "attn_pairs.h"
#include "tensor.h"

/* Does each segment have a sequence of its own, in rising order? */
static int ascending(AttnPositions map)
{
    for (int64_t s = 1; s < map.count; s++)
        if (map.segments[s].sequence <= map.segments[s - 1].sequence)
            return 0;
    return 1;
}

/* See sequences.h for the three conditions. A map with one segment on each side has nothing to
 * part, and goes to the kernels as it is. */
static int can_part(const AttnArgs *args)
{
    return (args->positions_q.count > 1 || args->positions_k.count > 1) && args->shape.B == 1 &&
           !args->mask && ascending(args->positions_q) && ascending(args->positions_k);
}

/* Tokens first .. first+count-1 of t: the same strides from another place. */
static void take_tokens(Tensor *t, int64_t first, int64_t count)
{
    if (t->data)
        t->data = (char *)t->data + first * t->stride[1] * (int64_t)dtype_size(t->dtype);
    t->shape[1] = count;
}

/* Segment `next` of a map if it belongs to `sequence`. Otherwise the sequence has no tokens on this
 * side, which an empty segment says: not every list has to name every sequence. */
static void take_segment(AttnPositions map, int64_t *next, int64_t sequence, AttnSegment *segment,
                         int64_t *first)
{
    if (*next < map.count && map.segments[*next].sequence == sequence) {
        *segment = map.segments[(*next)++];
        *first = segment->first;
    } else {
        *segment = (AttnSegment){0, 0, sequence, 0, 1};
        *first = 0;
    }
    segment->first = 0;
}

/* Fills part with the sequence of the smaller id at the heads of the two lists: views of the
 * tensors that begin with its first token, and two maps of one segment that begin with index 0. */
static int next_sequence(const AttnArgs *args, WindowPart *part)
{
    const AttnPositions q = args->positions_q, k = args->positions_k;
    AttnArgs *one = &part->args;
    int64_t sequence;
    if (part->next_q == q.count && part->next_k == k.count)
        return 0;
    if (part->next_q == q.count)
        sequence = k.segments[part->next_k].sequence;
    else if (part->next_k == k.count)
        sequence = q.segments[part->next_q].sequence;
    else if (q.segments[part->next_q].sequence < k.segments[part->next_k].sequence)
        sequence = q.segments[part->next_q].sequence;
    else
        sequence = k.segments[part->next_k].sequence;
    take_segment(q, &part->next_q, sequence, &part->segment_q, &part->first_q);
    take_segment(k, &part->next_k, sequence, &part->segment_k, &part->first_k);
    *one = *args;
    one->shape.Nq = part->segment_q.length;
    one->shape.Nk = part->segment_k.length;
    one->positions_q = attn_positions(&part->segment_q, 1);
    one->positions_k = attn_positions(&part->segment_k, 1);
    for (int t = 0; t < 4; t++)
        take_tokens((Tensor *[]){&one->Q, &one->O, &one->dO, &one->dQ}[t], part->first_q,
                    one->shape.Nq);
    for (int t = 0; t < 4; t++)
        take_tokens((Tensor *[]){&one->K, &one->V, &one->dK, &one->dV}[t], part->first_k,
                    one->shape.Nk);
    return 1;
}

int window_next_part(const AttnArgs *args, WindowPart *part)
{
    if (part->whole)
        return 0;
    if (!part->started) {
        part->started = 1;
        part->whole = !can_part(args);
        part->args = *args;
        if (part->whole)
            return 1;
    }
    return next_sequence(args, part);
}

/* All parts [*count], to be freed; NULL: memory is short. */
static WindowPart *list_parts(const AttnArgs *args, int64_t *count)
{
    const int64_t most = args->positions_q.count + args->positions_k.count;
    WindowPart *parts = workspace_alloc((size_t)most * sizeof *parts);
    *count = 0;
    while (parts) {
        WindowPart *part = &parts[*count];
        memset(part, 0, sizeof *part);
        /* every part is an iterator of its own, since its maps have to outlive the next step: it
         * goes on where the one before it stopped */
        if (*count > 0) {
            part->started = 1;
            part->whole = part[-1].whole;
            part->next_q = part[-1].next_q;
            part->next_k = part[-1].next_k;
        }
        if (!window_next_part(args, part))
            break;
        ++*count;
    }
    return parts;
}

/* Whole sequences are the right piece for a thread as long as none of them is a large share of the
 * work: who starts last on a sequence lets the others wait for all of it. Less than a quarter of a
 * thread's share, counted in tokens, keeps that wait short. */
static int all_short(const AttnArgs *args, const WindowPart *parts, int64_t count)
{
    const int64_t tokens = args->shape.Nq + args->shape.Nk;
    for (int64_t n = 0; n < count; n++)
        if ((parts[n].args.shape.Nq + parts[n].args.shape.Nk) * 4 * args->threads > tokens)
            return 0;
    return args->threads > 1;
}

AttnStatus window_each_part(const AttnArgs *args, WindowPartFn run, void *with)
{
    const int threads = args->threads;
    AttnStatus status = ATTN_OK;
    int64_t count;
    WindowPart *parts = list_parts(args, &count);
    if (!parts)
        return ATTN_NO_MEMORY;
    if (all_short(args, parts, count)) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
        for (int64_t n = 0; n < count; n++) {
            AttnStatus one;
            parts[n].args.threads = 1;
            one = run(args, &parts[n], with);
            if (one != ATTN_OK) {
#pragma omp atomic write
                status = one;
            }
        }
    } else {
        for (int64_t n = 0; n < count && status == ATTN_OK; n++)
            status = run(args, &parts[n], with);
    }
    workspace_free(parts);
    return status;
}
