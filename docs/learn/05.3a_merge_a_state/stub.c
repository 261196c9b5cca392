/* SPDX-License-Identifier: MIT
 *
 * 05.3a: the results of two sets of keys become one.
 */
#include <math.h>

/* O, O_block [d]; *lse, lse_block: of the keys that each of them has seen. */
void merge_row(float *O, float *lse, const float *O_block, float lse_block, int d)
{
    const float max = *lse > lse_block ? *lse : lse_block;
    const float min = *lse > lse_block ? lse_block : *lse;
    /* YOUR CODE: 8 lines are enough */
    /* END OF YOUR CODE */
}
