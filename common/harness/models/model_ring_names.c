/* SPDX-License-Identifier: MIT
 *
 * model_ring_names.c: the names of stage 06's methods, layouts and tensors, as they are typed,
 * shown and recorded.
 *
 * Interface: ring_method_name, ring_layout_name, ring_tensor_name, ring_method_from_name
 * (model_ring.h).
 */
#include "harness/models/model_ring.h"

#include <string.h>

static const char *const methods[RING_METHODS] = {
    "auto", "ring", "burst", "allgather", "ulysses", "ring-double", "burst-double", "ring-minimal"};
static const char *const layouts[RING_LAYOUTS] = {"contiguous", "zigzag", "striped"};
static const char *const tensors[RING_TENSORS + 1] = {"Q",  "K",  "V",  "O",  "lse",    "delta",
                                                      "dO", "dQ", "dK", "dV", "results"};

const char *ring_method_name(RingMethod method)
{
    return (unsigned)method < RING_METHODS ? methods[method] : "?";
}

const char *ring_layout_name(RingLayout layout)
{
    return (unsigned)layout < RING_LAYOUTS ? layouts[layout] : "?";
}

const char *ring_tensor_name(RingTensor tensor)
{
    return (unsigned)tensor <= RING_TENSORS ? tensors[tensor] : "?";
}

int ring_method_from_name(const char *name)
{
    for (int n = 0; n < RING_METHODS; n++)
        if (strcmp(name, methods[n]) == 0)
            return n;
    return -1;
}
