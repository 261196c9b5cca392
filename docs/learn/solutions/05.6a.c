/* SPDX-License-Identifier: MIT
 *
 * 05.6a: the weights of a row, with a cap, a temperature and a mask.
 */
#include <math.h>

/* qk [n]: products of the query with each key; hidden [n]: 1 = masked out; P [n] */
void weights_of_row(const float *qk, const unsigned char *hidden, float *P, int n, float scale,
                    float cap, float temperature)
{
    float m = -INFINITY, l = 0.0f;
    for (int j = 0; j < n; j++) {
        float s = scale * qk[j];
        if (cap > 0.0f)
            s = cap * tanhf(s / cap);
        else
            s /= temperature;
        if (hidden[j])
            s = -INFINITY;
        P[j] = s;
        m = s > m ? s : m;
    }
    if (m == -INFINITY)
        m = 0.0f;
    for (int j = 0; j < n; j++) {
        P[j] = expf(P[j] - m);
        l += P[j];
    }
    for (int j = 0; j < n && l > 0.0f; j++)
        P[j] /= l;
}
