/* SPDX-License-Identifier: MIT
 *
 * 06.2a: a ring: attend to the block that is here, merge, pass on.
 */
#include "ring_world.h"

#include <math.h>

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* A key alone is a block with lse = s and O = V. */
static void merge_key(float *O, float *lse, float s, const float *V, int d)
{
    const float max = *lse > s ? *lse : s, min = *lse > s ? s : *lse;
    const float both = max + log1pf(expf(min - max));
    const float of_old = expf(*lse - both), of_key = expf(s - both);
    for (int x = 0; x < d; x++)
        O[x] = of_old * O[x] + of_key * V[x];
    *lse = both;
}

void ring_attention(RingWorld *world, int G, int n, int d, int causal)
{
    for (int r = 0; r < G; r++)
        for (int i = 0; i < n; i++) {
            world->rank[r].lse[i] = -INFINITY;
            for (int x = 0; x < d; x++)
                world->rank[r].O[i * d + x] = 0.0f;
        }
    for (int t = 0; t < G; t++) {
        for (int r = 0; r < G; r++) {
            RingPlayer *me = &world->rank[r];
            const int owner = (r - t + G) % G;
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++) {
                    const float s = dot(me->Q + i * d, me->K + j * d, d) / sqrtf((float)d);
                    if (!causal || owner * n + j <= r * n + i)
                        merge_key(me->O + i * d, me->lse + i, s, me->V + j * d, d);
                }
        }
        if (t < G - 1)
            pass_on(world);
    }
}
