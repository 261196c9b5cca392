/* SPDX-License-Identifier: MIT
 *
 * 05.7a: a row whose softmax has one term more.
 */
#include <math.h>

/* s [n]: scores of one row. V [n][d], dO [d]. O [d], *lse with the sink in it, *dsink. */
void sink_row(const float *s, const float *V, const float *dO, float sink, float *O, float *lse,
              float *dsink, int n, int d)
{
    float m = sink, l, delta = 0.0f;
    for (int x = 0; x < d; x++)
        O[x] = 0.0f;
    /* YOUR CODE: 16 lines are enough */
    (void)m, (void)l, (void)delta;
    /* END OF YOUR CODE */
}
