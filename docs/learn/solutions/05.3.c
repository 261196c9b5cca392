/* SPDX-License-Identifier: MIT
 *
 * 05.3: the results of two sets of keys become one.
 */
#include <math.h>

/* O, O_block [d]; *lse, lse_block: of the keys that each of them has seen. */
void merge_row(float *O, float *lse, const float *O_block, float lse_block, int d)
{
    const float max = *lse > lse_block ? *lse : lse_block;
    const float min = *lse > lse_block ? lse_block : *lse;
    /* YOUR CODE: at most 8 lines */
    if (max == -INFINITY)
        return;
    const float both = max + log1pf(expf(min - max));
    const float of_old = expf(*lse - both), of_block = expf(lse_block - both);
    for (int x = 0; x < d; x++)
        O[x] = of_old * O[x] + of_block * O_block[x];
    *lse = both;
    /* END OF YOUR CODE */
}
