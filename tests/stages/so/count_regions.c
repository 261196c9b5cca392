/* SPDX-License-Identifier: MIT
 *
 * count_regions.c: how often a program starts several threads, for test_regions.py. Preloaded, it
 * stands before libgomp's GOMP_parallel, which OpenBLAS calls too, and says on stderr how many
 * regions had more than one thread. A region of one starts nothing and waits for nobody.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

typedef void Parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags);

static long regions;

void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags)
{
    static Parallel *real;
    if (!real)
        real = (Parallel *)dlsym(RTLD_NEXT, "GOMP_parallel");
    if (threads != 1)
        __atomic_add_fetch(&regions, 1, __ATOMIC_RELAXED);
    real(work, data, threads, flags);
}

__attribute__((destructor)) static void tell(void)
{
    fprintf(stderr, "regions: %ld\n", regions);
}
