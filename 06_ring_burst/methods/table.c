/* SPDX-License-Identifier: MIT
 *
 * table.c: a table of tables: which functions make a method. Nothing else in the stage asks for a
 * method's name to know what to do.
 *
 * Interface: ring_method (ring_rank.h).
 */
#include "methods/methods.h"

const RingMethodTable *ring_method(RingMethod method)
{
    static const RingMethodTable *const tables[RING_METHODS] = {
        [RING_METHOD_RING] = &ring_table,
        [RING_METHOD_BURST] = &burst_table,
        [RING_METHOD_ALLGATHER] = &allgather_table,
        [RING_METHOD_ULYSSES] = &ulysses_table,
        [RING_METHOD_RING_DOUBLE] = &ring_double_table,
        [RING_METHOD_BURST_DOUBLE] = &burst_double_table,
        [RING_METHOD_RING_MINIMAL] = &ring_minimal_table,
    };
    return method > RING_METHOD_AUTO && method < RING_METHODS ? tables[method] : NULL;
}
