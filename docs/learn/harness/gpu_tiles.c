/* SPDX-License-Identifier: MIT
 *
 * gpu_tiles.c: Y[x] = sum over the keys of V[j][x], d = 64, tile by tile. ahead[j], where a step
 * has it: how many tiles were on their way while tile j was added.
 */
#include "gpu.h"

void sum_tiles(const float *V, float *Y, float *ahead, int N);

const Mistake mistakes[] = {
    {"no_overlap", "The sum is right, but no tile is on its way while another one is added. Begin "
                   "to copy the next one before you add this one."},
    {"first_tile", "Every tile is taken for the first one: the stage that is read is not the one "
                   "that was filled last."},
    {"last_tile", "The last tile is left out."},
    {NULL, NULL},
};

static int N, rows;
static float *V;
static Output *Y, *ahead;

void prepare(void)
{
    N = (int)number("-N", 64);
    rows = (int)number("--tile", 16);
    V = input("V", N * 64L);
    fill_normal(V, N * 64L, 1);
    Y = output("Y", 64, 1, "channel", "");
    ahead = output("ahead", N / rows, 1, "tile", "");
}

void call(void)
{
    sum_tiles(on_device(V, N * 64L), back(Y), back(ahead), N);
    end_kernels();
    if (!number("--ahead", 0))
        memset(ahead->found, 0, sizeof(float) * (size_t)ahead->rows);
}

void expect(int mistake)
{
    int j, x;
    for (x = 0; x < 64; x++) {
        Y->expected[x] = 0.0;
        for (j = 0; j < N - (mistake == 3 ? rows : 0); j++)
            Y->expected[x] += V[(mistake == 2 ? j % rows : j) * 64 + x];
    }
    for (j = 0; j < ahead->rows; j++)
        ahead->expected[j] = mistake == 1 ? 0.0 : fmin(number("--ahead", 0), ahead->rows - 1.0 - j);
}
