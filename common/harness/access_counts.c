/* SPDX-License-Identifier: MIT
 *
 * access_counts: the two counters behind problem_rows.h and behind units/fast_memory.h. Threads and
 * the host side of the CUDA twins add to them, hence the atomics.
 *
 * Interface:
 * - access_counts_add, access_counts, access_counts_reset.
 */
#include "problem_rows.h"

static int64_t loads_seen, stores_seen;

void access_counts_add(int64_t loads, int64_t stores)
{
    __atomic_fetch_add(&loads_seen, loads, __ATOMIC_RELAXED);
    __atomic_fetch_add(&stores_seen, stores, __ATOMIC_RELAXED);
}

AccessCounts access_counts(void)
{
    AccessCounts counts;
    counts.loads = __atomic_load_n(&loads_seen, __ATOMIC_RELAXED);
    counts.stores = __atomic_load_n(&stores_seen, __ATOMIC_RELAXED);
    return counts;
}

void access_counts_reset(void)
{
    __atomic_store_n(&loads_seen, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&stores_seen, 0, __ATOMIC_RELAXED);
}
