/* SPDX-License-Identifier: MIT
 *
 * table.c: the methods, each named once. Nothing else in the stage asks for a method's name to know
 * what to do.
 *
 * Interface: ring_method_row, ring_method (ring_world.h).
 */
#include "runtime/ring_world.h"

extern const RingMethodRow ring_row_ring, ring_row_burst, ring_row_allgather, ring_row_ulysses,
    ring_row_ring_double, ring_row_burst_double, ring_row_minimal;

const RingMethodRow *ring_method_row(RingMethod method)
{
    static const RingMethodRow *const rows[RING_METHODS] = {
        [RING_METHOD_RING] = &ring_row_ring,
        [RING_METHOD_BURST] = &ring_row_burst,
        [RING_METHOD_ALLGATHER] = &ring_row_allgather,
        [RING_METHOD_ULYSSES] = &ring_row_ulysses,
        [RING_METHOD_RING_DOUBLE] = &ring_row_ring_double,
        [RING_METHOD_BURST_DOUBLE] = &ring_row_burst_double,
        [RING_METHOD_RING_MINIMAL] = &ring_row_minimal,
    };
    return method > RING_METHOD_AUTO && method < RING_METHODS ? rows[method] : NULL;
}

const RingMethodTable *ring_method(RingMethod method)
{
    const RingMethodRow *row = ring_method_row(method);
    return row ? &row->passes : NULL;
}
