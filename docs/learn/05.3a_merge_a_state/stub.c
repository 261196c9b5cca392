/* SPDX-License-Identifier: MIT
 *
 * 05.3a: a state (m, l, a) goes into a result (O, lse).
 */
#include <math.h>

/* O [d], *lse: of the keys seen so far. m, l, a [d]: the state of other keys, a not divided. */
void merge_row(float *O, float *lse, float m, float l, const float *a, int d)
{
    const float lse_block = m + logf(l); /* -inf: no key */
    const float max = *lse > lse_block ? *lse : lse_block;
    const float min = *lse > lse_block ? lse_block : *lse;
    /* YOUR CODE: 8 lines are enough */
    /* END OF YOUR CODE */
}
