/* SPDX-License-Identifier: MIT
 *
 * quick.h: how much of its list a test may leave out.
 *
 * Interface:
 * - quick: 0: nothing. 1 (ATTN_TEST_QUICK=1, under sanitizers): they see nothing new in the same
 *   code with another dtype or size. 2 (an emulated processor): a few of a list show what all
 *   would.
 */
#ifndef QUICK_H
#define QUICK_H

#include <stdlib.h>

static inline int quick(void)
{
    const char *wanted = getenv("ATTN_TEST_QUICK");
    return wanted ? atoi(wanted) : 0;
}

#endif
