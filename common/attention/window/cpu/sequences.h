/* SPDX-License-Identifier: MIT
 *
 * sequences.h: several sequences in one tensor, taken one after the other.
 *
 * Sequences of different lengths lie one behind the other on the token axis, and a position map
 * with a segment for each of them tells where one ends. The kernels understand such a map: a pair
 * from two sequences is invisible. But attn_position walks the list of segments for every index,
 * and tiles that hold pieces of two sequences have to be asked pair by pair. With a thousand
 * sequences of 100 tokens that costs more than the attention. So a variant takes each sequence as a
 * problem of its own, with one segment: a view of the same memory, nothing is copied.
 *
 * Only where that is possible: one batch (the tensors of varlen have no other), no full mask (its
 * rows would need a stride), and no sequence in several segments. Everything else is one part: the
 * whole problem, with its map.
 *
 *     WindowPart part = {0};
 *     while (window_next_part(args, &part))
 *         ... part.args ...
 *
 * Threads meet at the end of every parallel loop, and a sequence of 64 tokens is done before the
 * last of them has woken up. Many short sequences are therefore dealt out whole, each to one
 * thread; a few long ones are shared by all threads, one after the other (window_each_part).
 *
 * Interface:
 * - WindowPart, window_next_part. window_part_row: where a part's rows of lse are.
 * - WindowPartFn, window_each_part: calls a function for every part, threads used well.
 */
#ifndef WINDOW_SEQUENCES_H
#define WINDOW_SEQUENCES_H

#include "attention/window/window_library.h"

/* A struct of this type points into itself: never copy it. */
typedef struct WindowPart {
    AttnArgs args;                    /* as if it were alone; shape.Nq or shape.Nk may be 0 */
    int64_t first_q, first_k;         /* its first local indexes in the whole problem */
    int64_t next_q, next_k;           /* segments that were not visited yet */
    AttnSegment segment_q, segment_k; /* its position maps */
    int started, whole;               /* whole: it is all of args */
} WindowPart;

/* The next part, beginning with a zeroed struct; 0: there is none left. */
int window_next_part(const AttnArgs *args, WindowPart *part);

/* `with` is the caller's; part->args.threads is how many threads this part has for itself. Several
 * threads may be in `run` at the same time, with different parts. */
typedef AttnStatus (*WindowPartFn)(const AttnArgs *args, WindowPart *part, void *with);
AttnStatus window_each_part(const AttnArgs *args, WindowPartFn run, void *with);

/* lse and delta are [B][H][Nq] of the whole problem, and part.args.lse is that of the whole too:
 * row 0 of a part's head (b, h) is this one. */
static inline int64_t window_part_row(const AttnArgs *args, const WindowPart *part, int64_t b,
                                      int64_t h)
{
    return (b * args->shape.H + h) * args->shape.Nq + part->first_q;
}

#endif
