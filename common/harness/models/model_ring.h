/* SPDX-License-Identifier: MIT
 *
 * model_ring.h: names of attention over several ranks (stage 06): methods and layouts.
 * The formulas stand in model_ring_bytes.h.
 *
 * Interface: RingMethod, RingLayout and their names, also of a RingTensor; ring_method_on.
 */
#ifndef ATTN_MODEL_RING_H
#define ATTN_MODEL_RING_H

#include "harness/models/ring_tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum RingMethod {
    RING_METHOD_AUTO,
    RING_METHOD_RING,
    RING_METHOD_BURST,
    RING_METHOD_ALLGATHER,
    RING_METHOD_ULYSSES,
    RING_METHOD_RING_DOUBLE,
    RING_METHOD_BURST_DOUBLE,
    RING_METHOD_RING_MINIMAL, /* for reading: the planner and the map do not consider it */
    RING_METHODS
} RingMethod;

/* Chunks are as equal as can be: chunk c of C of a sequence of N tokens is [c N / C, (c+1) N / C).
 *   contiguous   rank r has chunk r of G
 *   zigzag       chunks r and 2G-1-r of 2G: equal work under a causal mask
 *   striped      tokens r, r + G, r + 2G, ...
 * Each sequence of a varlen batch is dealt out for itself. */
typedef enum RingLayout { RING_CONTIGUOUS, RING_ZIGZAG, RING_STRIPED, RING_LAYOUTS } RingLayout;

const char *ring_method_name(RingMethod method); /* "ring-double" */
const char *ring_layout_name(RingLayout layout); /* "zigzag" */
const char *ring_tensor_name(RingTensor tensor); /* "dK" */
int ring_method_from_name(const char *name);     /* -1: no such method */

/* What a method is on so many nodes: a double ring of one node, or of one rank on each, is a single
 * one. */
RingMethod ring_method_on(RingMethod method, int ranks, int nodes);

#ifdef __cplusplus
}
#endif
#endif
