/* SPDX-License-Identifier: MIT
 *
 * threads.h: which thread of a parallel region is this? Without OpenMP there is one.
 *
 * Interface: thread_number (0 .. team_size() - 1), team_size.
 */
#ifndef UNITS_THREADS_H
#define UNITS_THREADS_H

#ifdef _OPENMP
#include <omp.h>

static inline int thread_number(void)
{
    return omp_get_thread_num();
}

/* May be smaller than what was asked for. */
static inline int team_size(void)
{
    return omp_get_num_threads();
}

#else

static inline int thread_number(void)
{
    return 0;
}

static inline int team_size(void)
{
    return 1;
}

#endif
#endif
