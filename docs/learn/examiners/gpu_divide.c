/* SPDX-License-Identifier: MIT
 *
 * gpu_divide.c: O = a / l, row by row.
 */
#include "gpu.h"

void divide_rows(const float *a, const float *l, float *O, int N, int d);

const Mistake mistakes[] = {
    {"sum_of_column", "Element t is divided by l of its column. Its row is t / d."},
    {NULL, NULL},
};

static int N, d;
static float *a, *l;
static Output *O;

void prepare(void)
{
    int i;
    N = (int)number("-N", 4);
    d = (int)number("-d", 8);
    a = normal_input("a", (long)N * d, 1, NULL);
    l = input("l", N);
    O = output("O", N, d, "row", "channel");
    for (i = 0; i < N; i++)
        l[i] = (float)(i + 1);
}

void call(void)
{
    divide_rows(on_device(a, (long)N * d), on_device(l, N), back(O), N, d);
    end_kernels();
}

void expect(int mistake)
{
    int t;
    for (t = 0; t < N * d; t++)
        O->expected[t] = a[t] / (mistake ? l[t % d % N] : l[t / d]);
}
