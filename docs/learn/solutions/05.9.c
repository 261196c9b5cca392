/* SPDX-License-Identifier: MIT
 *
 * 05.9: a row whose softmax has one term more.
 */
#include <math.h>

/* s [n]: scores of one row. V [n][d], dO [d]. O [d], *lse with the sink in it, *dsink. */
void sink_row(const float *s, const float *V, const float *dO, float sink, float *O, float *lse,
              float *dsink, int n, int d)
{
    float m = sink, l, delta = 0.0f;
    for (int x = 0; x < d; x++)
        O[x] = 0.0f;
    /* YOUR CODE: at most 16 lines */
    for (int j = 0; j < n; j++)
        m = s[j] > m ? s[j] : m;
    m = m == -INFINITY ? 0.0f : m;
    l = expf(sink - m);
    for (int j = 0; j < n; j++) {
        const float p = expf(s[j] - m);
        l += p;
        for (int x = 0; x < d; x++)
            O[x] += p * V[j * d + x];
    }
    for (int x = 0; x < d; x++) {
        O[x] = l > 0.0f ? O[x] / l : 0.0f;
        delta += dO[x] * O[x];
    }
    *lse = m + logf(l);
    *dsink = l > 0.0f ? -expf(sink - m) / l * delta : 0.0f;
    /* END OF YOUR CODE */
}
