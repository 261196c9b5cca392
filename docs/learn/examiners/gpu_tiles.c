/* SPDX-License-Identifier: MIT
 *
 * gpu_tiles.c: Y[x] = sum over the keys of V[j][x], d = 64, tile by tile.
 */
#include "gpu.h"

void sum_tiles(const float *V, float *Y, int N);

#define ROWS 16 /* of a tile */

const Mistake mistakes[] = {
    {"first_tile", "Every tile is taken for the first one: the stage that is read is not the one "
                   "that was filled last."},
    {"last_tile", "The last tile is left out."},
    {NULL, NULL},
};

static int N;
static float *V;
static Output *Y;

void prepare(void)
{
    N = (int)number("-N", 64);
    V = normal_input("V", N * 64L, 1, NULL);
    Y = output("Y", 64, 1, "channel", "");
}

void call(void)
{
    sum_tiles(on_device(V, N * 64L), back(Y), N);
    end_kernels();
}

void expect(int mistake)
{
    int j, x;
    for (x = 0; x < 64; x++) {
        Y->expected[x] = 0.0;
        for (j = 0; j < N - (mistake == 2 ? ROWS : 0); j++)
            Y->expected[x] += V[(mistake == 1 ? j % ROWS : j) * 64 + x];
    }
}
